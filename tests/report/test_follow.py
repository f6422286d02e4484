"""The live table: sparklines that show the curves, a verdict in words, a width that fits."""

import io

import numpy as np
import pytest
from made_runs import NASTY
from rich.console import Console

from olmes_monitor.record import load_run
from olmes_monitor.report.curves import Source, read_run
from olmes_monitor.report.follow import follow_view
from olmes_monitor.report.sparkline import LEVELS, common_range, sparkline
from olmes_monitor.report.watch import changes


def shown(source, width, now=None):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(follow_view(source, width, now))
    return console.file.getvalue()


def test_a_sparkline_spans_its_range_and_leaves_gaps():
    assert sparkline([0, 0.5, 1], 10, 0, 1) == "▁▅█"
    assert sparkline([0, np.nan, 1], 10, 0, 1) == "▁·█"
    assert sparkline([0.0, 0.0, 1.0, 1.0], 2, 0, 1) == "▁█", "two values a character"
    assert sparkline([3, 3], 10, 3, 3) == "▅▅"
    assert sparkline([], 10, 0, 1) == ""
    assert common_range([[np.nan, 1], [0.5]]) == (0.5, 1.0)


@pytest.mark.parametrize("width", [80, 120])
def test_both_curves_of_every_task_fit_the_width_uncut(runs, width):
    source = read_run(load_run(runs / "early"), "early", others=False)
    del source.curves[NASTY]  # too long a name for any table
    text = shown(source, width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    lines = text.splitlines()
    place = next(i for i, line in enumerate(lines) if line.strip().startswith("csqa"))
    cf, mcf = (next(word for word in lines[i].split() if set(word) & set(LEVELS)) for i in (place, place + 1))
    assert mcf[0] == "▁"
    assert mcf[-1] == "█"
    assert cf != mcf


def test_it_says_the_verdict_and_how_long_ago_the_latest_evaluation_was(runs):
    run = load_run(runs / "early")
    text = shown(read_run(run, "early", others=False), 110, now=run.evaluations[-1].point.time + 600)
    assert "MCF overtook CF on average at" in text
    assert "latest evaluation 10 min ago; it took 11.0 s" in text
    run.evaluations[-1].problems["csqa"] = "mcf: 3 of 60 questions [/bold] have NaN"
    assert "csqa has no value: mcf: 3 of 60 questions [/bold] have NaN" in shown(read_run(run, "e", others=False), 110)


def test_before_the_first_evaluation_it_waits():
    assert "waiting for the first evaluation" in shown(Source("x", {}), 80)


def test_changes_are_seen_when_lines_are_added_and_not_else(tmp_path):
    seen, naps = [], []

    def nap(seconds):
        naps.append(seconds)
        if len(naps) in (2, 4):
            with (tmp_path / "evaluations.jsonl").open("a") as file:
                file.write("{}\n")

    for changed in changes([tmp_path], 7, sleep=nap):
        seen.append(changed)
        if len(seen) == 6:
            break
    assert seen == [True, False, True, False, True, False]
    assert set(naps) == {7}
