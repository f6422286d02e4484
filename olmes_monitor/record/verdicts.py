"""The live verdicts: after each evaluation, where MCF overtook CF by now, and what of that is news."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from olmes_monitor.errors import RecordError
from olmes_monitor.measure.crossover import Crossover
from olmes_monitor.record.evaluation import Point
from olmes_monitor.record.files import read_lines
from olmes_monitor.record.run import Run
from olmes_monitor.record.store import LINES, load_run
from olmes_monitor.report.words import crossover_line, format_tokens

logger = logging.getLogger("olmes_monitor")

NEWS = ("confirmed", "reverted")
"""The states whose coming someone wants to be told of."""


@dataclass(frozen=True)
class CrossoverEvent:
    """A task's verdict has become `confirmed` or `reverted`."""

    task: str
    """The task, or "average"."""
    old: str | None
    """Its state after the evaluation before; None if there was none."""
    new: str
    """Its state now."""
    crossover: Crossover
    point: Point
    """Of the evaluation that changed it."""

    @property
    def title(self) -> str:
        """A few words: whose verdict became what."""
        return f"{self.task}: crossover {self.new}"

    @property
    def text(self) -> str:
        """One sentence: after which evaluation, and the verdict."""
        return f"after {format_tokens(self.point.tokens)} tokens: {crossover_line(self.task, self.crossover)}"


Hook = Callable[[CrossoverEvent], object]


class Verdicts:
    """The run so far and its crossovers, kept up to date on rank 0; a function of the record alone."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        """folder: where the record is kept. fingerprint: of the suite that is asked."""
        self.folder, self.fingerprint = folder, fingerprint
        self.run: Run | None = None
        """All evaluations on disk; None before the first, and while they cannot be read."""
        self.crossovers: dict[str, Crossover] = {}
        self._states: dict[str, str] = {}
        self._told: dict[str, str] = {}

    def restore(self, tokens: int) -> None:
        """Take up the verdicts that the record held at this token count, so that a resumed run tells no news twice.

        Raises RecordError if the record cannot be read. What lies beyond `tokens` was given up by going back, and what is
        found out again is news again.
        """
        path = self.folder / LINES
        if tokens == 0 or not path.exists():
            return
        lines = [line for line in read_lines(path) if line["fingerprint"] == self.fingerprint]
        before = Run(self.folder, [line for line in lines if line["point"]["tokens"] <= tokens])
        self._states = {task: str(crossover.state) for task, crossover in before.crossovers().items()}
        self._told = {task: state for task, state in self._states.items() if state in NEWS}

    def update(self, point: Point) -> list[CrossoverEvent]:
        """Once the evaluation at this point is on disk: the verdicts anew. Returns what is news.

        Raises RecordError if the record cannot be read; `run` is None then.
        """
        before, self.run, self.crossovers = self.run, None, {}
        run = load_run(self.folder, fingerprint=self.fingerprint, known=before)
        if run.evaluations[-1].point.tokens != point.tokens:
            raise RecordError(f"{self.folder} does not have the evaluation at {point.tokens} tokens")
        self.crossovers = run.crossovers()
        self.run = run
        events = [
            CrossoverEvent(task, self._states.get(task), crossover.state, crossover, point)
            for task, crossover in self.crossovers.items()
            if crossover.state in NEWS and self._told.get(task) != crossover.state
        ]
        self._states.update({task: crossover.state for task, crossover in self.crossovers.items()})
        self._told.update({event.task: event.new for event in events})
        return events


def verdict_row(crossovers: Mapping[str, Crossover]) -> dict[str, float]:
    """The numbers of the verdicts under their logged names, olmes/crossover/<task>/{tokens,lo,hi}; absent while unknown."""
    return {name: value for name, value in verdict_summary(crossovers).items() if isinstance(value, int | float)}


def verdict_summary(crossovers: Mapping[str, Crossover]) -> dict[str, str | int | None]:
    """The same with /state, a word, and None for what is unknown: for the end of a run's page, not for an axis."""
    return {
        f"olmes/crossover/{task}/{name}": getattr(crossover, name)
        for task, crossover in crossovers.items()
        for name in ("state", "tokens", "lo", "hi")
    }


def call_hook(hook: Hook | None, event: CrossoverEvent) -> None:
    """The user's on_crossover; what it raises becomes a warning, with its traceback."""
    if hook is None:
        return
    try:
        hook(event)
    except Exception as error:
        logger.warning("on_crossover failed for %s: %s", event.title, error, exc_info=error)
