"""refine= in a running Monitor: closer evaluations where MCF overtakes CF, the same ones however often it is restarted."""

import json
import logging
import math
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from parts import make_llama, make_task, make_tokenizer

sys.path += [str(Path(__file__).parent / folder) for folder in ("record", "scoring")]

from ranks import run_ranks
from synthetic import make_evaluation

from olmes_monitor import Monitor, Refine, Suite, load_run
from olmes_monitor.errors import RecordError, SetupError

EVERY, STEP, REGULAR, CROSSING = 1000, 125, 20, 12.4
STEPS = REGULAR * EVERY // STEP
SUITE = Suite("tiny", [make_task("boxes", 2)])
TOKENIZER = make_tokenizer(SUITE)


def scripted(monitor):
    """The same monitor, its model's answers made up: MCF rises by 40 points, 20 of them in the interval of the crossing."""

    def evaluate(point, progress=None):
        at = point.tokens / EVERY
        levels = {"arc_easy": (0.5, 0.3 + 0.4 / (1 + math.exp(-2 * (at - CROSSING)))), "csqa": (0.5, 0.25)}
        return make_evaluation(point.tokens, levels, n=200, step=point.step, fingerprint=SUITE.fingerprint)

    monitor.scorer.evaluate = evaluate
    monitor.planned_steps = STEPS
    return monitor


def make(out, refine=True, **settings):
    settings = {"every": EVERY, "suite": SUITE, "console": False, "refine": refine, **settings}
    return scripted(Monitor(make_llama(num_hidden_layers=1), TOKENIZER, out=out, **settings))


def train(monitor, steps=STEPS, tokens=STEP):
    """Train on until `steps` have been taken; the evaluations' tokens."""
    evaluations = [monitor.start()] + [monitor.step(tokens=tokens) for _ in range(monitor.steps, steps)]
    return [evaluation.point.tokens for evaluation in evaluations if evaluation is not None]


def points(out):
    return [evaluation.point.tokens for evaluation in load_run(out).evaluations]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The points of a run that was never interrupted."""
    return train(make(tmp_path_factory.mktemp("whole")))


def extra(found):
    return [tokens for tokens in found if tokens % EVERY]


REGULAR_POINTS = [i * EVERY for i in range(REGULAR + 1)]


def test_evaluations_come_closer_around_the_crossing_and_nowhere_else(whole):
    assert set(REGULAR_POINTS) <= set(whole)
    assert 4 <= len(extra(whole)) <= 0.3 * REGULAR
    near = [tokens for tokens in extra(whole) if abs(tokens / EVERY - CROSSING) < 1.5]
    assert len(near) >= 4
    gaps = [b - a for a, b in pairwise(whole)]
    assert min(gaps) == EVERY // 8
    assert all(gap == EVERY for gap, start in zip(gaps, whole, strict=False) if start >= 15 * EVERY)


def test_off_by_default_it_is_the_regular_schedule(tmp_path):
    assert train(make(tmp_path, refine=False)) == REGULAR_POINTS
    assert "refine" not in make(tmp_path, refine=False).state_dict()


def test_floor_and_cap_hold(tmp_path):
    found = train(make(tmp_path / "floor", refine=Refine(floor=EVERY // 2)))
    assert extra(found)
    assert all(tokens % (EVERY // 2) == 0 for tokens in found)
    found = train(make(tmp_path / "cap", refine=Refine(cap=0.1)))
    assert 0 < len(extra(found)) <= 0.1 * REGULAR


def test_further_points_of_the_schedule_stay_and_do_not_count_against_the_cap(tmp_path):
    at = [2 * STEP + i * EVERY for i in range(9)]
    found = train(make(tmp_path, at=at))
    assert {*REGULAR_POINTS, *at} <= set(found)
    assert 4 <= len(set(extra(found)) - set(at)) <= 0.3 * REGULAR


@pytest.mark.parametrize("stop", [i * EVERY // STEP + 3 for i in (5, 12, 13)])
@pytest.mark.parametrize("state", ["saved", "lost"])
def test_a_resumed_run_evaluates_where_an_uninterrupted_one_does(whole, tmp_path, stop, state):
    """lost: a callback that a checkpoint knows nothing of; the record tells."""
    first = make(tmp_path)
    train(first, stop)
    kept = json.loads(json.dumps(first.state_dict()))
    assert kept["refine"]["last"] <= kept["tokens"]
    if state == "lost":
        kept = {name: kept[name] for name in ("tokens", "step")}
    second = make(tmp_path)
    second.load_state_dict(kept)
    train(second)
    assert points(tmp_path) == whole
    assert load_run(tmp_path).superseded == []


def test_a_run_that_goes_back_to_an_older_checkpoint_repeats_its_points(whole, tmp_path):
    first = make(tmp_path)
    train(first, 11 * EVERY // STEP + 3)
    old = first.state_dict()
    for _ in range(3 * EVERY // STEP):
        first.step(tokens=STEP)
    second = make(tmp_path)
    second.load_state_dict(old)
    train(second)
    assert points(tmp_path) == whole
    assert len(load_run(tmp_path).superseded) >= 5


def test_an_extra_evaluation_that_was_never_finished_is_owed(whole, tmp_path):
    """Killed while it evaluated, after the checkpoint of that step was written."""
    first, missing = make(tmp_path), extra(whole)[-1]
    train(first, missing // STEP - 1)
    kept = first.state_dict() | {"tokens": missing, "step": missing // STEP}
    second = make(tmp_path)
    second.load_state_dict(kept)
    assert second.start().point.tokens == missing


def test_where_no_verdict_can_be_had_evaluations_stay_regular(tmp_path, monkeypatch, caplog):
    def unreadable(*args, **kwargs):
        raise RecordError("the disk is gone")

    monkeypatch.setattr("olmes_monitor.record.verdicts.load_run", unreadable)
    with caplog.at_level(logging.WARNING, "olmes_monitor"):
        assert train(make(tmp_path)) == REGULAR_POINTS
    assert "the disk is gone" in caplog.text


def test_a_decision_that_fails_is_told_and_training_goes_on(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("olmes_monitor.zoom.leads_of", lambda *_: 1 / 0)
    with caplog.at_level(logging.WARNING, "olmes_monitor"):
        assert train(make(tmp_path)) == REGULAR_POINTS
    assert "evaluations stay regular from 12,000 tokens: ZeroDivisionError" in caplog.text


def on_a_rank(rank, out):
    return train(make(out), tokens=STEP if rank == 0 else 0)


def test_two_ranks_evaluate_at_the_same_points_and_those_of_one(whole, tmp_path):
    assert run_ranks(on_a_rank, 2, tmp_path) == [whole, whole]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"every": "geometric:100M,1.2"}, 'give every as a number of tokens, as every="1B"'),
        ({"every": None, "at": [100]}, "give every as a number of tokens"),
        ({"refine": Refine(floor=2 * EVERY)}, "floor of the refined spacing"),
        ({"refine": Refine(cap=-1)}, "cap on extra evaluations"),
        ({"refine": 0.3}, "refine takes True, False or Refine"),
        ({"formulations": ("cf",)}, "leave both in formulations"),
    ],
)
def test_what_does_not_fit_is_refused_before_training(tmp_path, settings, words):
    with pytest.raises(SetupError, match=words):
        make(tmp_path, **settings)


def test_the_first_line_says_it_and_a_small_suite_is_told_so(tmp_path, caplog):
    assert "up to 30% more of them where MCF is about to overtake CF" in make(tmp_path).describe()
    assert "more of them" not in make(tmp_path, refine=False).describe()
    with caplog.at_level(logging.INFO, "olmes_monitor"):
        make(tmp_path).start()
    assert "2 questions resolve a gap of" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, "olmes_monitor"):
        make(tmp_path / "cf", refine=False, formulations=("cf",)).start()
    assert "resolve" not in caplog.text
