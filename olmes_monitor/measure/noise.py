"""How noisy a task's curves are, and what its questions can resolve at all. Pure functions.

A curve moves from checkpoint to checkpoint for two reasons beside learning. Single answers flip to and fro (flicker): more
questions average it out. And the whole checkpoint is a little better or worse (jitter): more questions do not help, more
evaluations do. Which questions were asked is neither: it is the same at every evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from olmes_monitor.measure.accuracy import mean, stderr
from olmes_monitor.measure.gap import contrasts, smoother

ENOUGH = 6
"""Evaluations with values from which on the noise of a curve can be told from its course."""

SMOOTH = 2
"""Half-width, in evaluations, of the local line that stands for a curve's course."""

NEAREST = 5
"""Evaluations, those with the forms nearest to each other, whose answers say how often the forms differ."""

CONFIDENCE, POWER = 0.95, 0.80
WORST_DISCORDANCE = 0.5
"""Share of questions on which the forms differ if they agree no more than by chance: 2a(1−a) at accuracy a = ½."""

COARSE = 0.10
"""A gap that a suite should resolve: it is a third of what multiple choice gains on most tasks once it is learned."""
SLOW = 10.0
"""Evaluations between the crossing and a clear lead beyond which a suite is too small for the spacing."""

LARGER = {"quick": "monitor", "monitor": "standard"}
"""Suite → the one that asks more questions."""
MONITOR = 1000
"""Questions a task that the monitor suite asks at most."""


@dataclass(frozen=True)
class CurveNoise:
    """The noise of one curve, fractions of 1."""

    step: float
    """Standard deviation of one evaluation around the curve's course: √(flicker² + jitter²)."""
    flicker: float
    """What of it comes from single answers that flip to and fro; falls with the square root of the questions."""
    jitter: float
    """The rest: what moves all questions of a checkpoint together."""
    signal: float
    """Largest minus smallest value of the curve's course."""
    relative: float
    """`step` over the curve's mean: the noise of arXiv 2508.13144, but around the course and not around a constant."""

    @property
    def signal_to_noise(self) -> float:
        """signal / step; a curve without any course has about 2, what is left of its noise after smoothing.

        "Signal and Noise" (arXiv 2508.13144) takes the relative dispersion of models, max |m_j − m_k| / m̄, over the
        relative standard deviation of a model's last checkpoints; m̄ cancels. Here the points of one run stand for the
        models, and the noise is taken around the course, since a run's last checkpoints may still rise.
        """
        return self.signal / self.step if self.step > 0 else math.inf


@dataclass(frozen=True)
class TaskNoise:
    """The noise of a task's curves and what its questions can resolve."""

    n: int
    cf: CurveNoise | None
    """None with fewer than ENOUGH evaluations."""
    mcf: CurveNoise | None
    gap: CurveNoise | None
    discordance: float
    """Share of questions that one form has right and the other wrong, where the forms are nearest to each other."""
    resolvable: float
    """The smallest gap that one evaluation of these questions shows, see `resolvable_gap`."""
    rise: float | None
    """By how much the gap's course rises from one evaluation to the next, on the way from its lowest point to its highest
    after it; None with fewer than ENOUGH evaluations or where it never rises."""

    @property
    def evaluations(self) -> float | None:
        """How many evaluations pass from the crossing until the lead is resolvable, at the rate of `rise`."""
        return None if self.rise is None else self.resolvable / self.rise


def task_noise(tokens: ArrayLike, cf: ArrayLike, mcf: ArrayLike, subjects: ArrayLike | None = None) -> TaskNoise:
    """Noise of CF, of MCF and of their gap, and the smallest gap that these questions can resolve.

    tokens: int (evaluations,), increasing. cf, mcf: what was answered right, bool or 0/1 floats (evaluations,
    questions); a NaN takes its whole evaluation out. subjects: a label for each question (MMLU): all averages are over
    them. Raises ValueError for shapes that do not fit and where no evaluation has a value.
    """
    x, first, second = np.asarray(tokens, np.float64), np.asarray(cf, np.float64), np.asarray(mcf, np.float64)
    if first.ndim != 2 or first.shape != second.shape or x.shape != first.shape[:1]:
        shapes = f"tokens has shape {x.shape}, cf {first.shape}, mcf {second.shape}"
        raise ValueError(f"{shapes}; cf is (evaluations, questions)")
    known = np.isfinite(first + second).all(axis=1)
    if not known.any() or not first.shape[1]:
        raise ValueError("no evaluation has values: there is no noise to measure")
    x, first, second = x[known], first[known], second[known]
    difference = second - first
    gap = mean(difference, subjects)
    near = np.argsort(np.abs(gap), kind="stable")[:NEAREST]
    discordance = float(mean(difference[near] ** 2, subjects).mean())
    # As many questions as would give this standard error if none were grouped by subject.
    variance = float(np.mean(stderr(difference[near], subjects) ** 2))
    spread = discordance - float(np.mean(gap[near] ** 2))
    effective = spread / variance if variance > 0 else float(first.shape[1])
    return TaskNoise(
        n=first.shape[1],
        cf=curve_noise(x, first, subjects),
        mcf=curve_noise(x, second, subjects),
        gap=curve_noise(x, difference, subjects),
        discordance=discordance,
        resolvable=resolvable_gap(effective, discordance),
        rise=_rise(x, gap),
    )


def curve_noise(x: NDArray[np.float64], values: NDArray[np.float64], subjects: ArrayLike | None) -> CurveNoise | None:
    """Of one curve without NaN; None with fewer than ENOUGH evaluations. values: (evaluations, questions).

    `step`² is the median of the squared third differences (gap.contrasts: four neighbours less the parabola through
    them, scaled to the variance of one), over what that median is for unit normal noise; it ignores one bad evaluation
    and one sharp bend. `flicker`² is the same differences' squared standard error over questions, averaged: what other
    questions of this kind would have given differs by it.
    """
    if len(x) < ENOUGH:
        return None
    rows = contrasts(x)
    by_question = rows @ values
    squares = np.round(mean(by_question, subjects), 12) ** 2  # a curve without noise has none, not 1e-17
    # 0.455 is the median of a squared unit normal; of few, overlapping differences it is larger on average (simulated).
    step = float(np.median(squares)) / (0.455 * (1 + 4 / (len(squares) + 1)))
    errors = stderr(by_question, subjects) ** 2
    flicker = float(errors.mean()) if np.isfinite(errors).all() else 0.0
    curve = mean(values, subjects)
    course = smoother(x, SMOOTH) @ curve
    level = float(np.mean(curve))
    return CurveNoise(
        step=math.sqrt(step),
        flicker=math.sqrt(min(flicker, step)),
        jitter=math.sqrt(max(step - flicker, 0.0)),
        signal=float(np.ptp(course)),
        relative=math.sqrt(step) / level if level > 0 else math.nan,
    )


def _rise(x: NDArray[np.float64], gap: NDArray[np.float64]) -> float | None:
    """Rise of the smoothed gap an evaluation, over its largest rise; None where it has none or evaluations are few."""
    if len(gap) < ENOUGH:
        return None
    course = smoother(x, SMOOTH) @ gap
    lowest = np.minimum.accumulate(course)
    top = int(np.argmax(course - lowest))
    bottom = int(np.argmin(course[: top + 1]))
    return float(course[top] - course[bottom]) / (top - bottom) if top > bottom else None


def resolvable_gap(
    n: float, discordance: float = WORST_DISCORDANCE, confidence: float = CONFIDENCE, power: float = POWER
) -> float:
    """The smallest gap g that one paired evaluation of n questions shows, two-sided, with this power.

    McNemar's test (sample size of Connor, Biometrics 43, 1987): g √n = z_α √d + z_β √(d − g²), where d, the discordance,
    is the share of questions on which the forms differ; d bounds the gap from above, and where even g = d would not be
    seen, the answer is what normal theory asks, though it is beyond d. Raises ValueError for n below 1 or a discordance
    outside 0 to 1.
    """
    if n < 1 or not 0 <= discordance <= 1:
        raise ValueError(f"n must be at least 1 and the discordance a share, not {n} and {discordance}")
    alpha, beta = NormalDist().inv_cdf(0.5 + confidence / 2), NormalDist().inv_cdf(power)
    a, d = alpha * math.sqrt(discordance), discordance
    # (g√n − a)² = z_β² (d − g²), a quadratic in g: its larger root.
    square, linear, constant = n + beta**2, -2 * a * math.sqrt(n), a**2 - beta**2 * d
    return (-linear + math.sqrt(max(linear**2 - 4 * square * constant, 0.0))) / (2 * square)


def advice_before(counts: Mapping[str, int], suite: str = "") -> str | None:
    """What a suite cannot show, from its numbers of questions alone; None where each task resolves COARSE.

    counts: task → questions. The forms are taken to agree no more than by chance (WORST_DISCORDANCE), so the run may
    turn out better, hardly worse.
    """
    coarse = {task: n for task, n in counts.items() if n < 2 or resolvable_gap(n) > COARSE}
    if not coarse:
        return None
    fewest = min(coarse.values())
    gaps = [resolvable_gap(max(n, 1)) for n in counts.values()]
    text = f"{fewest:,} questions{' a task' if len(counts) > 1 else ''} resolve a gap of {_points(max(gaps))} points"
    if len(counts) > 1:
        text += f" ({_points(math.hypot(*gaps) / len(gaps))} on the average of {len(gaps)} tasks)"
    return f"{text}: crossings show late and with wide intervals; {_mend(suite, fewest)}"


def advice(noise: Mapping[str, TaskNoise], suite: str = "", every: str = "every") -> list[str]:
    """A line for each task whose questions are too few for the spacing asked, worst first.

    A task's are, if at the rate its gap rose more than SLOW evaluations pass between the crossing and a gap that one
    evaluation resolves: closer evaluations then cost and tell nothing. every: how the spacing is named in the line.
    """
    slow = {task: found for task, found in noise.items() if (found.evaluations or 0) > SLOW}
    return [
        f"{task}: {found.n:,} questions resolve a gap of {_points(found.resolvable)} points, and from one evaluation to "
        f"the next it rose {_points(found.rise or 0)}: about {found.evaluations:.0f} evaluations pass before a lead "
        f"shows; {_mend(suite, found.n)}, or a larger {every}"
        for task, found in sorted(slow.items(), key=lambda item: -(item[1].evaluations or 0))
    ]


def _mend(suite: str, n: int) -> str:
    larger = LARGER.get(suite)
    if larger is None or (larger == "standard" and n >= MONITOR):
        return "ask more questions"
    if larger == "standard":
        return "use suite='standard'"
    worth = f"{MONITOR:,} resolve {_points(resolvable_gap(MONITOR))}"
    return f"use suite='{larger}' ({worth})"


def _points(share: float) -> str:
    """0.0631 → "6.3", from ten points on whole."""
    return f"{100 * share:.1f}" if round(100 * share, 1) < 10 else f"{100 * share:.0f}"
