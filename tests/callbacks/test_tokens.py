import copy
from types import SimpleNamespace

import pytest
import torch

from olmes_monitor.callbacks.tokens import TokenCounter, tokens_in
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
