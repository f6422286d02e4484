"""The lead of MCF as a curve: its noise, what of it is jitter between checkpoints, and the smooth curve through it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PRIOR_JITTER, PRIOR_WEIGHT = 0.005, 2.0
"""Where few evaluations tell of the jitter, half an accuracy point is assumed, with the weight of two measurements."""

RECENT = 24
"""Contrasts of neighbouring evaluations from which the jitter is estimated."""

SPIKE = 5.0
"""Standard deviations by which a single evaluation must stand out from both its neighbours to be left aside."""

WIDTHS = (0, 1, 2, 3, 4, 6, 8, 11, 15, 20, 27, 36, 48)
"""Half-widths of the smoothing window that are tried, in evaluations."""

AGREE = 0.35
"""Standard errors within which a wider window must agree with all narrower ones to be taken: it bounds the bias."""


def contrasts(x: Floats) -> Floats:
    """(evaluations − 3, evaluations): third divided differences, each row of length 1.

    Four neighbours less the parabola through them: what remains of a smooth curve is small, of independent noise with
    variance v it is noise with variance v, whatever the spacing.
    """
    n = len(x)
    if n < 4:
        return np.zeros((0, n))
    place = np.arange(n - 3)[:, None] + np.arange(4)
    near = x[place]
    apart = near[:, :, None] - near[:, None, :]
    apart[:, np.arange(4), np.arange(4)] = 1
    weights = 1 / (apart / (near[:, 3] - near[:, 0])[:, None, None]).prod(axis=2)
    weights /= np.linalg.norm(weights, axis=1, keepdims=True)
    rows = np.zeros((n - 3, n))
    np.put_along_axis(rows, place, weights, axis=1)
    return rows


def jitter_variance(x: Floats, lead: Floats, covariance: Floats, centred: bool = False) -> tuple[Floats, Floats]:
    """(variance of the jitter, variance of the questions' noise that neighbours do not share), each (evaluations,).

    As known at each evaluation from it and up to RECENT + 2 earlier ones, or, if centred, from the evaluations around
    it: jitter is often larger while the curves rise. The jitter's: the squared contrasts' median, over the 0.455 that
    it is of the variance in a normal distribution, less the variance that the questions give these contrasts (an answer
    that flips to and fro is noise of the questions, not of the checkpoint). The median, since neither a curve that bends
    sharply once nor one bad evaluation is jitter.
    """
    rows, prior = contrasts(x), PRIOR_JITTER**2
    if not len(rows):
        return np.full(len(x), prior), np.zeros(len(x))
    squares, flips = (rows @ lead) ** 2, np.einsum("ce,ce->c", rows @ covariance, rows)
    number, n = np.arange(len(x)), len(squares)
    last = number + RECENT // 2 - 2 if centred else number - 3  # the last contrast that is used at an evaluation
    if centred:
        last = np.clip(last, min(RECENT, n) - 1, n - 1)
    inside = (np.arange(n) <= last[:, None]) & (np.arange(n) > last[:, None] - RECENT)
    count = np.maximum(inside.sum(axis=1), 1)
    seen = np.sort(np.where(inside, squares, np.inf), axis=1)
    median = (seen[number, (count - 1) // 2] + seen[number, count // 2]) / 2
    expected = inside @ flips / count
    measured = np.maximum(median / 0.455 - expected, 0)
    found = (PRIOR_WEIGHT * prior + count * measured) / (PRIOR_WEIGHT + count)
    return np.where(inside.any(axis=1), found, prior), expected


def spikes(lead: Floats, spread: float) -> NDArray[np.bool_]:
    """(evaluations,) those that stand out from both their neighbours to the same side by more than SPIKE × spread."""
    out = np.zeros(len(lead), dtype=bool)
    if len(lead) > 4:
        left, right = lead[1:-1] - lead[:-2], lead[1:-1] - lead[2:]
        out[1:-1] = (left * right > 0) & (np.minimum(np.abs(left), np.abs(right)) > SPIKE * spread)
    return out


def smoother(x: Floats, half: int) -> Floats:
    """(evaluations, evaluations): row i is the weights of the local line at i over the evaluations i ± half (tricube).

    Applied to a curve it returns the line's value at each evaluation; a straight line stays as it is.
    """
    n = len(x)
    if half == 0 or n < 3:
        return np.eye(n)
    steps = np.abs(np.arange(n)[:, None] - np.arange(n)) / (half + 1)
    weights = np.where(steps < 1, (1 - np.minimum(steps, 1) ** 3) ** 3, 0)
    scale = x[-1] - x[0]
    apart = (x - x[:, None]) / scale
    s0, s1, s2 = (np.sum(weights * apart**power, axis=1, keepdims=True) for power in range(3))
    return weights * (s2 - s1 * apart) / (s0 * s2 - s1**2)


def width(x: Floats, lead: Floats, around: int, independent: float) -> int:
    """The half-width of the window for a curve that crosses zero near evaluation `around`.

    The widest whose estimates there agree with those of all narrower ones within AGREE standard errors each
    (intersection of confidence intervals, Goldenshluger & Nemirovski 1997): wide where noise is large beside the
    curve's bend, none where the curve jumps. independent: variance of the noise that neighbours do not share.
    """
    place = [i for i in (around, around + 1) if 0 <= i < len(lead)]
    low, high = np.full(len(place), -np.inf), np.full(len(place), np.inf)
    chosen = 0
    for half in WIDTHS:
        if half > len(lead) // 2:
            break
        rows = smoother(x, half)[place]
        value, error = rows @ lead, AGREE * np.sqrt(independent * np.sum(rows**2, axis=1))
        low, high = np.maximum(low, value - error), np.minimum(high, value + error)
        if np.any(low > high):
            break
        chosen = half
    return chosen
