"""What rank 0 tells the trackers, the console and the user's hook about each evaluation."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from olmes_monitor.errors import OLMESError
from olmes_monitor.measure.crossover import Crossover
from olmes_monitor.record.evaluation import Evaluation
from olmes_monitor.record.files import plain
from olmes_monitor.record.loggers import (
    Sink,
    alert_everywhere,
    finish_everywhere,
    log_everywhere,
    row_of,
    start_everywhere,
)
from olmes_monitor.record.store import load_run
from olmes_monitor.record.verdicts import Hook, Verdicts, call_hook, verdict_row
from olmes_monitor.report.terminal import crossover_lines, evaluation_table

logger = logging.getLogger("olmes_monitor")

AXES = ("olmes/tokens", "olmes/step")


def named(row: Mapping[str, float], name: str) -> dict[str, float]:
    """The row of a monitor with a name: olmes/<name>/… for all but the axes, which are the run's."""
    if not name:
        return dict(row)
    return {key if key in AXES else key.replace("olmes/", f"olmes/{name}/", 1): value for key, value in row.items()}


class Teller:
    """Passes evaluations on. Only rank 0 has one; nothing that fails here stops a training run."""

    def __init__(
        self, sinks: list[Sink], out: Path, fingerprint: str, name: str, on_crossover: Hook | None, console: Any
    ) -> None:
        """`out`: the run's folder. `console`: where tables are printed, or None."""
        self.sinks, self.out, self.fingerprint, self.name = sinks, out, fingerprint, name
        self.on_crossover, self.console = on_crossover, console
        self._verdicts = Verdicts(out / "olmes", fingerprint)

    def start(self, config: Mapping[str, Any], tokens: int) -> None:
        """What is measured, to the trackers; and the verdicts of the part that a resumed run has behind it are taken up."""
        config = {**config, "name": self.name} if self.name else config
        start_everywhere(self.sinks, plain(config), self.out / "olmes")
        try:
            self._verdicts.restore(tokens)
        except Exception as error:
            logger.warning("the verdicts so far could not be read, so news may be told again: %s", error)

    @property
    def crossovers(self) -> Mapping[str, Crossover]:
        """The verdicts after the last evaluation that has any."""
        return self._verdicts.crossovers

    def evaluated(self, evaluation: Evaluation) -> None:
        """The row, with the verdicts as they are now, to every tracker; a verdict that is news to whoever should know."""
        if evaluation.scores is not None:
            self._log(evaluation)
        if self.console is not None:
            self.console.print(evaluation_table(evaluation))

    def finish(self) -> None:
        """Where the curves crossed, and the end of training to the trackers."""
        self._say_crossings()
        if self._verdicts.run is not None:
            finish_everywhere(self.sinks, self._verdicts.run, self._verdicts.crossovers)

    def say(self, line: str) -> None:
        """A line for the console."""
        if self.console is not None:
            self.console.print(line, highlight=False)

    def _log(self, evaluation: Evaluation) -> None:
        row, events = row_of(evaluation), []
        try:
            events = self._verdicts.update(evaluation.point)
        except Exception as error:
            logger.warning("no verdicts at %s tokens: %s: %s", row["olmes/tokens"], type(error).__name__, error)
        row |= verdict_row(self._verdicts.crossovers)
        log_everywhere(self.sinks, named(row, self.name), self._verdicts.run, self._verdicts.crossovers)
        for event in events:
            logger.info(event.text)
            self.say(event.text)
            alert_everywhere(self.sinks, event.title, event.text)
            call_hook(self.on_crossover, event)

    def _say_crossings(self) -> None:
        if self.console is None:
            return
        try:
            crossings = load_run(self.out, fingerprint=self.fingerprint).crossovers()
        except OLMESError as error:
            # Nothing was evaluated or could be written: no reason to end a training run with an error.
            logger.warning("no crossings to tell: %s", error)
            return
        for line in crossover_lines(crossings):
            self.say(line)
