"""Signals that move before accuracy does: what the model gives the gold choice, question by question.

Accuracy stays at chance until the gold choice comes first; these are smooth in the log-likelihoods, so a young model's
progress shows in them. All take choices flat over questions with `offsets` (see accuracy.py), and a NaN among a
question's choices makes its value NaN.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from olmes_monitor.measure.accuracy import checked


def probability(loglikelihood: ArrayLike, offsets: ArrayLike) -> NDArray[np.float64]:
    """exp(ℓ) / Σ exp(ℓ) over a question's choices, float64[choices]: a choice's probability, given that one comes.

    loglikelihood: ℓ, natural log. Stable for sums far below what exp can hold; NaN where every choice is impossible.
    """
    scores, offsets = checked(loglikelihood, offsets)
    starts, sizes = offsets[:-1], np.diff(offsets)
    best = np.maximum.reduceat(scores, starts)
    with np.errstate(invalid="ignore"):  # −inf − −inf
        below = np.exp(scores - np.repeat(best, sizes))
    return below / np.repeat(np.add.reduceat(below, starts), sizes)


def gold_probability(loglikelihood: ArrayLike, offsets: ArrayLike, gold: ArrayLike) -> NDArray[np.float64]:
    """The gold choice's `probability`, float64[questions], between 0 and 1.

    loglikelihood: ℓ = ln p(choice | question), natural log, not normalized by length: it is the model's own
    probability of the gold choice given that one of the choices comes. DataDecide (arXiv 2504.11393) calls it
    normalized correct probability.
    """
    starts = np.asarray(offsets, dtype=np.int64)[:-1]
    return probability(loglikelihood, offsets)[starts + np.asarray(gold, dtype=np.int64)]


def bits_per_byte(
    loglikelihood: ArrayLike, bytes: ArrayLike, offsets: ArrayLike, gold: ArrayLike
) -> NDArray[np.float64]:
    """−ℓ_gold / (ln 2 · bytes) of the gold answer's text, float64[questions], lower is better.

    bytes: UTF-8 length of the continuation, its leading space counted. Comparable between tokenizers; the task loss of
    scaling ladders (arXiv 2412.04403).
    """
    scores, offsets = checked(loglikelihood, offsets)
    at = offsets[:-1] + np.asarray(gold, dtype=np.int64)
    return -scores[at] / (np.log(2) * np.asarray(bytes, dtype=np.float64)[at])


def label_mass(loglikelihood: ArrayLike, offsets: ArrayLike) -> NDArray[np.float64]:
    """Σ p(label) over a question's labels, float64[questions]: how sure the model is that a label comes at all."""
    scores, offsets = checked(loglikelihood, offsets)
    return np.add.reduceat(np.exp(scores), offsets[:-1])
