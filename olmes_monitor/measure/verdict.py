"""When a lead is confirmed, when the contrary is, and where the lasting run begins."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Floats = NDArray[np.float64]

GROWTH, WINDOWS = 1.6, 5
"""The latest k, 1.6 k, 1.6² k, … evaluations are tested, this many numbers of them."""

BOUND = 2.6
"""Standard errors that the first look at a run asks for; later looks ask for more, see `bound`."""

CLIP = 3.0
"""Standard deviations by which one evaluation may exceed the two before it and be believed at once."""

BEHIND = 2.0
"""Standard errors below zero at which the smoothed lead is clearly behind: a crossing lies after the last such place."""


def bound(looks: NDArray[np.int64], fresh: Floats) -> Floats:
    """How many standard errors the look number `looks` (from 1) asks for: √(BOUND² + (2 + 4 fresh) ln(1 + ln looks)).

    Who looks again and again sees any bound exceeded in the end, unless it grows, as the law of the iterated logarithm
    does. fresh: share of the variance that is new at each evaluation; what is common to all (the same questions) strays
    once and not at each look. The constants are calibrated on curves that touch and never cross (docs/crossover.md).
    """
    return np.sqrt(BOUND**2 + (2 + 4 * fresh) * np.log1p(np.log(looks)))


def clear(lead: Floats, covariance: Floats, jitter: Floats, flips: Floats, k: int) -> NDArray[np.bool_]:
    """(evaluations,) whether the evaluations up to each one show that MCF leads, not looking at later ones.

    They do if the last k are all above zero, and the weighted mean of the last k, or of more, is above `bound` standard
    errors. The weights rise linearly to the last evaluation, as a lead after a crossing does; any weights ≥ 0 make a
    valid test, since the mean of leads that are none is none. One evaluation that exceeds the two before it by more
    than CLIP standard deviations of the noise that they do not share counts as so much.
    lead: (evaluations,), without NaN. covariance: (evaluations, evaluations) of the questions' noise. jitter, flips:
    (evaluations,) variances of the jitter and of the questions' noise that neighbours do not share, as known at each.
    """
    n = len(lead)
    found = np.zeros(n, dtype=bool)
    believed = _clipped(lead, jitter + flips)
    for window in sorted({round(k * GROWTH**i) for i in range(WINDOWS)}):
        if window > n:
            break
        weights = np.arange(1, window + 1) / (window * (window + 1) / 2)
        squares, last = np.sum(weights**2), slice(window - 1, None)
        shared = sliding_window_view(covariance, (window, window))  # its diagonal: the blocks of each window
        shared = np.moveaxis(shared.diagonal(), -1, 0) @ weights @ weights
        variance = shared + jitter[last] * squares
        fresh = np.minimum((jitter + flips)[last] * squares / np.maximum(variance, 1e-300), 1)
        mean = sliding_window_view(believed, window) @ weights
        found[last] |= mean > bound(np.arange(window, n + 1), fresh) * np.sqrt(variance)
    return found & (np.convolve(lead > 0, np.ones(k), "full")[:n] == k)


def _clipped(lead: Floats, independent: Floats) -> Floats:
    """The lead, no value more than CLIP standard deviations above the higher of the two before it."""
    found = lead.copy()
    before = np.maximum(lead[:-1], np.concatenate([[-np.inf], lead[:-2]]))
    found[1:] = np.minimum(lead[1:], before + CLIP * np.sqrt(independent[1:]))
    return found


def runs(ahead: NDArray[np.bool_], behind: NDArray[np.bool_]) -> tuple[int | None, bool]:
    """(evaluation that confirmed the lead that still stands or None, whether a confirmed lead was lost and not regained).

    ahead, behind: (evaluations,) what is clear at each; a lead stands from the first clear one until the contrary is clear.
    """
    confirmed, lost = None, False
    for i in range(len(ahead)):
        if confirmed is None and ahead[i]:
            confirmed, lost = i, False
        elif confirmed is not None and behind[i]:
            confirmed, lost = None, True
    return confirmed, lost


def begins(curves: NDArray[np.floating], behind: NDArray[np.floating]) -> NDArray[np.int64]:
    """(samples,) the last evaluation before the lasting run of each smoothed lead; −1 if it leads from the first.

    After the last place at which the curve lies below −behind, it is where the running sum of the lead is least: from
    there on every stretch sums to a lead, before it to none. With one change of sign this is the change; where the
    curve wavers about zero, it is the change that a step function fits best (isotonic regression changes its sign there).
    If it is the last evaluation, no run has begun. curves: (samples, evaluations). behind: (evaluations,), ≥ 0.
    """
    samples, n = curves.shape
    sums = np.zeros((samples, n + 1), dtype=curves.dtype)
    np.cumsum(curves, axis=1, out=sums[:, 1:])
    far = curves < -behind
    last = n - np.argmax(far[:, ::-1], axis=1)  # index into sums, after the last evaluation far behind
    last[~far.any(axis=1)] = 0
    sums[np.arange(n + 1) < last[:, None]] = np.inf
    return n - 1 - np.argmin(sums[:, ::-1], axis=1)  # of equal sums the last: a lead of exactly zero is none


def zeros(x: Floats, curves: NDArray[np.floating], before: NDArray[np.int64]) -> Floats:
    """(samples,) where each curve is zero between evaluation `before` and the next; −inf, inf outside the evaluations."""
    inside = (before >= 0) & (before < len(x) - 1)
    left = np.clip(before, 0, max(len(x) - 2, 0))
    rows = np.arange(len(curves))
    low, high = curves[rows, left], curves[rows, np.minimum(left + 1, len(x) - 1)]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.clip(np.nan_to_num(np.where(inside, -low / (high - low), 0), nan=1), 0, 1)
    found = x[left] + share * (x[np.minimum(left + 1, len(x) - 1)] - x[left])
    return np.where(inside, found, np.where(before < 0, -np.inf, np.inf))


STEP = 1.5
"""A step near one of two evaluations slopes on that side too: two thirds of a rise unexplained count as all of it."""


def abrupt(x: Floats, curve: Floats, noise: Floats, before: int) -> float:
    """How far the rise from evaluation `before` to the next is a step, 0 to 1: what straight lines cannot know.

    0: the curve rises as fast on either side, and is straight enough for its zero to lie where the line's does. 1: on both
    sides it is flat, and where between the two it rose nothing tells. In between, the share of the rise that the mean slope
    of the two sides leaves unexplained, less two standard deviations of that. curve: (evaluations,) the smoothed lead;
    noise: (evaluations, evaluations) its covariance; a side beyond the evaluations counts as flat.
    """
    rise = curve[before + 1] - curve[before]
    if rise <= 0:
        return 0.0
    apart = x[before + 1] - x[before]
    unexplained = np.zeros(len(x))
    unexplained[before : before + 2] = -1, 1
    for left in (before - 1, before + 1):
        if 0 <= left < len(x) - 1:
            part = apart / (x[left + 1] - x[left]) / 2
            unexplained[left : left + 2] -= -part, part
    doubt = 2 * np.sqrt(np.maximum(unexplained @ noise @ unexplained, 0))
    return float(np.clip(STEP * (unexplained @ curve - doubt) / rise, 0, 1))


def scatter(
    x: Floats, crossings: Floats, begun: NDArray[np.int64], before: int, share: float, generator: np.random.Generator
) -> Floats:
    """(samples,) crossings, those between evaluation `before` and the next moved by `share` of the way to a place that is
    drawn evenly between the two. begun: (samples,) the last evaluation before each sample's crossing."""
    moved, here = crossings.copy(), begun == before
    anywhere = x[before] + generator.random(len(crossings)) * (x[before + 1] - x[before])
    moved[here] += share * (anywhere - crossings)[here]
    return moved
