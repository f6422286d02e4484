"""The picture: both curves of every task against tokens, as a matplotlib figure fit for print."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from olmes_monitor.errors import RecordError, SetupError
from olmes_monitor.record.run import AVERAGE
from olmes_monitor.report.curves import OWN, Curve, Source, read_run
from olmes_monitor.report.words import format_tokens, interval_words

if TYPE_CHECKING:
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
RUNS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8A6D00", "#56B4E9")
"""Where there are several runs, a colour is a run and the line alone tells the forms apart."""
INK, QUIET, GRID = "#222222", "#6b6b6b", "#e6e6e6"
LEFT = 0.62
"""Inches left of the charts."""
EMBEDDED: Mapping[str, Any] = {"pdf.fonttype": 42, "ps.fonttype": 42, "svg.hashsalt": "olmes_monitor"}
"""Fonts go into a PDF as TrueType (type 42), which journals ask for and editors can edit."""


def plot_run(run: Run, tasks: Sequence[str] | None = None, width: float | None = None) -> Figure:
    """One small chart a task and one for the average: CF and MCF with bands of one standard error, floor, crossing with
    its interval, saved checkpoints.

    tasks: which, in this order ("average" too); all by default. width: inches (6.75 is a page of two columns, 3.3 one
    of them); by default as wide as up to four charts need. Letters keep their size, so fewer charts stand in a row.
    No pyplot: no backend, no global state is touched.
    Raises SetupError for a task the run has not.
    """
    return plot_sources([read_run(run, "", others=False)], tasks, width)


def plot_sources(sources: Sequence[Source], tasks: Sequence[str] | None = None, width: float | None = None) -> Figure:
    """The same of several runs in one picture, aligned on tokens."""
    from matplotlib.figure import Figure

    known = list(dict.fromkeys(task for source in sources for task in source.curves if task != AVERAGE))
    if any(AVERAGE in source.curves for source in sources):
        known.append(AVERAGE)
    shown = list(known if tasks is None else tasks)
    if unknown := [task for task in shown if task not in known]:
        raise SetupError(f"no task {', '.join(unknown)}; tasks: {', '.join(known) or 'none'}")
    figure = Figure(dpi=150, facecolor="white")
    entries = 5 + (len(sources) if len(sources) > 1 else 0)
    grid = _grid(figure, len(shown), width, entries)
    for axes, task in zip(grid, shown, strict=True):
        _draw_task(axes, sources, task)
    _head(figure, sources, grid)
    return figure


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """As PNG (300 dots an inch), SVG or PDF, by the path's ending. Raises RecordError where it cannot be written."""
    from matplotlib import rc_context

    try:
        with rc_context(dict(EMBEDDED)):
            figure.savefig(path, dpi=300)
    except (OSError, ValueError) as error:  # ValueError: an ending no format has
        raise RecordError(f"cannot write the picture {path}: {error}") from error


def _grid(figure: Figure, charts: int, width: float | None, entries: int) -> list[Axes]:
    """Places for the charts, in at most four columns, below room for the heading with its legend. Lengths are in inches."""
    columns = max(1, min(4, math.ceil(math.sqrt(charts))))
    if width is not None:
        columns = max(1, min(charts, round(width / 2.3)))
    rows = max(1, math.ceil(charts / columns))
    width = width or max(3.3 * columns, 5.6)
    head = 1.15 + 0.15 * math.ceil(entries / _legend_columns(width))
    height = 2.5 * rows + head - 0.05
    figure.set_size_inches(width, height)
    grid = figure.subplots(rows, columns, squeeze=False)
    figure.subplots_adjust(
        left=LEFT / width,
        right=1 - 0.22 / width,
        bottom=0.52 / height,
        top=1 - head / height,
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


def _legend_columns(width: float) -> int:
    return max(1, int((width - LEFT) / 1.55))


def _draw_task(axes: Axes, sources: Sequence[Source], task: str) -> None:
    curves = [(number, source.curves[task]) for number, source in enumerate(sources) if task in source.curves]
    for number, curve in curves:
        _draw_curve(axes, curve, RUNS[number % len(RUNS)] if len(sources) > 1 else None)
    floors = [curve.floor for _, curve in curves if curve.floor is not None]
    if floors:
        axes.axhline(100 * floors[-1], color=QUIET, linestyle=(0, (1, 1.6)), linewidth=1.1, label="floor", zorder=1)
    axes.set_title(task, loc="left", fontsize=9.5, fontweight="bold", color=INK, pad=16)
    if len(sources) == 1 and curves:
        words = _verdict(curves[0][1].crossovers.get(OWN), narrow=axes.bbox.width / axes.figure.dpi < 2.5)
        axes.text(0, 1.035, words, transform=axes.transAxes, fontsize=7.5, color=QUIET, va="bottom")
    for number, curve in curves:
        found = curve.crossovers.get(OWN)
        if found is not None and found.tokens is not None:
            _mark(axes, found, curve, RUNS[number % len(RUNS)] if len(sources) > 1 else INK, len(sources) == 1)
    _ticks(axes, sources)
    _dress(axes)


def _draw_curve(axes: Axes, curve: Curve, colour: str | None) -> None:
    spacing = max(1, len(curve.tokens) // 12)  # markers tell the curves apart; one on each of 200 points hides them
    for name, value, error in (
        ("cf", curve.cf[OWN], curve.cf_error[OWN]),
        ("mcf", curve.mcf, curve.mcf_error),
    ):
        style = {**STYLES[name], **({"color": colour} if colour else {})}
        if np.isfinite(value).any():
            at = 100 * value
            axes.plot(curve.tokens, at, linewidth=1.6, markersize=3.2, markevery=spacing, zorder=3, **style)
            low, high = at - 100 * error, at + 100 * error
            axes.fill_between(curve.tokens, low, high, color=style["color"], alpha=0.16, linewidth=0)


def _mark(axes: Axes, found: Crossover, curve: Curve, colour: str, written: bool) -> None:
    """A line at the crossing (dotted while tentative), its interval shaded, its token count on the side with room."""
    tokens = found.tokens or 0
    if found.lo is not None or found.hi is not None:  # an open end reaches to where evaluations begin or end
        lo = curve.tokens[0] if found.lo is None else found.lo
        hi = curve.tokens[-1] if found.hi is None else found.hi
        axes.axvspan(lo, hi, color=colour, alpha=0.09, linewidth=0, zorder=0)
    dots = (0, (1.5, 1.5)) if found.state == "tentative" else "-"
    axes.axvline(tokens, color=colour, linewidth=0.9, linestyle=dots, zorder=2)
    if not written:
        return
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


def _ticks(axes: Axes, sources: Sequence[Source]) -> None:
    """Small triangles on the axis where checkpoints were saved."""
    for number, source in enumerate(sources):
        evaluations = source.run.evaluations if source.run is not None else []
        if saved := [e.point.tokens for e in evaluations if e.point.checkpoint]:
            axes.plot(
                saved,
                np.zeros(len(saved)),
                transform=axes.get_xaxis_transform(),
                linestyle="",
                marker="^",
                markersize=2.8,
                color=RUNS[number % len(RUNS)] if len(sources) > 1 else QUIET,
                clip_on=False,
                label="checkpoint saved",
                zorder=5,
            )


def _verdict(crossover: Crossover | None, narrow: bool) -> str:
    """The crossing in a few words, under a chart's title."""
    if crossover is None:
        return ""
    if crossover.tokens is not None:
        between = interval_words(crossover)
        words = f"{format_tokens(crossover.tokens)}{between and f' [{between}]'}"
        if narrow:
            return words + (", tentative" if crossover.state == "tentative" else "")
        return f"MCF ahead from {words}, {crossover.state}"
    others = {
        "from_start": "MCF ahead from the start",
        "reverted": "MCF was ahead, and is no longer",
        "undecided": "undecided",
    }
    return others.get(crossover.state, "not yet")


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


def _head(figure: Figure, sources: Sequence[Source], charts: Sequence[Axes]) -> None:
    """Title, what was asked, and one legend for all charts, in as many rows as the width needs."""
    width, height = figure.get_size_inches()
    left, about = LEFT / width, _about(sources, narrow=width < 5)
    title = "CF and MCF while training"
    figure.text(
        left, 1 - 0.16 / height, title, fontsize=13 if width > 5 else 11, fontweight="bold", color=INK, va="top"
    )
    figure.text(left, 1 - 0.43 / height, about, fontsize=8, color=QUIET, va="top")
    entries = _entries(sources, charts)
    if entries:
        figure.legend(
            list(entries.values()),
            list(entries),
            loc="upper left",
            bbox_to_anchor=(left, 1 - 0.62 / height),
            borderaxespad=0,
            borderpad=0,
            ncols=min(len(entries), _legend_columns(width)),
            frameon=False,
            fontsize=8 if width > 5 else 7,
            labelcolor=INK,
            handlelength=2.6,
            columnspacing=1.6,
            labelspacing=0.25,
        )


def _about(sources: Sequence[Source], narrow: bool) -> str:
    """What was asked and how often."""
    run = sources[0].run if len(sources) == 1 else None
    if len(sources) != 1 or run is None:
        parts = [", ".join(source.name for source in sources)]
    elif run.suite:
        count = len(run.evaluations)
        parts = [f"suite {run.suite}, fingerprint {run.fingerprint[:12]}"]
        parts.append(f"{count} evaluation{'s' if count != 1 else ''}")
    else:
        parts = ["no evaluations yet"]
    return ", ".join(parts[:1] if narrow else parts) + ("" if narrow else "; bands: ± 1 standard error")


def _entries(sources: Sequence[Source], charts: Sequence[Axes]) -> dict[str, Any]:
    """The legend: label → what it looks like."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    found: dict[str, Any] = {}
    for axes in charts:
        handles, labels = axes.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
        if any(line.get_zorder() == 2 for line in axes.get_lines()):
            found["crossover, 95 % interval"] = Line2D([], [], color=INK, linewidth=0.9)
    forms = [style["label"] for style in STYLES.values()]
    order = [name for name in (*forms, "floor", "crossover, 95 % interval", "checkpoint saved") if name in found]
    entries = {name: found[name] for name in order}
    if len(sources) > 1:
        for style in STYLES.values():
            if style["label"] in entries:
                look = {name: style[name] for name in ("linestyle", "marker")}
                entries[style["label"]] = Line2D([], [], color=QUIET, markersize=3.2, linewidth=1.6, **look)
        entries |= {source.name: Patch(color=RUNS[n % len(RUNS)]) for n, source in enumerate(sources)}
    return entries
