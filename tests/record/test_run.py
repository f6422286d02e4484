import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from synthetic import failed_evaluation, make_evaluation

from olmes_monitor.errors import RecordError
from olmes_monitor.measure.accuracy import mean
from olmes_monitor.record import Recorder, load_run

CURVE = [(0.3, 0.1), (0.4, 0.2), (0.5, 0.6), (0.5, 0.8)]
"""(CF, MCF) at 1, 2, 3 and 4 billion tokens."""


@pytest.fixture
def run(tmp_path):
    recorder = Recorder(tmp_path / "lr=0.1" / "olmes")  # a folder name that a Parquet dataset would read as a column
    for billions, (cf, mcf) in enumerate(CURVE, start=1):
        shares = {"arc_easy": (cf, mcf), "csqa": (cf, cf - 0.2), "mmlu": (cf, mcf + 0.05)}
        recorder.write(make_evaluation(billions * 10**9, shares))
    return load_run(tmp_path / "lr=0.1")


def test_frame_has_a_row_for_each_evaluation_and_task(run):
    frame = run.frame()
    assert list(frame.groupby("task", sort=False).size().items()) == [
        ("arc_easy", 4),
        ("csqa", 4),
        ("mmlu", 4),
        ("average", 4),
    ]
    for row in frame.itertuples():
        metrics = next(e.metrics for e in run.evaluations if e.point.tokens == row.tokens)
        assert row.cf == metrics[f"olmes/cf/{row.task}"]
        assert row.stderr_gap == metrics[f"olmes/stderr/gap/{row.task}"]
    assert frame["step"].tolist() == [250 * billions for billions in (1, 2, 3, 4) for _ in range(4)]
    assert frame["floor"].notna().all()


def test_frame_has_the_smooth_signals_and_their_means(run):
    frame, first = run.frame().set_index("task"), run.evaluations[0].tasks
    for name in ("gold_probability_cf", "gold_probability_mcf", "bits_per_byte"):
        values = [first[task][name] for task in ("arc_easy", "csqa", "mmlu")]
        assert frame.query("tokens == 10**9")[name].tolist() == pytest.approx([*values, np.mean(values)])


def test_correct_agrees_with_the_logged_metrics(run):
    for task in ("arc_easy", "csqa", "mmlu"):
        right = run.correct(task)
        assert right.cf.shape == (4, 60)
        np.testing.assert_array_equal(right.tokens, np.arange(1, 5) * 10**9)
        for index, evaluation in enumerate(run.evaluations):
            assert mean(right.cf[index], right.subjects) == pytest.approx(evaluation.metrics[f"olmes/cf/{task}"])
            assert mean(right.mcf[index], right.subjects) == pytest.approx(evaluation.metrics[f"olmes/mcf/{task}"])
    assert len(set(run.correct("mmlu").subjects)) == 6


def test_crossovers_and_their_errors_are_those_that_were_logged(run):
    found = run.crossovers()
    assert list(found) == ["arc_easy", "csqa", "mmlu", "average"]
    assert found["arc_easy"].state == "tentative"
    assert 2e9 < found["arc_easy"].tokens < 3e9
    assert 500 < found["arc_easy"].step < 750
    assert found["csqa"].state == "not_reached"
    for task, crossover in found.items():
        for name, values in (("gap", crossover.gap), ("stderr/gap", crossover.stderr)):
            logged = [evaluation.metrics[f"olmes/{name}/{task}"] for evaluation in run.evaluations]
            np.testing.assert_allclose(values, logged, atol=1e-12)


def test_failed_evaluations_leave_a_gap_not_a_zero(run):
    Recorder(run.folder).write(failed_evaluation(5 * 10**9))
    again = load_run(run.folder)
    assert len(again.frame()) == len(run.frame())
    assert np.isnan(again.correct("arc_easy").mcf[-1]).all()
    assert again.crossovers()["arc_easy"] == run.crossovers()["arc_easy"]


def test_a_run_without_evaluations_is_empty_not_an_error(tmp_path):
    (tmp_path / "evaluations.jsonl").write_text("")
    run = load_run(tmp_path)
    assert (run.evaluations, run.crossovers(), run.suite) == ([], {}, "")
    assert run.frame().empty
    assert isinstance(run.frame(), pd.DataFrame)


def test_unknown_tasks_and_missing_tables_are_named(run):
    with pytest.raises(RecordError, match=r"no scores of task 'piqa' .* tasks: arc_easy, csqa, mmlu"):
        run.correct("piqa")
    next((run.folder / "scores").iterdir()).unlink()
    with pytest.raises(RecordError, match="cannot read the scores"):
        load_run(run.folder).crossovers()


def test_other_questions_under_one_fingerprint_are_refused(run):
    Recorder(run.folder).write(make_evaluation(5 * 10**9, {"arc_easy": (0.5, 0.5)}, n=59))
    with pytest.raises(RecordError, match="different questions of arc_easy"):
        load_run(run.folder).correct("arc_easy")


def test_one_formulation_alone_has_no_crossover(tmp_path):
    from synthetic import answered, rows, table

    from olmes_monitor.measure import summarize
    from olmes_monitor.record import Evaluation, Point

    recorder = Recorder(tmp_path)
    for tokens in (1, 2):
        scores = table(rows("arc_easy", [0] * 6, answered([0] * 6, [True] * 3 + [False] * 3)))
        tasks, metrics, problems = summarize(scores, {"arc_easy": "char"})
        recorder.write(Evaluation(Point(tokens), "own", "ff", scores, metrics, tasks, problems))
    run = load_run(tmp_path)
    assert run.crossovers() == {}
    assert run.correct("arc_easy").mcf is None
    assert run.frame()["mcf"].isna().all()


def test_plot_saves_what_it_returns(run, tmp_path):
    figure = run.plot(tmp_path / "curves.svg")
    assert len([axes for axes in figure.axes if axes.get_visible()]) == 4
    assert (tmp_path / "curves.svg").read_text().lstrip().startswith("<?xml")


def test_importing_the_record_is_cheap():
    code = "import sys, olmes_monitor.record; print({'torch', 'pyarrow', 'pandas', 'matplotlib'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
