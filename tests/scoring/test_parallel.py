"""Real processes over gloo: the same numbers on 1, 2 and 3 ranks, the same number of sharded forwards, no hang."""

import numpy as np
import pytest
import torch
from parts import make_llama, make_task
from ranks import run_ranks

from olmes_monitor import Point, Suite, score
from olmes_monitor.errors import EvaluationError, SetupError
from olmes_monitor.scoring.parallel import Ranks, share
from olmes_monitor.scoring.score import Scorer


def wrapped(kind: str):
    model = make_llama()
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    return model


def evaluate(rank, kind, tokenizer, questions):
    model = wrapped(kind)
    calls = []
    getattr(model, "module", model).register_forward_pre_hook(lambda *_: calls.append(1))
    suite = Suite("tiny", [make_task("boxes", questions), make_task("balls", 2, seed=1, normalization="pmi")])
    evaluation = score(model, tokenizer, suite, batch_tokens=300)
    assert evaluation.settings["path"] == "packed"
    return evaluation.scores.to_pydict(), evaluation.metrics, len(calls)


def evaluate_all(rank, tokenizer):
    return {
        (kind, questions): evaluate(rank, kind, tokenizer, questions)
        for kind in ("ddp", "fsdp2")
        for questions in (7, 1)
    }


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_all_numbers_are_those_of_one_process(size, tokenizer):
    """7 questions are shared unevenly; 1 question leaves ranks without work."""
    results = run_ranks(evaluate_all, size, tokenizer)
    for kind, questions in results[0]:
        alone, metrics, _ = evaluate(0, "alone", tokenizer, questions)
        for table, found, _ in (result[kind, questions] for result in results):
            assert found.keys() == metrics.keys()
            assert found == pytest.approx(metrics, abs=1e-9)
            for name in ("task", "question", "choice", "gold"):
                assert table[name] == alone[name]
            for name in ("cf", "mcf", "unconditional"):
                expected, values = (np.array(t[name], dtype=float) for t in (alone, table))
                np.testing.assert_allclose(values, expected, atol=1e-5, rtol=0)
        calls = [result[kind, questions][2] for result in results]
        if kind == "fsdp2":
            assert len(set(calls)) == 1, f"the ranks made {calls} forward calls through a sharded model"


def evaluate_cyclic(rank, kind, tokenizer):
    suite = Suite("tiny", [make_task("boxes", 5)])
    evaluation = score(wrapped(kind), tokenizer, suite, batch_tokens=300, permutations="cyclic")
    return evaluation.scores.to_pydict(), evaluation.tasks["boxes"]["cyclic"]


def test_the_orders_of_the_choices_are_those_of_one_process(tokenizer):
    alone, cyclic = evaluate_cyclic(0, "alone", tokenizer)
    for table, found in run_ranks(evaluate_cyclic, 2, "fsdp2", tokenizer):
        assert found == cyclic
        for name in [name for name in alone if name.startswith("mcf")]:
            expected, values = (np.array(t[name], dtype=float) for t in (alone, table))
            np.testing.assert_allclose(values, expected, atol=1e-5, rtol=0)


def fail_on_rank_one(rank, kind, tokenizer):
    model = wrapped(kind)
    scorer = Scorer(model, tokenizer, Suite("tiny", [make_task("boxes", 8)]), batch_tokens=100)
    job, call = next((j, i) for j, i in scorer.work.calls[1:] if len(scorer.jobs[j].calls[i].reads.request))
    broken = scorer.jobs[job].calls[call].ids
    right = broken.copy()
    if rank == 1:
        broken[0, 0] = 10_000  # the embedding has no such row
    try:
        scorer.evaluate(Point(0))
    except EvaluationError as error:
        message = str(error)
    else:
        message = "no error"
    broken[:] = right
    again = scorer.evaluate(Point(1))  # the next evaluation works, the ranks are still in step
    return message, again.metrics["olmes/cf/boxes"], scorer.jobs[job].place(scorer.jobs[job].calls[call])


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_a_failure_on_one_rank_ends_the_evaluation_on_all(kind, tokenizer):
    results = run_ranks(fail_on_rank_one, 2, kind, tokenizer, seconds=60)
    place = results[1][2]
    assert place.startswith("boxes mcf (question")
    assert {message for message, *_ in results} == {
        f"rank 1 of 2 failed in {place}: IndexError: index out of range in self"
    }
    assert results[0][1] == results[1][1]


def each_alone(rank, tokenizer):
    suite = Suite("tiny", [make_task("boxes", 2 + rank)])  # other questions on each, and other numbers of calls
    evaluation = score(make_llama(), tokenizer, suite, batch_tokens=64, ranks=Ranks())
    assert evaluation.cost["ranks"] == 1
    return len(evaluation.scores["cf"].drop_null()) == sum(len(q.choices) for q in suite.tasks["boxes"].questions)


def test_a_rank_may_score_alone_in_a_job(tokenizer):
    assert run_ranks(each_alone, 2, tokenizer) == [True, True]


def different_suites(rank, tokenizer):
    with pytest.raises(EvaluationError, match="the ranks differ in the suite's fingerprint"):
        Scorer(make_llama(), tokenizer, Suite("tiny", [make_task("boxes", 8 + rank)]))


def test_ranks_that_ask_different_questions_are_refused(tokenizer):
    run_ranks(different_suites, 2, tokenizer)


def other_meshes(rank, tokenizer):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    suite = Suite("tiny", [make_task("boxes", 2)])
    for name, words in (("dp_cp", "context parallel"), ("pp", "pipeline parallel"), ("sp", "sequence parallel")):
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=(name,))
        with pytest.raises(SetupError, match=rf"dimension '{name}' of 2 ranks \({words}\), and only data-parallel"):
            Scorer(fully_shard(make_llama(), mesh=mesh), tokenizer, suite)
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("cp", "dp"))
    assert Scorer(fully_shard(make_llama(), mesh=mesh["dp"]), tokenizer, suite).ranks.parts == 2


def test_ranks_that_see_parts_of_a_row_or_of_the_layers_are_refused_in_words(tokenizer):
    run_ranks(other_meshes, 2, tokenizer)


def gather_with_gaps(rank):
    values = np.array([1.5, float("nan"), -float("inf")])
    own = np.array([rank == 0, rank == 1, rank == 1])
    full = Ranks.current(torch.device("cpu")).gather(values, own)
    with pytest.raises(EvaluationError, match="1 of 3 log-likelihoods were not filled exactly once"):
        Ranks.current(torch.device("cpu")).gather(values, own & (np.arange(3) > 0))
    return full.tolist()


def test_the_gathered_array_is_asserted_full_and_keeps_nan():
    for full in run_ranks(gather_with_gaps, 2):
        np.testing.assert_array_equal(full, [1.5, float("nan"), -float("inf")])


def test_questions_are_spread_by_cost_in_runs():
    costs = np.array([5, 1, 1, 9, 3, 3, 2], dtype=float)
    ranks = share(costs, 3)
    assert (np.diff(ranks) >= 0).all()
    assert max(np.bincount(ranks, weights=costs)) <= 24 / 3 + 9 / 2 + 5 / 2
    assert np.bincount(share(np.ones(1000), 7), minlength=7).tolist() == pytest.approx([143] * 7, abs=1)
    assert share(np.ones(2), 4).tolist() == [1, 3]
    assert share(np.zeros(3), 4).tolist() == [0, 0, 0]
