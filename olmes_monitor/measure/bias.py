"""What answers lean on beside knowledge: the label's letter, the answer's length. No extra forward passes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from olmes_monitor.measure.accuracy import checked, correct


def label_bias(predictions: ArrayLike, gold: ArrayLike, labels: int) -> dict[str, Any]:
    """How MCF's answers spread over the labels, against where the gold choices are.

    predictions, gold: int[questions], positions from 0 (A) to labels − 1. Questions without a prediction (−1) are left
    out of `predicted` and `accuracy`.

    predicted, gold: questions a label, counts. total_variation: ½ Σ |share predicted − share gold|: 0 where the answers
    spread as the gold choices do, near 1 − 1/labels for a model that always says the same. accuracy: share answered
    right of the questions whose gold choice has this label, None where there is none.
    """
    predictions, gold = np.asarray(predictions, dtype=np.int64), np.asarray(gold, dtype=np.int64)
    known = predictions >= 0
    predicted, actual = (np.bincount(array, minlength=labels) for array in (predictions[known], gold[known]))
    right = np.bincount(gold[known], weights=correct(predictions, gold)[known], minlength=labels)
    return {
        "predicted": predicted.tolist(),
        "gold": actual.tolist(),
        "total_variation": float(np.abs(predicted - actual).sum() / (2 * max(known.sum(), 1))),
        "accuracy": [float(r / n) if n else None for r, n in zip(right, actual, strict=True)],
    }


def kendall_tau(scores: ArrayLike, lengths: ArrayLike, offsets: ArrayLike) -> NDArray[np.float64]:
    """Kendall's τ_b of score against length within each question, float64[questions].

    Over the pairs of a question's choices: τ_b = (concordant − discordant) / √(pairs not tied in score · pairs not tied
    in length). 1: the longer the better; −1: the shorter. NaN (undefined) where all scores or all lengths are equal, or
    one is NaN. scores, lengths: flat over choices; offsets: int[questions + 1].
    """
    scores, offsets = checked(scores, offsets)
    lengths = np.asarray(lengths, dtype=np.float64)
    if lengths.shape != scores.shape:
        raise ValueError(f"lengths has shape {lengths.shape}, scores {scores.shape}")
    sizes = np.diff(offsets)
    found = np.full(len(sizes), np.nan)
    for size in np.unique(sizes):  # questions of one size are a matrix, their pairs its columns
        questions = np.flatnonzero(sizes == size)
        choices = offsets[questions][:, None] + np.arange(size)
        by_score, by_length = _order(scores[choices]), _order(lengths[choices])
        untied = np.sum(by_score != 0, axis=1) * np.sum(by_length != 0, axis=1)
        defined = (untied > 0) & ~np.isnan(scores[choices] + lengths[choices]).any(axis=1)
        agreement = np.sum(by_score * by_length, axis=1, dtype=np.int64)
        found[questions[defined]] = (agreement / np.sqrt(np.maximum(untied, 1)))[defined]
    return found


def length_bias(scores: ArrayLike, lengths: ArrayLike, offsets: ArrayLike) -> tuple[float, int]:
    """(mean of `kendall_tau` over the questions that have one, how many have none); NaN if none has.

    The measure of arXiv 2607.12767 (eq. 14 and 16): 0 is free of length bias, above 0 leans to longer choices.
    """
    tau = kendall_tau(scores, lengths, offsets)
    defined = tau[~np.isnan(tau)]
    return (float(defined.mean()) if defined.size else float("nan")), len(tau) - len(defined)


def _order(values: NDArray[np.float64]) -> NDArray[np.int8]:
    """Sign of every pair's difference, int8 (questions, pairs): by comparing, so that two infinities are tied."""
    first, second = np.triu_indices(values.shape[1], 1)
    return (values[:, first] > values[:, second]).astype(np.int8) - (values[:, first] < values[:, second])
