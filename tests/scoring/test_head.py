"""The LM head in slices where nothing comes after it; elsewhere few positions a call. The vocabulary bounds no budget."""

import numpy as np
import pytest
import torch
import transformers
from parts import make_llama, make_task

from olmes_monitor import Point, Suite, score
from olmes_monitor.scoring import forward
from olmes_monitor.scoring.pack import pack
from olmes_monitor.scoring.plan import plan
from olmes_monitor.scoring.score import Scorer

SMALL = {
    "vocab_size": 400,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}
CHANGED = {
    "cohere, scaled": ("Cohere", SMALL | {"logit_scale": 0.25, "pad_token_id": 0}),
    "granite, divided": ("Granite", SMALL | {"logits_scaling": 4.0}),
    "gemma 2, capped": ("Gemma2", SMALL | {"head_dim": 8, "sliding_window": 4096, "final_logit_softcapping": 5.0}),
}


@pytest.fixture(scope="module")
def tiny():
    return Suite("tiny", [make_task("boxes", 8), make_task("balls", 3, seed=1, normalization="pmi")])


def make(name, settings):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**settings)
    return getattr(transformers, f"{name}ForCausalLM")(config)


def naive(model, scorer):
    """From the model's own logits, one request at a time: float64 per request, job by job."""
    found = []
    for job in scorer.jobs:
        for request in job.requests:
            with torch.no_grad():
                logp = (
                    model.eval()(torch.from_numpy(request.ids.astype(np.int64))[None]).logits[0].float().log_softmax(-1)
                )
            places = range(request.start, len(request.ids))
            found.append(sum(logp[i - 1, request.ids[i]].double().item() for i in places))
    return np.array(found)


def all_of(scorer, evaluation):
    """The evaluation's log-likelihoods in the order of `naive`."""
    columns = []
    for job in scorer.jobs:
        mine = evaluation.scores.filter(np.array(evaluation.scores["task"].to_pylist()) == job.task.name)
        columns.append(mine[job.formulation].to_numpy())
        if job.encoded.unconditional:
            columns.append(mine["unconditional"].to_numpy())
    return np.concatenate(columns)


@pytest.mark.parametrize("path", ["plain", "packed"])
@pytest.mark.parametrize(("name", "settings"), CHANGED.values(), ids=CHANGED.keys())
def test_logits_that_are_changed_after_the_head_are_the_models_own(name, settings, tiny, tokenizer, path, monkeypatch):
    monkeypatch.setattr(forward, "WHOLE_ELEMENTS", 12 * 400)
    model = make(name, settings)
    scorer = Scorer(model, tokenizer, tiny, path=path, batch_tokens=200)
    assert scorer.path.forward.head is None
    assert scorer.path.forward.max_reads == 12

    np.testing.assert_allclose(all_of(scorer, scorer.evaluate(Point(0))), naive(model, scorer), atol=2e-4, rtol=1e-5)


def test_a_cap_is_found_however_small_the_logits_are(tiny, tokenizer):
    """A head of zeros gives zeros, which no cap and no scale changes: the trial must not depend on the weights."""
    model = make(*CHANGED["gemma 2, capped"])
    with torch.no_grad():
        model.lm_head.weight.zero_()
    assert Scorer(model, tokenizer, tiny).path.forward.head is None
    model = make_llama()
    with torch.no_grad():
        model.lm_head.weight.zero_()
    assert Scorer(model, tokenizer, tiny).path.forward.head is not None


def test_the_models_own_head_sees_one_position_a_row(tiny, tokenizer, llama):
    scorer = Scorer(llama, tokenizer, tiny, batch_tokens=200)
    shapes = []
    llama.lm_head.register_forward_hook(lambda _, __, out: shapes.append(out.shape))

    scorer.evaluate(Point(0))
    assert set(shapes) == {(1, 1, 400)}
    assert len(llama.lm_head._forward_pre_hooks) == 0


@pytest.mark.parametrize("most", [5, 12, 20])
def test_no_call_reads_more_places_than_it_may(tiny, tokenizer, llama, most):
    requests = Scorer(llama, tokenizer, tiny).jobs[0].requests
    longest = max(len(request.ids) - request.start for request in requests)
    for row in pack(requests, 500, most):
        assert len(row.reads.position) <= max(most, longest)
    whole = pack(requests, 500)
    assert max(len(row.reads.position) for row in whole) > most
    for batch in plan(requests, 2000, 512, most):
        logits = len(np.unique(batch.reads.position)) * len(batch.ids)
        assert logits <= most or len(batch.ids) == 1
    asked = [sum(len(call.reads.target) for call in calls) for calls in (whole, pack(requests, 500, most))]
    assert asked[0] == asked[1]


def test_a_model_whose_head_is_called_in_another_way_is_read_whole(tiny, tokenizer):
    """A weight that is used without calling the head: the hook never runs, and that is found at first use."""

    class Tied(type(make_llama())):
        def forward(self, input_ids=None, **kwargs):
            kwargs.pop("logits_to_keep", None)
            hidden = self.model(input_ids, **kwargs).last_hidden_state
            return torch.nn.functional.linear(hidden, self.lm_head.weight)

    torch.manual_seed(0)
    model = Tied(make_llama().config)
    model.load_state_dict(make_llama().state_dict())
    scorer = Scorer(model, tokenizer, tiny)
    assert scorer.path.forward.head is None
    truth = score(make_llama(), tokenizer, tiny)
    np.testing.assert_allclose(score(model, tokenizer, tiny).scores["cf"], truth.scores["cf"], atol=1e-5, rtol=0)
