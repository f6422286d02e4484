"""Both curves of every task against tokens, as a matplotlib figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from olmes_monitor.errors import SetupError
from olmes_monitor.record.run import AVERAGE
from olmes_monitor.report.words import format_tokens

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from olmes_monitor.measure.crossover import Crossover
    from olmes_monitor.record.run import Run

# Blue and vermilion of Okabe and Ito's palette: apart for every common colour blindness. Line and marker differ too,
# so the chart also reads in grey.
STYLES: Mapping[str, Mapping[str, Any]] = {
    "cf": {"color": "#0072B2", "linestyle": (0, (5, 1.5)), "marker": "o", "label": "CF (cloze)"},
    "mcf": {"color": "#D55E00", "linestyle": "-", "marker": "s", "label": "MCF (multiple choice)"},
}
LEFT = 0.62
"""Inches left of the charts."""

INK, QUIET, GRID = "#222222", "#6b6b6b", "#e6e6e6"


def plot_run(run: Run, tasks: Sequence[str] | None = None) -> Figure:
    """One small chart a task and one for the average: CF and MCF with bands of one standard error, floor, crossing.

    tasks: which, in this order ("average" too); all by default. No pyplot: no backend, no global state is touched.
    Raises SetupError for a task the run has not.
    """
    from matplotlib.figure import Figure

    frame = run.frame()
    known = [task for task in [*run.tasks, AVERAGE] if task in set(frame["task"])]
    if len(run.tasks) == 1 and tasks is None:
        known = run.tasks  # the average of one task is that task
    shown = list(known if tasks is None else tasks)
    if unknown := [task for task in shown if task not in known]:
        raise SetupError(f"no task {', '.join(unknown)} in {run!r}; tasks: {', '.join(known) or 'none'}")

    figure = Figure(dpi=150, facecolor="white")
    grid = _grid(figure, len(shown))
    crossovers = run.crossovers()
    for axes, task in zip(grid, shown, strict=True):
        _draw_task(axes, frame[frame["task"] == task], task, crossovers.get(task))
    _head(figure, run, grid)
    return figure


def _grid(figure: Figure, charts: int) -> list[Axes]:
    """Places for the charts, in at most four columns, below room for the heading. Lengths are in inches."""
    columns = max(1, min(4, math.ceil(math.sqrt(charts))))
    rows = max(1, math.ceil(charts / columns))
    width, height = max(3.3 * columns, 5.6), 2.5 * rows + 1.25
    figure.set_size_inches(width, height)
    grid = figure.subplots(rows, columns, squeeze=False)
    figure.subplots_adjust(
        left=LEFT / width,
        right=1 - 0.22 / width,
        bottom=0.52 / height,
        top=1 - 1.3 / height,
        hspace=0.6,
        wspace=0.24,
    )
    for place, axes in enumerate(grid.flat):
        axes.set_visible(place < charts)
        if place % columns == 0:
            axes.set_ylabel("accuracy, %", color=QUIET, fontsize=8)
        if place + columns >= charts:  # nothing below it
            axes.set_xlabel("tokens", color=QUIET, fontsize=8)
    return list(grid.flat)[:charts]


def _draw_task(axes: Axes, rows: pd.DataFrame, task: str, crossover: Crossover | None) -> None:
    tokens = rows["tokens"].to_numpy()
    for name, style in STYLES.items():
        value, error = 100 * rows[name].to_numpy(), 100 * rows[f"stderr_{name}"].to_numpy()
        if np.isfinite(value).any():
            spacing = max(1, len(tokens) // 12)  # markers tell the curves apart; one on each of 200 points hides them
            axes.plot(tokens, value, linewidth=1.6, markersize=3.2, markevery=spacing, zorder=3, **style)
            axes.fill_between(tokens, value - error, value + error, color=style["color"], alpha=0.16, linewidth=0)
    floor = rows["floor"].dropna()
    if len(floor):
        axes.axhline(100 * floor.iloc[-1], color=QUIET, linestyle=(0, (1, 1.6)), linewidth=1.1, label="floor", zorder=1)
    axes.set_title(task, loc="left", fontsize=9.5, fontweight="bold", color=INK, pad=16)
    axes.text(0, 1.035, _verdict(crossover), transform=axes.transAxes, fontsize=7.5, color=QUIET, va="bottom")
    if crossover is not None and crossover.tokens is not None:
        _mark(axes, crossover.tokens)
        if crossover.lo is not None and crossover.hi is not None:
            axes.axvspan(crossover.lo, crossover.hi, color=INK, alpha=0.08, linewidth=0, zorder=0)
    _dress(axes)


def _mark(axes: Axes, tokens: int) -> None:
    """A line at the crossing with its token count, written on the side that has room."""
    axes.axvline(tokens, color=INK, linewidth=0.8, zorder=2)
    low, high = axes.get_xlim()
    right = tokens < (low + high) / 2
    axes.annotate(
        format_tokens(tokens),
        (tokens, 1),
        xycoords=("data", "axes fraction"),
        xytext=(3 if right else -3, -1),
        textcoords="offset points",
        ha="left" if right else "right",
        va="top",
        fontsize=7.5,
        fontweight="bold",
        color=INK,
        zorder=4,
    )


def _verdict(crossover: Crossover | None) -> str:
    """The crossing in a few words, under a chart's title."""
    if crossover is None:
        return ""
    if crossover.tokens is not None:
        text = f"MCF ahead from {format_tokens(crossover.tokens)}"
        if crossover.lo is not None and crossover.hi is not None:
            text += f" ({format_tokens(crossover.lo)} – {format_tokens(crossover.hi)})"
        return text + (", tentative" if crossover.state == "tentative" else "")
    words = {
        "from_start": "MCF ahead from the start",
        "reverted": "MCF was ahead, and is no longer",
        "undecided": "undecided: too few evaluations",
    }
    return words.get(crossover.state, "not yet")


def _dress(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tokens, _: format_tokens(tokens) if tokens >= 0 else ""))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.margins(x=0.02)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#b5b5b5")
    axes.tick_params(colors=QUIET, labelsize=7.5, length=0)
    axes.tick_params(axis="x", length=2.5, color="#b5b5b5")


def _head(figure: Figure, run: Run, charts: Sequence[Axes]) -> None:
    """Title, and one legend for all charts."""
    from matplotlib.lines import Line2D

    width, height = figure.get_size_inches()
    left = LEFT / width
    figure.text(
        left, 1 - 0.16 / height, "CF and MCF while training", fontsize=13, fontweight="bold", color=INK, va="top"
    )
    name = f"suite {run.suite}, fingerprint {run.fingerprint[:12]}" if run.suite else "no evaluations yet"
    evaluations = f"{len(run.evaluations)} evaluation{'s' if len(run.evaluations) != 1 else ''}"
    figure.text(
        left, 1 - 0.43 / height, f"{name}, {evaluations}; bands: ± 1 standard error", fontsize=8, color=QUIET, va="top"
    )
    entries: dict[str, Any] = {}
    for axes in charts:
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
        if any(line.get_zorder() == 2 for line in axes.get_lines()):
            entries["crossover"] = Line2D([], [], color=INK, linewidth=0.9)
    order = [name for name in (*(style["label"] for style in STYLES.values()), "floor", "crossover") if name in entries]
    if order:
        figure.legend(
            [entries[name] for name in order],
            order,
            loc="upper left",
            bbox_to_anchor=(left, 1 - 0.66 / height),
            borderaxespad=0,
            borderpad=0,
            ncols=len(order),
            frameon=False,
            fontsize=8,
            labelcolor=INK,
            handlelength=2.6,
            columnspacing=1.6,
        )
