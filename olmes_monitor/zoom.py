"""Zooming in, in a running Monitor: rank 0 decides from the record's verdicts, and every rank knows."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path

from olmes_monitor.costs import asks_both
from olmes_monitor.errors import SetupError
from olmes_monitor.measure.crossover import Crossover
from olmes_monitor.record.evaluation import Evaluation, Point
from olmes_monitor.record.files import read_lines
from olmes_monitor.record.run import AVERAGE, Run, average_facts
from olmes_monitor.record.store import LINES
from olmes_monitor.refine import LOOK_BACK, Refine, Refiner, refiner_of
from olmes_monitor.schedule import Schedule
from olmes_monitor.scoring.parallel import Ranks
from olmes_monitor.scoring.score import Scorer
from olmes_monitor.state import live

logger = logging.getLogger("olmes_monitor")


def make_zoom(refine: bool | Refine, schedule: Schedule, scorer: Scorer, folder: Path) -> Zoom | None:
    """What `refine=` asks for; None for False. Raises SetupError where it does not fit the schedule or what is asked."""
    refiner = refiner_of(refine, schedule)
    if refiner is None:
        return None
    if not asks_both(scorer):
        raise SetupError("refine looks for MCF overtaking CF: leave both in formulations")
    return Zoom(refiner, schedule, scorer.ranks, folder, scorer.suite.fingerprint)


class Zoom:
    """The next evaluation beyond the regular schedule. `begin` and `observe` are collectives; nothing is asked in a step."""

    def __init__(self, refiner: Refiner, schedule: Schedule, ranks: Ranks, folder: Path, fingerprint: str) -> None:
        """folder: where the record is kept. fingerprint: of the suite that is asked."""
        self.refiner, self.schedule, self.ranks = refiner, schedule, ranks
        self.folder, self.fingerprint = folder, fingerprint
        self.due = 0
        """Tokens at which the next evaluation is due, the same on every rank; 0 where the regular schedule alone counts."""

    def begin(self, tokens: int, evaluated: int | None, planned_steps: int | None) -> None:
        """Take up a run that goes on at `tokens`, last evaluated at `evaluated`: from a checkpoint's state if that was
        saved after this evaluation, else from the record."""

        def decide() -> int:
            if self.refiner.last != evaluated:
                self._replay(tokens, planned_steps)
            return self.refiner.next()

        self._decide(decide, tokens)

    def observe(self, evaluation: Evaluation, crossovers: Mapping[str, Crossover], planned_steps: int | None) -> None:
        """After an evaluation: when the next one is due. crossovers: as they are now, on rank 0. planned_steps: optimizer
        steps at the end of training, if that is known."""
        tokens = evaluation.point.tokens
        self._decide(lambda: self._take(evaluation, crossovers, planned_steps), tokens)

    def _decide(self, decide: Callable[[], int], tokens: int) -> None:
        due = 0
        if self.ranks.rank == 0:
            try:
                due = decide()
            except Exception as error:
                logger.warning(
                    "evaluations stay regular from %s tokens: %s: %s",
                    f"{tokens:,}",
                    type(error).__name__,
                    error,
                    exc_info=error,
                )
        self.due = self.ranks.sum(due)

    def _take(self, evaluation: Evaluation, crossovers: Mapping[str, Crossover], planned_steps: int | None) -> int:
        point, last = evaluation.point, self.refiner.last
        self.refiner.planned = planned_tokens(point, planned_steps)
        saved = self.schedule.at_checkpoints and point.checkpoint is not None
        extra = last < point.tokens and not saved and not self.schedule.due(last, point.tokens)
        settled = [task for task, found in crossovers.items() if found.state in ("confirmed", "from_start")]
        return self.refiner.observe(point.tokens, leads_of(crossovers, evaluation), settled, extra)

    def _replay(self, tokens: int, planned_steps: int | None) -> None:
        """The decisions of a record up to `tokens`, anew: the verdicts after each evaluation are a function of the record."""
        self.refiner.reset()
        path = self.folder / LINES
        lines = read_lines(path) if path.exists() else []
        lines = [
            line for line in lines if line["fingerprint"] == self.fingerprint and line["point"]["tokens"] <= tokens
        ]
        evaluations = [Evaluation.from_json(line) for line in live(lines, self.fingerprint)]
        known: Run | None = None
        for evaluation in evaluations:
            at, crossovers = evaluation.point.tokens, {}
            # What lies further back counts in how many there were, and no more.
            if at >= evaluations[-1].point.tokens - LOOK_BACK * self.refiner.every:
                known = Run(self.folder, [line for line in lines if line["point"]["tokens"] <= at], known)
                crossovers = known.crossovers()
            self._take(evaluation, crossovers, planned_steps)


def planned_tokens(point: Point, steps: int | None) -> int | None:
    """Tokens after this many optimizer steps, at the rate so far; None if either is unknown."""
    return round(point.tokens / point.step * steps) if steps and point.step else None


def leads_of(crossovers: Mapping[str, Crossover], evaluation: Evaluation) -> dict[str, tuple[float, float]]:
    """Task (or "average") → (MCF's lead over CF, or over its floor where that is higher; its standard error, jitter
    included), at this evaluation. A task without a value there is left out, and so are MMLU's domains: MMLU is there."""
    found = {}
    for task, facts in {**evaluation.tasks, AVERAGE: average_facts(evaluation)}.items():
        crossover = crossovers.get(task)
        if crossover is not None and len(crossover.evaluated) and crossover.evaluated[-1] == evaluation.point.tokens:
            lead, floor = float(crossover.gap[-1]), facts.get("floor")
            if floor is not None:
                lead = min(lead, facts["mcf"] - floor)
            found[task] = lead, math.hypot(float(crossover.stderr[-1]), crossover.jitter or 0.0)
    return found
