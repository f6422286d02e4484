"""Several runs on one page: which crossed first, with a paired interval where they were asked the same questions."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from olmes_monitor.measure.compare import Comparison
from olmes_monitor.record.compare import compare_crossovers, comparison_line
from olmes_monitor.record.run import AVERAGE
from olmes_monitor.report.curves import Source
from olmes_monitor.report.words import format_tokens


class Pair(NamedTuple):
    """Two runs and, task by task, where the second's crossing lies beside the first's."""

    a: str
    b: str
    tasks: dict[str, Comparison]

    def line(self, task: str) -> str:
        """One sentence."""
        return comparison_line(self.tasks[task], self.a, self.b)


def compare_sources(sources: Sequence[Source]) -> list[Pair]:
    """Every further run beside the first; a pair is left out where questions are unknown or differ."""
    first = sources[0].run if sources else None
    return [
        Pair(sources[0].name, other.name, compare_crossovers(first, other.run))
        for other in sources[1:]
        if first is not None and other.run is not None and first.fingerprint == other.run.fingerprint
    ]


def heading(sources: Sequence[Source], pairs: Sequence[Pair]) -> str:
    """The verdict on several runs, for the top of the page: of two by their paired interval, else by whether the
    runs' own intervals are apart."""
    if len(sources) == 2 and pairs and (tasks := pairs[0].tasks):
        task = AVERAGE if AVERAGE in tasks else next(iter(tasks))
        if tasks[task].tokens is not None:
            return escape(pairs[0].line(task))
    found = {source.name: source.headline for source in sources}
    crossed = sorted(
        ((line[1].tokens, name, line[1]) for name, line in found.items() if line and line[1].tokens is not None),
        key=lambda row: row[:2],
    )
    if len(crossed) < 2:
        return f"{len(crossed)} of {len(sources)} runs has crossed" if crossed else "No run has crossed yet"
    (at, name, early), (late_at, late_name, late) = crossed[0], crossed[-1]
    if early.hi is None or late.lo is None or early.hi >= late.lo:
        return f"{len(crossed)} of {len(sources)} runs have crossed; which first is not clear, their intervals overlap"
    return f"{escape(name)} crossed {format_tokens(late_at - at)} tokens before {escape(late_name)}"


def section(pairs: Sequence[Pair]) -> str:
    """Every task's difference, in words."""
    if not pairs:
        return ""
    lists = "".join(
        f"<h3>{escape(pair.b)} beside {escape(pair.a)}</h3>"
        f"<ul>{''.join(f'<li>{escape(pair.line(task))}</li>' for task in pair.tasks)}</ul>"
        for pair in pairs
    )
    return (
        '<h2 id="compared">Which run crossed first</h2><p>The difference in tokens with a 95 % interval in which a question '
        f"weighs alike in both runs, so what makes it hard for both cancels.</p>{lists}"
    )
