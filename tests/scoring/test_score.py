"""Log-likelihoods against a naive loop: one request, one forward, no padding, no sharing."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from parts import make_llama, make_task
from torch import nn

from olmes_monitor import Point, Suite, score
from olmes_monitor.errors import EvaluationError, SetupError
from olmes_monitor.scoring import head
from olmes_monitor.scoring.score import Scorer


def naive(model, tokenizer, task, formulation):
    """float64 sums of float32 log-softmax at the positions before the continuation, one sequence at a time."""
    model.eval()
    found = []
    for question in task.questions:
        for request in task.requests(question, formulation):
            context = tokenizer(request.context, add_special_tokens=False)["input_ids"]
            ids = tokenizer(request.context + request.continuation, add_special_tokens=False)["input_ids"]
            assert ids[: len(context)] == context
            with torch.no_grad():
                output = model(torch.tensor([ids]))
            logits = getattr(output, "logits", output)
            logp = logits[0].float().log_softmax(-1)
            found.append(sum(logp[i - 1, ids[i]].double().item() for i in range(len(context), len(ids))))
    return found


def split_unconditional(task, values):
    """The naive list goes question by question: its choices, then its unconditional requests."""
    choices, unconditional, i = [], [], 0
    for question in task.questions:
        n = len(question.choices)
        choices += values[i : i + n]
        unconditional += values[i + n : i + 2 * n] if task.unconditional else []
        i += 2 * n if task.unconditional else n
    return choices, unconditional


class HandWritten(nn.Module):
    """A causal model with learned positions and no arguments but the ids."""

    def __init__(self, vocabulary=400, positions=512, wrap=lambda logits: logits):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, 16), nn.Embedding(positions, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 1), nn.Linear(16, vocabulary)
        self.wrap = wrap

    def forward(self, ids):
        n = ids.shape[1]
        x = self.tokens(ids) + self.places(torch.arange(n, device=ids.device))
        mask = nn.Transformer.generate_square_subsequent_mask(n, device=ids.device)
        return self.wrap(self.head(self.body(x, mask=mask, is_causal=True)))


@pytest.mark.parametrize("batch_tokens", [40, 64, 1000, 100_000])
@pytest.mark.parametrize("path", ["plain", "packed"])
def test_log_likelihoods_equal_the_naive_loop(suite, tokenizer, llama, batch_tokens, path):
    evaluation = score(llama, tokenizer, suite, batch_tokens=batch_tokens, path=path)
    assert evaluation.settings["path"] == path
    for name, task in suite.tasks.items():
        rows = evaluation.scores.filter(np.array(evaluation.scores["task"].to_pylist()) == name)
        cf, unconditional = split_unconditional(task, naive(llama, tokenizer, task, "cf"))
        np.testing.assert_allclose(rows["cf"].to_numpy(), cf, atol=1e-5, rtol=0)
        np.testing.assert_allclose(rows["mcf"].to_numpy(), naive(llama, tokenizer, task, "mcf"), atol=1e-5, rtol=0)
        if task.unconditional:
            np.testing.assert_allclose(rows["unconditional"].to_numpy(), unconditional, atol=1e-5, rtol=0)
        else:
            assert rows["unconditional"].null_count == len(rows)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda logits: logits,
        lambda logits: (torch.tensor(0.0), logits),
        lambda logits: {"loss": None, "logits": logits},
        lambda logits: SimpleNamespace(logits=logits),
    ],
    ids=["tensor", "tuple", "mapping", "object"],
)
def test_a_hand_written_module_whatever_it_returns(suite, tokenizer, wrap):
    torch.manual_seed(0)
    model = HandWritten()
    task = suite.tasks["boxes"]
    truth = naive(model, tokenizer, task, "cf")
    model.wrap = wrap
    evaluation = score(model, tokenizer, Suite("one", [task]))
    np.testing.assert_allclose(evaluation.scores["cf"].to_numpy(), truth, atol=1e-5, rtol=0)


@pytest.mark.parametrize("path", ["plain", "packed"])
def test_the_vocabulary_is_worked_through_in_slices(suite, tokenizer, llama, monkeypatch, path):
    whole = score(llama, tokenizer, suite, path=path)
    monkeypatch.setattr(head, "SLICE_ELEMENTS", 3 * 400)
    rows = []
    forward = llama.lm_head.forward
    llama.lm_head.forward = lambda hidden: rows.append(len(hidden)) or forward(hidden)
    sliced = score(llama, tokenizer, suite, path=path, batch_tokens=400)
    assert rows.count(3) > 20
    np.testing.assert_allclose(whole.scores["cf"].to_numpy(), sliced.scores["cf"].to_numpy(), atol=1e-5, rtol=0)


def test_the_labels_of_a_question_come_from_one_row(suite, tokenizer, llama):
    scorer = Scorer(llama, tokenizer, suite, formulations=("mcf",), path="plain")
    rows = sum(len(batch.ids) for job in scorer.jobs for batch in job.calls)
    assert rows == sum(len(task.questions) for task in suite.tasks.values())


def test_rows_of_the_table_are_the_choices_in_order(suite, tokenizer, llama):
    table = score(llama, tokenizer, suite).scores.to_pydict()
    expected = [
        (name, question.id, i, choice, choice == question.gold, len(text) + 1)
        for name, task in suite.tasks.items()
        for i, question in enumerate(task.questions)
        for choice, text in enumerate(question.choices)
    ]
    found = zip(*(table[key] for key in ("task", "question", "index", "choice", "gold", "chars")), strict=True)
    assert list(found) == expected


def test_one_formulation_alone(suite, tokenizer, llama):
    evaluation = score(llama, tokenizer, suite, formulations=("mcf",))
    assert evaluation.scores["cf"].null_count == len(evaluation.scores)
    assert "olmes/mcf/boxes" in evaluation.metrics
    assert "olmes/cf/boxes" not in evaluation.metrics
    assert evaluation.complete


def test_nan_logits_give_no_number_and_a_reason(suite, tokenizer):
    class Broken(HandWritten):
        def forward(self, ids):
            return super().forward(ids) * float("nan")

    evaluation = score(Broken(), tokenizer, suite)
    assert evaluation.metrics == {}
    assert set(evaluation.problems) == {"boxes", "balls"}
    assert "NaN" in evaluation.problems["boxes"]


def test_a_failing_forward_is_named_with_task_and_cause(suite, tokenizer, llama):
    scorer = Scorer(llama, tokenizer, suite)
    llama.model.layers[0].register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("no luck")))
    llama.train()
    with pytest.raises(EvaluationError, match=r"rank 0 of 1 failed in boxes cf \(question.*\): RuntimeError: no luck"):
        scorer.evaluate(Point(0))
    assert llama.training
    assert llama.model.layers[0].training


def test_a_tokenizer_beyond_the_embedding_is_refused(suite, tokenizer):
    with pytest.raises(SetupError, match=r"token id \d+, but the model's embedding has 300 rows"):
        score(make_llama(vocabulary=300), tokenizer, suite)


def test_what_is_not_a_language_model_is_refused(suite, tokenizer):
    class Classifier(HandWritten):
        def forward(self, ids):
            return super().forward(ids)[:, -1]

    class Pictures(HandWritten):
        def forward(self, pixels):
            return pixels.float().view(-1, 3, 8, 8)

    for model, words in (
        (Classifier(), "returned logits of shape|without logits"),
        (Pictures(), "does not take token ids"),
    ):
        with pytest.raises(SetupError, match=words):
            Scorer(model, tokenizer, suite).check()
    with pytest.raises(SetupError, match="model is a dict"):
        score({}, tokenizer, suite)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_tokens": 0}, "batch_tokens"),
        ({"batch_tokens": "many"}, "batch_tokens"),
        ({"path": "fast"}, "path takes"),
        ({"formulations": ("abc",)}, "formulations"),
        ({"formulations": ()}, "formulations"),
        ({"permutations": "all"}, 'permutations takes "none" or "cyclic", got \'all\''),
        ({"permutations": "cyclic", "formulations": ("cf",)}, 'formulations leaves "mcf" out'),
        ({"bos": True}, "no bos_token"),
        ({"bos": "yes"}, "bos takes"),
        ({"max_length": 1}, "max_length is 1"),
        ({"max_length": 0}, "max_length is 0"),
    ],
)
def test_wrong_settings_are_refused(suite, tokenizer, llama, settings, words):
    with pytest.raises(SetupError, match=words):
        score(llama, tokenizer, suite, **settings)


def test_a_short_context_drops_whole_shots_and_counts_them(tokenizer):
    task = make_task("boxes", 8)
    model = make_llama(max_position_embeddings=64)
    evaluation = score(model, tokenizer, Suite("short", [task]))
    counts = evaluation.tasks["boxes"]["encoding_mcf"]
    assert counts["shots_dropped"] + counts["cut"] > 0
    assert evaluation.settings["max_length"] == 64
    assert any(
        "mcf questions with fewer shots: prompts are longer than the 64 tokens" in w
        for w in evaluation.tasks["boxes"]["warnings"]
    )


def test_the_plain_path_calls_without_cache_and_with_few_lm_head_positions(suite, tokenizer, llama):
    scorer = Scorer(llama, tokenizer, suite, path="plain")
    seen = []
    llama.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs), with_kwargs=True)
    scorer.evaluate(Point(0))
    assert all(kwargs["use_cache"] is False for kwargs in seen)
    assert all(len(kwargs["logits_to_keep"]) < kwargs["input_ids"].shape[1] / 2 for kwargs in seen)


def test_running_out_of_memory_halves_the_forward_calls_and_remembers(suite, tokenizer, llama, caplog):
    whole = score(llama, tokenizer, suite, batch_tokens=1024)
    assert whole.cost["oom_retries"] == 0
    scorer = Scorer(llama, tokenizer, suite, batch_tokens=1024)

    def device(module, args, kwargs):
        if kwargs["input_ids"].numel() > 300:
            raise torch.OutOfMemoryError("CUDA out of memory")

    llama.register_forward_pre_hook(device, with_kwargs=True)
    first = scorer.evaluate(Point(0))
    assert first.settings["batch_tokens"] == 256
    assert caplog.text.count("going on with batch_tokens=") == 2
    assert first.cost["oom_retries"] == 2
    np.testing.assert_allclose(first.scores["cf"].to_numpy(), whole.scores["cf"].to_numpy(), atol=1e-5, rtol=0)
    caplog.clear()
    scorer.evaluate(Point(1))
    assert caplog.text == ""


def test_memory_that_is_never_enough_ends_with_the_cause(suite, tokenizer, llama):
    scorer = Scorer(llama, tokenizer, suite)
    llama.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.raises(EvaluationError, match=r"rank 0 of 1 failed in boxes cf \(the shots\): OutOfMemoryError"):
        scorer.evaluate(Point(0))
