"""A run as a notebook shows it: its verdict and its chart."""

from __future__ import annotations

import html
import io
from typing import TYPE_CHECKING

from olmes_monitor.report.curves import read_run
from olmes_monitor.report.plot import plot_sources
from olmes_monitor.report.words import crossover_line

if TYPE_CHECKING:
    from olmes_monitor.record.run import Run


def run_html(run: Run) -> str:
    """The headline's verdict in words above the picture as SVG; for a run without evaluations its repr."""
    if not run.evaluations:
        return f"<pre>{html.escape(repr(run))}</pre>"
    source = read_run(run, "", others=False)
    figure, drawn = plot_sources([source]), io.StringIO()
    figure.savefig(drawn, format="svg")
    # From the svg element on: a prolog has no place within a document.
    picture = drawn.getvalue()
    picture = picture[picture.index("<svg") :]
    words = crossover_line(*source.headline) if source.headline else "no verdict: CF and MCF were not both asked"
    return (
        f"<p><b>{html.escape(words[:1].upper() + words[1:])}</b><br>{html.escape(repr(run))}</p>"
        f'<div style="max-width: 1100px; background: white">{picture}</div>'
    )
