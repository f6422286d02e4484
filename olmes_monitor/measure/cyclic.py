"""MCF over all cyclic orders of the choices: what a model knows once no label can help it.

In the order of shift k, label j stands for choice (j + k) mod n; shift 0 is the official order. A question with n choices
has the orders 0 … n − 1, and over them every choice stands at every label once, so a liking for a label cancels. This is
the "cyclic permutation" of Zheng et al. (arXiv 2309.03882): n orders, where all permutations would be n!.

`orders` is float64 (orders, choices) everywhere: row k holds ln p of the label that stood for each choice in the order of
shift k, NaN where a question lacks that order. Choices lie flat over questions, with `offsets` (see accuracy.py).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from olmes_monitor.measure.accuracy import UNDEFINED, checked, correct, mean, predict
from olmes_monitor.measure.signals import probability

SHIFTED = "mcf_shift"
"""What the names of the columns begin with that hold MCF in another than the official order."""
DIGITS = 12
"""Decimals of an averaged probability that count. A model blind to the choices gives them all the same average, and
which is the largest must then be a tie, not the rounding of a sum."""


def shift_column(shift: int) -> str:
    """The column of an evaluation's scores that holds MCF in the order of this shift, 1 or more."""
    return f"{SHIFTED}{shift}"


def existing(orders: ArrayLike, offsets: ArrayLike) -> NDArray[np.bool_]:
    """Which orders each question has, bool (orders, questions)."""
    return np.arange(len(np.asarray(orders)))[:, None] < np.diff(np.asarray(offsets))


def order_answers(orders: ArrayLike, offsets: ArrayLike) -> NDArray[np.int64]:
    """The choice that each question is answered with in each order, int64 (orders, questions).

    Of equally good labels the first, as in MCF's headline: not the first choice, which stands elsewhere in other orders.
    UNDEFINED (-1) where the question lacks the order or has no answer in it (`predict`).
    Raises ValueError if the offsets do not cut the choices into questions.
    """
    orders = np.asarray(orders, dtype=np.float64)
    return np.stack([_answers(scores, offsets, shift) for shift, scores in enumerate(orders)])


def _answers(scores: ArrayLike, offsets: ArrayLike, shift: int) -> NDArray[np.int64]:
    scores, offsets = checked(scores, offsets)
    sizes = np.diff(offsets)
    first = np.repeat(offsets[:-1], sizes)
    label = np.arange(len(scores)) - first
    best = predict(scores[first + (label + shift) % np.repeat(sizes, sizes)], offsets)
    return np.where(best == UNDEFINED, UNDEFINED, (best + shift) % sizes)


def debiased_answers(orders: ArrayLike, offsets: ArrayLike) -> NDArray[np.int64]:
    """Each question's choice with the largest probability averaged over the question's orders, int64[questions].

    The probability in one order is the softmax of the log-likelihoods over the question's choices: that of a label,
    given that one of them comes. Of equally good choices the first; UNDEFINED (-1) if an order has a NaN.
    """
    orders, offsets = np.asarray(orders, dtype=np.float64), np.asarray(offsets, dtype=np.int64)
    sizes = np.diff(offsets)
    probabilities = np.stack([probability(scores, offsets) for scores in orders])
    asked = np.repeat(existing(orders, offsets), sizes, axis=1)
    averages = np.where(asked, probabilities, 0.0).sum(axis=0) / np.repeat(sizes, sizes)
    return predict(averages.round(DIGITS), offsets)


def order_accuracies(
    answers: ArrayLike, offsets: ArrayLike, gold: ArrayLike, subjects: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Accuracy in each order over the questions that have it (averaged by `mean`), float64[orders].

    answers: of `order_answers`. NaN where one of those questions has no answer.
    """
    answers, gold = np.asarray(answers), np.asarray(gold)
    groups = None if subjects is None else np.asarray(subjects)
    found = [
        mean(correct(row[has], gold[has]), None if groups is None else groups[has])
        for row, has in zip(answers, existing(answers, offsets), strict=True)
    ]
    return np.array(found, dtype=np.float64)


def spread(accuracies: ArrayLike, offsets: ArrayLike) -> float:
    """Largest minus smallest accuracy over the orders that every question has: the same questions, the labels apart.

    accuracies: of `order_accuracies`.
    """
    shared = np.asarray(accuracies, dtype=np.float64)[: np.diff(np.asarray(offsets)).min()]
    return float(shared.max() - shared.min())


def consistent(answers: ArrayLike, offsets: ArrayLike) -> NDArray[np.float64]:
    """1.0 where a question's answer is the same choice in all its orders, 0.0 where not, float64[questions].

    answers: of `order_answers`; NaN where one is undefined.
    """
    answers = np.asarray(answers)
    has = existing(answers, offsets)
    same = np.all(~has | (answers == answers[0]), axis=0)
    return np.where(np.any(has & (answers == UNDEFINED), axis=0), np.nan, same.astype(np.float64))
