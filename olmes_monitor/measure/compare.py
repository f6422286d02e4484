"""Two runs over the same questions: by how many tokens one's crossover lies before the other's, with a paired interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from olmes_monitor.measure import resample
from olmes_monitor.measure.accuracy import mean
from olmes_monitor.measure.crossover import Crossover
from olmes_monitor.measure.gap import jitter_variance, smoother, spikes, width
from olmes_monitor.measure.verdict import BEHIND, abrupt, begins, scatter, zeros

Floats = NDArray[np.float64]


class Answers(NamedTuple):
    """What one run answered right on a task."""

    tokens: NDArray[np.int64]
    """(evaluations,)"""
    cf: Floats
    """(evaluations, questions) 1 or 0; a NaN takes its whole evaluation out."""
    mcf: Floats
    floor: float | Floats | None
    """What MCF must exceed to lead, beside CF; a number or one for each question, as in `find_crossover`."""
    crossover: Crossover
    """What `find_crossover` says of these."""


@dataclass(frozen=True)
class Comparison:
    """Where B's crossover lies beside A's."""

    task: str
    a: Crossover
    b: Crossover
    tokens: int | None
    """B's crossing minus A's, in tokens: negative if B crossed earlier. None unless both have crossed."""
    lo: int | None
    """Lower end of the 95 % interval of `tokens`; None without one, and where that end is open."""
    hi: int | None
    """Upper end, likewise."""


def compare(
    task: str,
    a: Answers,
    b: Answers,
    *,
    subjects: ArrayLike | None = None,
    tasks: ArrayLike | None = None,
    samples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """B's crossing minus A's, with the interval of a bootstrap in which a question has the same weight in both runs.

    a, b: over the same questions in the same order; evaluations may differ. subjects, tasks: a label for each question.
    Each sample draws the questions' noise of both runs together, each checkpoint's jitter by itself, smooths and finds
    both crossings as `find_crossover` does; the interval is the middle `level` of their differences. A sample
    in which one run does not cross within its evaluations lies at an open end.
    Raises ValueError if the runs do not have the same number of questions.
    """
    if a.cf.shape[1:] != b.cf.shape[1:] or a.cf.ndim != 2:
        raise ValueError(f"the runs are not over the same questions: {a.cf.shape[1:]} and {b.cf.shape[1:]}")
    if a.crossover.tokens is None or b.crossover.tokens is None:
        return Comparison(task, a.crossover, b.crossover, None, None, None)
    difference = b.crossover.tokens - a.crossover.tokens
    first, second = _lead(a, subjects, tasks), _lead(b, subjects, tasks)
    together = resample.covariance(np.concatenate([first.values, second.values]), subjects, tasks)
    if not np.isfinite(together).all():  # one question alone
        return Comparison(task, a.crossover, b.crossover, difference, None, None)
    generator = np.random.default_rng(seed)
    noise = resample.draws(together, 0.0, samples, generator)
    split = len(first.x)
    crossings = [
        _crossings(lead, together[part, part], noise[:, part], generator)
        for lead, part in ((first, slice(0, split)), (second, slice(split, None)))
    ]
    with np.errstate(invalid="ignore"):  # a draw in which neither run crosses tells nothing of their difference
        lo, hi = _middle(crossings[1] - crossings[0], level)
    # The estimates are find_crossover's; an interval of them holds their difference.
    return Comparison(
        task,
        a.crossover,
        b.crossover,
        difference,
        None if lo is None else min(round(lo), difference),
        None if hi is None else max(round(hi), difference),
    )


class _Lead(NamedTuple):
    """The lead of one run, of its evaluations with values."""

    x: Floats  # (evaluations,) tokens
    curve: Floats  # (evaluations,)
    values: Floats  # (evaluations, questions): each question's part of the lead


def _lead(run: Answers, subjects: ArrayLike | None, tasks: ArrayLike | None) -> _Lead:
    """As find_crossover takes it: MCF over CF, or over the floor where CF is below that."""
    gap = np.round(mean(run.mcf - run.cf, subjects, tasks), 12)
    lead = gap
    guessed: float | Floats = 0.0  # a floor given as a number has no noise
    if run.floor is not None:
        paired = np.ndim(run.floor) > 0
        guessed = np.asarray(run.floor, np.float64) if paired else 0.0
        floor = mean(run.floor, subjects, tasks) if paired else run.floor
        lead = np.minimum(gap, np.round(mean(run.mcf, subjects, tasks) - floor, 12))
    use = np.flatnonzero(np.isfinite(lead))
    values = run.mcf[use] - np.where((lead[use] == gap[use])[:, None], run.cf[use], guessed)
    return _Lead(np.asarray(run.tokens, np.float64)[use], lead[use], values)


def _crossings(lead: _Lead, covariance: Floats, noise: NDArray[np.float32], generator: np.random.Generator) -> Floats:
    """(samples,) tokens of the crossing of each sample's smoothed lead; noise: (samples, evaluations) of the questions."""
    jitter, flips = jitter_variance(lead.x, lead.curve, covariance, centred=True)
    raw = BEHIND * np.sqrt(np.diag(covariance) + jitter)
    pilot = max(int(begins(lead.curve[None], raw)[0]), 0)
    here, independent = float(jitter[pilot]), float(jitter[pilot] + flips[pilot])
    keep = np.flatnonzero(~spikes(lead.curve, math.sqrt(independent)))
    x, curve, shared = lead.x[keep], lead.curve[keep], covariance[np.ix_(keep, keep)]
    around = int(begins(curve[None], BEHIND * np.sqrt(np.diag(shared) + here))[0])
    rows = smoother(x, width(x, curve, around, independent))
    whole = rows @ (shared + here * np.eye(len(keep))) @ rows.T
    behind = BEHIND * np.sqrt(np.diag(whole))
    strayed = curve + noise[:, keep] + math.sqrt(here) * generator.standard_normal((len(noise), len(keep)))
    smooth = strayed @ rows.T
    begun = begins(smooth, behind)
    crossings = zeros(x, smooth, begun)
    fitted = rows @ curve
    before = int(begins(fitted[None], behind)[0])
    if not 0 <= before < len(x) - 1:
        return crossings
    return scatter(x, crossings, begun, before, abrupt(x, fitted, whole, before), generator)


def _middle(differences: Floats, level: float) -> tuple[float | None, float | None]:
    """The middle `level`; None for an end that is open. Where neither run crosses the difference is unknown: both ends."""
    unknown = np.isnan(differences)
    low = np.sort(np.where(unknown, -np.inf, differences))
    high = np.sort(np.where(unknown, np.inf, differences))
    tail = (1 - level) / 2
    ends = low[math.floor(tail * (len(low) - 1))], high[math.ceil((1 - tail) * (len(high) - 1))]
    return tuple(float(end) if math.isfinite(end) else None for end in ends)  # type: ignore[return-value]
