"""A run in a terminal as it goes on: a row a task with both curves, and the verdicts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from olmes_monitor.record.run import AVERAGE
from olmes_monitor.report.curves import OWN, Curve, Source
from olmes_monitor.report.sparkline import common_range, sparkline
from olmes_monitor.report.words import crossover_line, format_tokens, interval_words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from olmes_monitor.measure.crossover import Crossover

NARROW = 8
"""Characters of a sparkline below which it says nothing."""


def follow_view(source: Source, width: int, now: float | None = None) -> RenderableType:
    """The headline's verdict, the table, and when the latest evaluation was; fits `width` columns from 72 on.

    The upper sparkline of a task is CF, the lower MCF, both on one scale. now: seconds since the epoch, to say how long
    ago that was; left out without it.
    """
    from rich.console import Group
    from rich.text import Text

    lines: list[RenderableType] = [Text(_title(source), style="bold")]
    if source.headline is not None:
        words = crossover_line(*source.headline)
        lines.append(Text(words[:1].upper() + words[1:]))
    if source.curves:
        lines.append(_table(source, width))
    lines += [Text(line, style="yellow") for line in _problems(source)]
    lines.append(Text(_latest(source, now), style="dim"))
    return Group(*lines)


def _title(source: Source) -> str:
    if source.run is None or not source.run.evaluations:
        return f"{source.name}: no evaluation yet"
    last = source.run.evaluations[-1].point
    count = len(source.run.evaluations)
    return (
        f"{source.name} · suite {source.run.suite} · {count} evaluation{'s' if count != 1 else ''} · "
        f"{format_tokens(last.tokens)} tokens, step {last.step:,}"
    )


def _table(source: Source, width: int) -> RenderableType:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    table.add_column("task", no_wrap=True)
    room = width - 62 - max(4, *(len(task) for task in source.curves))
    columns = max(NARROW, min(48, room))
    table.add_column("CF over MCF", no_wrap=True, min_width=columns)
    for name in ("now", "gap"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("crossing", no_wrap=True)
    for task, curve in source.curves.items():
        if task == AVERAGE:
            table.add_section()
        style = "bold" if task == AVERAGE else None
        lines, values = _lines(curve, columns)
        table.add_row(escape(task), lines, values, _gap(curve), _crossing(curve.crossovers.get(OWN)), style=style)
    return table


def _lines(curve: Curve, columns: int) -> tuple[RenderableType, RenderableType]:
    """Both sparklines, one above the other, and the latest values beside them."""
    from rich.text import Text

    forms = [("CF ", curve.cf[OWN], "cyan"), ("MCF", curve.mcf, "dark_orange")]
    low, high = common_range([values for _, values, _ in forms])
    lines, latest = Text(), Text(justify="right")
    for place, (_, values, colour) in enumerate(forms):
        lines.append(sparkline(values, columns, low, high) + ("\n" if place == 0 else ""), style=colour)
        known = values[np.isfinite(values)]
        shown = f"{100 * known[-1]:.1f}" if len(known) else "–"
        latest.append(shown + ("\n" if place == 0 else ""), style=colour)
    return lines, latest


def _gap(curve: Curve) -> str:
    gap = curve.mcf - curve.cf[OWN]
    known = np.flatnonzero(np.isfinite(gap))
    if not len(known):
        return "–"
    error = curve.gap_error[OWN][known[-1]]
    text = f"{100 * gap[known[-1]]:+.1f}".replace("-", "−") + (f" ± {100 * error:.1f}" if np.isfinite(error) else "")
    return f"[green]{text}[/green]" if gap[known[-1]] > 0 else text


def _crossing(found: Crossover | None) -> str:
    if found is None:
        return "no verdict"
    state = found.state.replace("_", " ")
    if found.tokens is None:
        return state
    between = interval_words(found)
    return f"{format_tokens(found.tokens)}, {state}" + (f"\n{between}" if between else "")


def _problems(source: Source) -> list[str]:
    if source.run is None or not source.run.evaluations:
        return []
    return [f"{task} has no value: {problem}" for task, problem in source.run.evaluations[-1].problems.items()]


def _latest(source: Source, now: float | None) -> str:
    if source.run is None or not source.run.evaluations:
        return "waiting for the first evaluation; Ctrl-C ends"
    if now is None:
        return "upper line CF, lower MCF; percent, ± 1 standard error"
    last = source.run.evaluations[-1]
    parts = [f"latest evaluation {_ago(now - last.point.time)}"] if last.point.time else []
    if "seconds" in last.cost:
        parts.append(f"it took {last.cost['seconds']:.1f} s")
    return "; ".join([*parts, f"looked at {time.strftime('%H:%M:%S', time.localtime(now))}", "Ctrl-C ends"])


def _ago(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 0):.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 5400 else f"{seconds / 3600:.1f} h ago"
