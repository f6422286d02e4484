import copy
from types import SimpleNamespace

import pytest
import torch
from parts import make_llama

from olmes_monitor.callbacks.tokens import Padding, TokenCounter, tokens_in
from olmes_monitor.errors import SetupError

IDS = torch.zeros(4, 10, dtype=torch.long)


@pytest.mark.parametrize(
    "batch",
    [
        IDS,
        {"input_ids": IDS, "labels": IDS},
        {"tokens": IDS},
        (torch.zeros(4), IDS, IDS),
        [IDS, IDS],
        ({"input_ids": IDS}, {"weights": 1}),
        SimpleNamespace(input_ids=IDS),
        {"input_ids": IDS.flatten()},  # packed rows
        IDS.int(),
    ],
)
def test_usual_batches_are_read(batch):
    assert tokens_in(batch) == 40


def test_an_empty_batch_has_no_tokens():
    assert tokens_in({"input_ids": IDS[:0]}) == 0


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (torch.zeros(4, 10), r"float32 tensor of shape \(4, 10\)"),
        ({"pixels": IDS, "size": 3}, "dict with the keys pixels, size"),
        ("text", "it is a str"),
        (torch.zeros(4, dtype=torch.long), "int64 tensor"),
        (None, "NoneType"),
    ],
)
def test_what_cannot_be_read_says_what_to_pass(batch, words):
    with pytest.raises(SetupError, match=words) as error:
        tokens_in(batch)
    assert "count_tokens=" in str(error.value)
    assert "tokens_per_step=" in str(error.value)


def test_the_counter_sees_training_forwards_only():
    model, counter = torch.nn.Embedding(3, 2), TokenCounter()
    model.register_forward_pre_hook(counter, with_kwargs=True)
    model(IDS)
    model.eval()
    model(IDS)
    assert counter.take() == 40
    assert counter.take() == 0


def test_a_copied_model_has_a_counter_of_its_own():
    model, counter = torch.nn.Embedding(3, 2), TokenCounter()
    model.register_forward_pre_hook(counter, with_kwargs=True)
    copy.deepcopy(model)(IDS)
    assert counter.take() == 0


def test_a_forward_without_ids_is_an_error_and_not_a_zero():
    counter = TokenCounter()
    counter(torch.nn.Linear(1, 1), (), {"inputs_embeds": torch.zeros(1, 2, 3)})
    with pytest.raises(SetupError, match="without input_ids"):
        counter.take()


# Two batches: 10 and 4 tokens padded to 10, 9 and 3 padded to 9, as in the field's issue: 38 fed, 26 of them real.
LENGTHS = [(10, 4), (9, 3)]


def padded(lengths, pad=7):
    rows = [[1] * n + [pad] * (max(lengths) - n) for n in lengths]
    mask = [[1] * n + [0] * (max(lengths) - n) for n in lengths]
    return torch.tensor(rows), torch.tensor(mask)


def total(batches, *arguments):
    return sum(int(tokens_in(batch, *arguments)) for batch in batches)


def test_padding_is_counted_or_not():
    pairs = [padded(lengths) for lengths in LENGTHS]
    masked = [{"input_ids": ids, "attention_mask": mask} for ids, mask in pairs]
    bare = [{"input_ids": ids} for ids, _ in pairs]
    assert total(masked) == total(bare) == 38
    assert total(masked, "non_padding") == 26  # a mask needs no pad id
    assert total(masked, "non_padding", Padding(1)) == 26  # and goes before one
    assert total(bare, "non_padding", Padding(7)) == 26
    assert total(bare, "non_padding", Padding(None)) == 38  # nothing can be padding


def test_packed_rows_are_all_real():
    ids = torch.tensor([[1, 1, 7, 1, 1, 1, 7]])
    packed = {"input_ids": ids, "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3]])}
    assert tokens_in(packed, "non_padding", Padding(7, ambiguous=True)) == 7
    assert tokens_in(packed, "non_padding", Padding(7)) == 7


def test_a_mask_of_another_shape_does_not_say_what_padding_is():
    ids, _ = padded(LENGTHS[0])
    batch = {"input_ids": ids, "attention_mask": torch.ones(2, 1, 10, 10)}
    assert int(tokens_in(batch, "non_padding", Padding(7))) == 14


def test_padding_that_looks_like_text_is_refused_and_not_guessed():
    tokenizer = SimpleNamespace(pad_token_id=7, eos_token_id=7)
    with pytest.raises(SetupError, match="no attention_mask, and the tokenizer pads with its EOS"):
        tokens_in({"input_ids": IDS}, "non_padding", Padding.of(tokenizer))
    counter = TokenCounter("non_padding", Padding.of(tokenizer))
    counter(torch.nn.Linear(1, 1), (IDS,), {})
    with pytest.raises(SetupError, match="cannot tell padding from text"):
        counter.take()
    assert Padding.of(SimpleNamespace(pad_token_id=3, eos_token_id=7)) == Padding(3)
    assert Padding.of(SimpleNamespace()) == Padding()


class Outer(torch.nn.Module):
    """As DDP is: what is compiled calls the model."""

    def __init__(self, model):
        super().__init__()
        self.module = model

    def forward(self, **batch):
        return self.module(**batch)


@pytest.mark.parametrize(("how", "count"), [("itself", "non_padding"), ("within", "all"), ("within", "non_padding")])
def test_in_a_compiled_model_the_counter_counts_and_costs_no_graph_of_the_training(how, count):
    """A Python number in the hook would be guarded, and the training's graphs compiled again or broken.

    (The hook of a model that is compiled itself is a frame, and so a tiny graph, of its own.)
    """
    ids, mask = padded(LENGTHS[0])
    batch = {"input_ids": ids, "attention_mask": mask}

    def graphs(counter):
        torch._dynamo.reset()
        sizes = []

        def backend(graph, _):
            sizes.append(len(graph.graph.nodes))
            return graph.forward

        model = make_llama(num_hidden_layers=1).train()
        if counter is not None:
            model.register_forward_pre_hook(counter, with_kwargs=True)
        trained = torch.compile(model if how == "itself" else Outer(model), backend=backend)
        for _ in range(4):
            trained(**batch, labels=ids).loss.backward()
        return sizes

    counter = TokenCounter(count, Padding(7))
    watched, alone = graphs(counter), graphs(None)
    assert len(alone) == 1
    own, training = watched[:-1], watched[-1]
    assert all(size < 10 for size in own)
    assert len(own) == (1 if how == "itself" else 0)
    assert 0 <= training - alone[0] < 10
    assert int(counter.tokens) == 0
    assert counter.take() == 4 * (20 if count == "all" else 14)
    assert counter.take() == 0
