"""A bar on a terminal, a line now and then elsewhere, nothing where nobody looks."""

import io

import pytest
from rich.console import Console

from olmes_monitor.errors import EvaluationError
from olmes_monitor.report import progress
from olmes_monitor.report.progress import show_progress


def test_a_terminal_shows_a_bar_that_is_gone_afterwards():
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with show_progress(console, "OLMES at 1B tokens") as report:
        report(50, 100, "boxes cf")
    shown = console.file.getvalue()
    assert "boxes cf" in shown
    assert "50%" in shown
    assert "\x1b[2K" in shown, "the bar is not erased"


def test_elsewhere_a_line_now_and_then(monkeypatch):
    clock = iter([0.0, 1.0, 31.0, 31.0, 32.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    console = Console(file=io.StringIO(), force_terminal=False, width=80)
    with show_progress(console, "OLMES at 1B tokens") as report:
        report(10, 100, "boxes cf")
        report(40, 100, "boxes mcf")
        report(50, 100, "balls cf")
    assert console.file.getvalue().splitlines() == ["OLMES at 1B tokens · boxes mcf: 40%"]


def test_without_a_console_nothing_is_shown():
    with show_progress(None, "OLMES") as report:
        report(10, 100, "boxes cf")


def test_a_stop_ends_the_evaluation_with_a_console_and_without():
    asked = iter([False, True, False, True])
    for console in (None, Console(file=io.StringIO(), force_terminal=False)):
        with show_progress(console, "OLMES", lambda: next(asked)) as report:
            report(10, 100, "boxes cf")
            with pytest.raises(EvaluationError, match="training is to stop"):
                report(20, 100, "boxes cf")
