"""What is drawn of a record equals the record's own numbers, computed another way."""

import numpy as np
import pytest
from made_runs import NASTY

from olmes_monitor.measure import find_crossover
from olmes_monitor.measure.choices import read_choices
from olmes_monitor.record import load_run
from olmes_monitor.report.curves import SAMPLES, read_run


@pytest.fixture(scope="module")
def run(runs):
    return load_run(runs / "early")


@pytest.fixture(scope="module")
def source(run):
    return read_run(run, "early")


def test_every_normalization_equals_what_each_evaluation_recorded(run, source):
    for task, curve in source.curves.items():
        if task == "average":
            continue
        assert set(curve.cf) - {"olmes"} == set(run.evaluations[0].tasks[task]["cf_by_normalization"]) - {
            curve.normalization
        }
        for kind, values in curve.cf.items():
            name = curve.normalization if kind == "olmes" else kind
            recorded = [e.tasks[task]["cf_by_normalization"][name] for e in run.evaluations]
            np.testing.assert_allclose(values, recorded, atol=1e-12)


def test_errors_are_paired_and_crossings_follow_the_normalization(run, source):
    curve = source.curves["csqa"]
    last = read_choices(run.scores(len(run.evaluations) - 1))["csqa"]
    difference = last.correct("mcf", "none") - last.correct("cf", "token")
    expected = difference.std(ddof=1) / np.sqrt(len(difference))
    assert curve.gap_error["token"][-1] == pytest.approx(expected)
    right = [read_choices(run.scores(i))["csqa"] for i in range(len(run.evaluations))]
    found = find_crossover(
        curve.tokens,
        np.stack([c.correct("cf", "token") for c in right]),
        np.stack([c.correct("mcf", "none") for c in right]),
        steps=curve.steps,
        floor=run.correct("csqa").guesses,
        samples=SAMPLES,
    )
    assert curve.crossovers["token"] == found
    assert curve.crossovers["olmes"] == run.crossovers()["csqa"]


def test_the_average_has_the_normalizations_that_all_tasks_have(source):
    parts = [curve for task, curve in source.curves.items() if task != "average"]
    average = source.curves["average"]
    for kind in ("none", "char", "bayes"):
        each = [curve.cf[kind if kind in curve.cf else "olmes"] for curve in parts]
        np.testing.assert_allclose(average.cf[kind], np.mean(each, axis=0))
    assert list(source.curves)[-1] == "average"


def test_subjects_are_mmlus_and_their_mean_is_the_tasks(run, source):
    assert list(source.subjects) == ["mmlu"]
    assert len(source.subjects["mmlu"]) == 57
    mean = np.mean([curve.mcf for curve in source.subjects["mmlu"].values()], axis=0)
    np.testing.assert_allclose(mean, source.curves["mmlu"].mcf)


def test_the_headline_is_the_averages_or_the_only_tasks(source):
    assert source.headline == ("average", source.curves["average"].crossovers["olmes"])
    del (one := {**source.curves})["average"]
    assert type(source)("x", {NASTY: one[NASTY]}).headline[0] == NASTY


def test_a_long_run_is_not_kept_in_memory(run, source):
    assert all(evaluation.scores is None for evaluation in load_run(run.folder).evaluations)
    fresh = load_run(run.folder)
    read_run(fresh, "x")
    assert all(evaluation.scores is None for evaluation in fresh.evaluations)


def test_failed_evaluations_and_forms_that_were_not_asked_leave_gaps_not_errors(tmp_path):
    from synthetic import failed_evaluation, make_evaluation, rows, table

    from olmes_monitor.measure import summarize
    from olmes_monitor.record import Evaluation, Point, Recorder

    recorder = Recorder(tmp_path)
    recorder.write(make_evaluation(10**9, {"arc_easy": (0.4, 0.2)}))
    recorder.write(failed_evaluation(2 * 10**9))
    recorder.write(make_evaluation(3 * 10**9, {"arc_easy": (0.4, 0.6)}))
    curve = read_run(load_run(tmp_path), "x").curves["arc_easy"]
    assert curve.tokens.tolist() == [10**9, 3 * 10**9]
    assert len(curve.cf["none"]) == 2

    cloze = tmp_path / "cloze"
    scores = table(rows("arc_easy", [0, 1], cf=[[-1.0, -2.0], [-1.0, -2.0]]))
    facts, metrics, problems = summarize(scores, {"arc_easy": "char"})
    Recorder(cloze).write(Evaluation(Point(10**9), "mine", "f" * 16, scores, metrics, facts, problems))
    source = read_run(load_run(cloze), "x")
    assert source.curves["arc_easy"].crossovers == {}
    assert source.headline is None
    assert np.isnan(source.curves["arc_easy"].mcf).all()
