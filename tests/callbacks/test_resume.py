"""Killed at any moment and started again, a run has one curve: no point missing, none twice, the token axis unbroken."""

import json

import pytest
from mortal import BATCH, TRAINERS, live

from olmes_monitor import load_run

WHOLE = [(0, 0), (2 * BATCH, 2), (4 * BATCH, 4), (6 * BATCH, 6), (8 * BATCH, 8)]
"""Evaluated every second step; saved at the third and the sixth."""

MOMENTS = {
    # moment: the steps that are evaluated again, since training goes back behind them
    ("training", 4): [],  # before an evaluation
    ("evaluation", 4): [],  # during one
    ("evaluation", 6): [4],  # during one on a step that is saved as well
    ("logged", 6): [4, 6],  # after it, before the checkpoint of its step
    ("training", 7): [],  # after both
    ("evaluation", 8): [],  # in the last of all
}


def points(evaluations):
    return [(e.point.tokens, e.point.step) for e in evaluations]


@pytest.mark.slow
@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: f"{moment[0]} {moment[1]}")
def test_a_killed_run_resumes_to_one_whole_curve(trainer, moment, tmp_path):
    assert live(trainer, tmp_path, moment) == -9
    before = points(load_run(tmp_path).evaluations)
    assert before == [point for point in WHOLE if point[1] < moment[1] + (moment[0] == "logged")]
    assert live(trainer, tmp_path) == 0
    run = load_run(tmp_path)
    assert points(run.evaluations) == WHOLE
    assert [e.point.step for e in run.superseded] == MOMENTS[moment][::-1]
    assert {e.attempt for e in run.superseded} <= {1}
    resumed_at = 3 if moment[1] <= 6 else 6
    assert [e.attempt for e in run.evaluations] == [1 if step <= resumed_at else 2 for _, step in WHOLE]


@pytest.mark.slow
@pytest.mark.parametrize("trainer", TRAINERS)
def test_killed_while_it_evaluates_a_saved_checkpoint_it_owes_that_point_still(trainer, tmp_path):
    """at_checkpoints: the checkpoint is written before its evaluation, and knows nothing of it."""
    settings = {"at_checkpoints": True, "at_start": False}
    assert live(trainer, tmp_path, ("evaluation", 3), **settings) == -9
    assert live(trainer, tmp_path, **settings) == 0
    run = load_run(tmp_path)
    assert [e.point.step for e in run.evaluations] == [2, 3, 4, 6, 8]
    assert run.superseded == []
    saved = {e.point.step: e.point.checkpoint for e in run.evaluations}
    assert saved[6] is not None
    assert saved[2] is saved[4] is None


@pytest.mark.slow
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_finished_run_started_again_repeats_nothing(trainer, tmp_path):
    assert live(trainer, tmp_path) == live(trainer, tmp_path) == 0
    run = load_run(tmp_path)
    assert points(run.evaluations) == WHOLE
    # The loop by hand and Lightning saved the sixth step last, and train the rest again; transformers saves its last step.
    assert [e.point.step for e in run.superseded] == ([] if trainer == "transformers" else [8])
    lines = (tmp_path / "olmes" / "evaluations.jsonl").read_text().splitlines()
    assert {json.loads(line).get("amends", "") != "" for line in lines} == {True, False}
