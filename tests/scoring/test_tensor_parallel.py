"""Ranks that each hold a part of every layer score the same rows, in step; the groups of a larger mesh share the questions."""

import numpy as np
import pytest
from parts import make_llama, make_task
from ranks import run_ranks

from olmes_monitor import Point, Suite
from olmes_monitor.errors import EvaluationError
from olmes_monitor.scoring.score import Scorer

SUITE = Suite("tiny", [make_task("boxes", 7), make_task("balls", 2, seed=1, normalization="pmi")])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    make_llama().save_pretrained(folder)
    return str(folder)


def loaded(folder, **sizes):
    """transformers' own tensor parallelism, alone or beneath its FSDP2."""
    from transformers import AutoModelForCausalLM

    if not sizes:
        return AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto")
    from transformers.distributed import DistributedConfig

    return AutoModelForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(**sizes))


def by_hand(mesh):
    """torch's own: the MLPs split over the mesh's last dimension, which is called tp; no name for the rest is needed."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = make_llama()
    plan = {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()}
    for layer in model.model.layers:
        parallelize_module(layer.mlp, mesh["tp"], plan)
    return model


def evaluate(model, tokenizer, **settings):
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    scorer = Scorer(model, tokenizer, SUITE, batch_tokens=300, **settings)
    evaluation = scorer.evaluate(Point(0))
    return {
        "scores": [evaluation.scores[name].drop_null().to_numpy() for name in ("cf", "mcf", "unconditional")],
        "metrics": evaluation.metrics,
        "path": evaluation.settings["path"],
        "tokens": evaluation.cost["tokens"],
        "calls": len(calls),
        "parts": (scorer.ranks.part, scorer.ranks.parts, scorer.ranks.copies),
        "sliced": scorer.path.forward.head is not None,
    }


def assert_equal(found, alone):
    assert found["metrics"] == pytest.approx(alone["metrics"], abs=1e-9)
    for values, truth in zip(found["scores"], alone["scores"], strict=True):
        np.testing.assert_allclose(values, truth, atol=1e-5, rtol=0)


def on_two(rank, folder, tokenizer):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    found = {"auto, packed": evaluate(loaded(folder), tokenizer)}
    found["auto, plain"] = evaluate(loaded(folder), tokenizer, path="plain")
    found["by hand"] = evaluate(by_hand(mesh), tokenizer)
    across = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
    found["two groups of one"] = evaluate(by_hand(across), tokenizer)
    return found


@pytest.mark.slow
def test_the_ranks_of_a_group_score_the_same_rows(saved, tokenizer):
    alone = evaluate(make_llama(), tokenizer)
    first, second = run_ranks(on_two, 2, saved, tokenizer)
    for kind in first:
        for found in (first[kind], second[kind]):
            assert_equal(found, alone)
            assert found["path"] == ("plain" if "plain" in kind else "packed")
        assert first[kind]["parts"][2] == (1 if kind == "two groups of one" else 2)
        if kind != "two groups of one":
            assert first[kind]["calls"] == second[kind]["calls"]
            assert first[kind]["parts"] == second[kind]["parts"] == (0, 1, 2)
    # The tokens of the group are counted once: its ranks make the calls together.
    assert first["by hand"]["tokens"] == alone["tokens"]
    assert [each["two groups of one"]["parts"] for each in (first, second)] == [(0, 2, 1), (1, 2, 1)]


def fail_at_the_start(rank, folder, tokenizer):
    model = loaded(folder)
    scorer = Scorer(model, tokenizer, SUITE, batch_tokens=300)
    before = scorer.evaluate(Point(0)).metrics
    calls = []

    def unlucky(*_):
        calls.append(1)
        if rank == 1 and len(calls) == 3:
            raise ValueError("no luck")

    handle = model.register_forward_pre_hook(unlucky)
    with pytest.raises(EvaluationError) as caught:
        scorer.evaluate(Point(1))
    handle.remove()
    return str(caught.value), scorer.evaluate(Point(2)).metrics == before


def test_a_rank_that_fails_before_its_forward_begins_keeps_the_group_in_step(saved, tokenizer):
    results = run_ranks(fail_at_the_start, 2, saved, tokenizer, seconds=60)
    assert results[0] == results[1]
    assert results[0][0].startswith("rank 1 of 2 failed in boxes")
    assert results[0][0].endswith("ValueError: no luck")
    assert results[0][1]


def on_four(rank, folder, tokenizer):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return {
        "by hand": evaluate(by_hand(mesh), tokenizer),
        "fsdp2 over tensor parallel": evaluate(loaded(folder, tp_size=2, fsdp_size=2), tokenizer),
    }


@pytest.mark.slow
def test_two_groups_of_two_share_the_questions(saved, tokenizer):
    alone = evaluate(make_llama(), tokenizer)
    results = run_ranks(on_four, 4, saved, tokenizer)
    for kind in results[0]:
        found = [result[kind] for result in results]
        for each in found:
            assert_equal(each, alone)
        assert [each["parts"] for each in found] == [(0, 2, 2), (0, 2, 2), (1, 2, 2), (1, 2, 2)]
        assert len({each["calls"] for each in found}) == 1
