"""Finding the crossing without scoring everything: which checkpoint to score next, by noise-aware bisection.

The crossing lies before the first checkpoint, between two, or after the last: n + 1 places, at first all as likely. A
scored checkpoint whose lead is z standard errors above zero says "at or before me" with probability Φ(z), and "after me"
with 1 − Φ(z); neither is ever believed beyond 1 − DOUBT, so one noisy checkpoint cannot rule a place out for good. Bayes'
rule weighs the places, and the next look is where half the weight lies on either side (probabilistic bisection: Horstein
1963; Waeber, Frazier and Henderson, SIAM J. Control Optim. 51, 2013). The last looks are spread over what is left of the
weight, since the place of the zero is read from a curve and not from one pair of points.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from olmes_monitor.checkpoints.checkpoint import Checkpoint
from olmes_monitor.record.evaluation import Evaluation
from olmes_monitor.record.run import AVERAGE, average_facts

if TYPE_CHECKING:
    from olmes_monitor.checkpoints.scan import Scan

LOOKS = 15
"""Checkpoints that a search scores at most."""
AROUND = 6
"""Of them, those kept for the places around the crossing."""
LASTING = 7
"""Looks after the crossing that are enough to show that the lead lasts."""
DOUBT = 0.03
"""Probability that a checkpoint is on the other side than its lead says, however clear that is."""
JITTER = 0.01
"""Standard deviation of an accuracy gap from checkpoint to checkpoint, beyond the questions' noise, that is reckoned with."""
LAST = (0.5, 0.75, 0.25, "after", 0.9, "after")
"""Where the last looks are taken: at these shares of the weight, and after the crossing, where a lead shows that it lasts."""


class Lead(NamedTuple):
    """How far MCF is ahead at one checkpoint: of CF, or of its floor where that is less."""

    value: float
    error: float
    """Standard error over questions."""


def next_look(n: int, seen: Mapping[int, Lead], left: int, barred: Collection[int] = ()) -> int | None:
    """Which of n checkpoints to score next; None if none is left or another would tell nothing new.

    seen: leads by position. left: looks that may still be taken. barred: positions that cannot be scored.
    """
    free = np.array([i for i in range(n) if i not in seen and i not in barred])
    if left <= 0 or not len(free):
        return None
    for end in (n - 1, 0):
        # The nearest to an end that can be had; the ends decide between a crossing, none yet, and one before the start.
        reach = free[np.abs(free - end) <= n // 20]
        if len(reach) and not any(abs(i - end) <= n // 20 for i in seen):
            return int(reach[np.argmin(np.abs(reach - end))])
    weight = weigh(n, seen)
    if weight[1:n].sum() < 0.5:
        # It leads from the start, or not at the end: looks all over show whether it ever was otherwise.
        return _widest(n, free, seen)
    if left > AROUND and (found := _nearest(free, _at(weight, 0.5))) is not None and _open(weight, AROUND):
        return found
    where, start = LAST[-min(left, len(LAST))], _at(weight, 0.95)
    later = free[free > start]
    if isinstance(where, float):
        return _nearest(free, _at(weight, where))
    if _open(weight, n / 4) or not len(later) or sum(i > start for i in seen) > LASTING:
        return _nearest(free, _at(weight, 0.5))
    return _widest(n, later, {i: lead for i, lead in seen.items() if i >= start})


def weigh(n: int, seen: Mapping[int, Lead]) -> NDArray[np.float64]:
    """Probability of each place of the crossing, (n + 1,): place k lies just before checkpoint k; n: after the last."""
    log = np.zeros(n + 1)
    for position, lead in seen.items():
        before = (1 - 2 * DOUBT) * _phi(lead.value / np.hypot(lead.error, JITTER)) + DOUBT
        log += np.log(np.where(np.arange(n + 1) <= position, before, 1 - before))
    weight = np.exp(log - log.max())
    return weight / weight.sum()


def lead_of(evaluation: Evaluation, task: str = AVERAGE) -> Lead | None:
    """A task's lead in one evaluation, or the average's; None where it has no value."""
    facts = average_facts(evaluation) if task == AVERAGE else evaluation.tasks.get(task, {})
    if "gap" not in facts:
        return None
    leads = [Lead(facts["gap"], facts.get("stderr_gap", 0.0))]
    if facts.get("floor") is not None:
        leads.append(Lead(facts["mcf"] - facts["floor"], facts.get("stderr_mcf", 0.0)))
    return min(leads)


def search(
    scan: Scan,
    checkpoints: list[Checkpoint],
    known: Callable[[], Mapping[int, Lead]],
    pick: Callable[[Callable[[], int | None]], int | None],
    looks: int = LOOKS,
) -> None:
    """Score at most `looks` of `checkpoints` (in order, each once) until the crossing is found.

    known: leads by position, of all that the record holds by now. pick: runs a choice on the first rank for all.
    """
    barred = {i for i, checkpoint in enumerate(checkpoints) if checkpoint.problem is not None}
    for taken in range(looks):
        left = looks - taken
        position = pick(lambda left=left: next_look(len(checkpoints), known(), left, barred))  # type: ignore[misc]
        if position is None:
            return
        if not scan.take(checkpoints[position], left=min(left, len(checkpoints) - taken)).good:
            barred.add(position)


def _phi(z: float) -> float:
    """The standard normal distribution function."""
    from math import erf, sqrt

    return 0.5 * (1 + erf(z / sqrt(2)))


def _at(weight: NDArray[np.float64], share: float) -> float:
    """The place that has `share` of the weight below it, as a position among checkpoints."""
    return float(np.searchsorted(np.cumsum(weight), share)) - 0.5


def _open(weight: NDArray[np.float64], places: float) -> bool:
    """Whether the crossing is not yet pinned down to so few places."""
    return _at(weight, 0.95) - _at(weight, 0.05) > places


def _nearest(free: NDArray[np.int64], place: float) -> int | None:
    return int(free[np.argmin(np.abs(free - place))]) if len(free) else None


def _widest(n: int, free: NDArray[np.int64], seen: Mapping[int, Lead]) -> int | None:
    """The middle of the widest stretch without a look."""
    known = np.array(sorted(seen))
    gaps = np.diff(known)
    if not len(gaps) or gaps.max() < 2:
        return _nearest(free, n / 2)
    widest = int(np.argmax(gaps))
    return _nearest(free, (known[widest] + known[widest + 1]) / 2)
