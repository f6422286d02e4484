"""Two recorded runs compared: task by task and on average, in words, and only over the same questions."""

from __future__ import annotations

import pytest
from synthetic import failed_evaluation, make_evaluation

import olmes_monitor
from olmes_monitor import load_run
from olmes_monitor.errors import RecordError
from olmes_monitor.measure.compare import Comparison
from olmes_monitor.measure.crossover import Crossover
from olmes_monitor.record import Recorder
from olmes_monitor.record.compare import compare_crossovers, comparison_line

BILLION = 10**9


def make_run(folder, rise, cf=0.45, **settings):
    """arc_easy and csqa: MCF rises by `rise` an evaluation from 0.25, and crosses CF where it gets there."""
    recorder = Recorder(folder)
    for i in range(16):
        shares = {task: (cf, min(0.25 + rise * i, 0.9)) for task in ("arc_easy", "csqa")}
        recorder.write(make_evaluation((i + 1) * BILLION, shares, n=120, **settings))
    recorder.write(failed_evaluation(17 * BILLION, **{k: v for k, v in settings.items() if k == "fingerprint"}))
    return load_run(folder)


def test_the_faster_run_crossed_earlier_on_each_task_and_on_average(tmp_path):
    a, b = make_run(tmp_path / "a", 0.02), make_run(tmp_path / "b", 0.04)
    found = olmes_monitor.compare_crossovers(a, b)
    assert list(found) == ["arc_easy", "csqa", "average"]
    for task, comparison in found.items():
        assert comparison.tokens == b.crossovers()[task].tokens - a.crossovers()[task].tokens < 0
        assert comparison.lo <= comparison.tokens <= comparison.hi
        line = comparison_line(comparison, "slow", "fast")
        assert line.startswith("fast crossed ")
        assert "tokens earlier [" in line
        assert f"on {task}" in line
    # MCF gains 20 points on CF in 10 evaluations or in 5
    assert found["average"].tokens == pytest.approx(-5 * BILLION, abs=1.5 * BILLION)


def test_undefined_where_one_has_not_crossed_and_said_so(tmp_path):
    a, b = make_run(tmp_path / "a", 0.04), make_run(tmp_path / "b", 0.001)
    found = compare_crossovers(a, b)["arc_easy"]
    assert found.tokens is None
    line = comparison_line(found)
    assert line == "no difference in tokens on arc_easy, since not both crossed (B: not reached, A crossed)"


def test_other_questions_are_refused_by_name(tmp_path):
    a, b = make_run(tmp_path / "a", 0.04), make_run(tmp_path / "b", 0.04, fingerprint="fedcba9876543210")
    with pytest.raises(RecordError, match=r"same questions only.*0123456789abcdef.*fedcba9876543210"):
        compare_crossovers(a, b)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "evaluations.jsonl").touch()
    with pytest.raises(RecordError, match="no evaluations"):
        compare_crossovers(load_run(tmp_path / "empty"), load_run(tmp_path / "empty"))


def test_the_sentence():
    crossed, early = Crossover("confirmed", 100), Crossover("tentative", 90)

    def line(tokens, lo, hi, a=crossed, b=crossed):
        ends = [None if end is None else end * BILLION for end in (tokens, lo, hi)]
        return comparison_line(Comparison("arc_easy", a, b, *ends))

    assert line(-61, -104, -22) == "B crossed 61B tokens earlier [22B, 104B] on arc_easy"
    assert line(61, 22, 104) == "B crossed 61B tokens later [22B, 104B] on arc_easy"
    assert line(-3, -26, 20) == "B crossed 3B tokens earlier [−20B, 26B] on arc_easy (no clear difference)"
    assert line(3, None, 20) == "B crossed 3B tokens later […, 20B] on arc_easy (no clear difference)"
    assert line(-3, None, -1, b=early) == "B crossed 3B tokens earlier [1B, …] on arc_easy (B not yet confirmed)"
