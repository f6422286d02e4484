"""What can be scored without knowing anything: guesses that read neither question nor model.

All are averaged as the headline is (`accuracy.mean`): over questions, and for MMLU over subjects.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from olmes_monitor.measure.accuracy import correct, mean, predict


def chance(sizes: ArrayLike, subjects: ArrayLike | None = None) -> float:
    """Expected accuracy of a blind guess: the average of 1/n. sizes: choices of each question, int[questions]."""
    return float(mean(1.0 / np.asarray(sizes, dtype=np.float64), subjects))


def best_label(gold: ArrayLike, subjects: ArrayLike | None = None) -> float:
    """Accuracy of the best answer "always the same label". gold: right choice of each question, int[questions].

    A young model's MCF does just this, so an accuracy up to here shows no knowledge.
    NaN without questions.
    """
    gold = np.asarray(gold, dtype=np.int64)
    if not gold.size:
        return float("nan")
    labels = np.arange(gold.max() + 1)  # one row a label: (labels, questions)
    return float(mean(gold[None, :] == labels[:, None], subjects).max())


def floor(sizes: ArrayLike, gold: ArrayLike, subjects: ArrayLike | None = None) -> float:
    """What a model that knows nothing can score: the higher of `chance` and `best_label`."""
    return max(chance(sizes, subjects), best_label(gold, subjects))


def guesses(sizes: ArrayLike, gold: ArrayLike, subjects: ArrayLike | None = None) -> NDArray[np.float64]:
    """What the guesser behind `floor` gets right of each question, float64[questions]: 1 or 0 if it always answers the best
    single label, 1/n each if it answers blindly. Their `accuracy.mean` is the floor."""
    sizes, gold = np.asarray(sizes, dtype=np.float64), np.asarray(gold, dtype=np.int64)
    if not gold.size or chance(sizes, subjects) >= best_label(gold, subjects):
        return 1.0 / sizes
    labels = np.arange(gold.max() + 1)
    best = int(mean(gold[None, :] == labels[:, None], subjects).argmax())
    return (gold == best).astype(np.float64)


def pick_longest(chars: ArrayLike, offsets: ArrayLike, gold: ArrayLike, subjects: ArrayLike | None = None) -> float:
    """Accuracy of always taking the longest choice (first of equals). chars: flat over choices, see `predict`."""
    return float(mean(correct(predict(chars, offsets), gold), subjects))


def pick_shortest(chars: ArrayLike, offsets: ArrayLike, gold: ArrayLike, subjects: ArrayLike | None = None) -> float:
    """Accuracy of always taking the shortest choice (first of equals): what dividing by nothing leans to."""
    return pick_longest(-np.asarray(chars, dtype=np.float64), offsets, gold, subjects)
