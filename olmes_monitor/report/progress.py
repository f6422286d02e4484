"""How far an evaluation is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from olmes_monitor.errors import EvaluationError

if TYPE_CHECKING:
    from rich.console import Console

    from olmes_monitor.scoring.score import Progress

LINE_SECONDS = 30.0
"""Seconds between two lines where there is no terminal."""


@contextmanager
def show_progress(console: Console | None, title: str, stop: Callable[[], bool] = lambda: False) -> Iterator[Progress]:
    """Gives the function an evaluation reports to. It shows nothing where there is no console (rank > 0, console=False), and
    raises EvaluationError once `stop` says so."""

    def watched(show: Progress) -> Progress:
        def report(done: int, total: int, where: str) -> None:
            if stop():
                raise EvaluationError("training is to stop")
            show(done, total, where)

        return report

    if console is None:
        yield watched(lambda done, total, where: None)
    elif console.is_terminal:
        with _bar(console, title) as show:
            yield watched(show)
    else:
        yield watched(_lines(console, title))


@contextmanager
def _bar(console: Console, title: str) -> Iterator[Progress]:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        item = bar.add_task(title)

        def report(done: int, total: int, where: str) -> None:
            bar.update(item, completed=done, total=total, description=f"{title} · {where}")

        yield report


def _lines(console: Console, title: str) -> Progress:
    last = time.monotonic()

    def report(done: int, total: int, where: str) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_SECONDS:
            last = time.monotonic()
            console.print(f"{title} · {where}: {done / max(total, 1):.0%}", highlight=False)

    return report
