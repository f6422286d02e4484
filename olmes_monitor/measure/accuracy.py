"""From choices' scores to accuracies and their standard errors.

Choices of all questions lie in one flat array; `offsets` int[questions + 1] says where each question's begin and end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

UNDEFINED = -1
"""The prediction of a question that has none."""

ENOUGH = 5
"""Questions from which on a subject's own variance is used."""


def predict(scores: ArrayLike, offsets: ArrayLike) -> NDArray[np.int64]:
    """Each question's best choice, int64[questions]; of equally good ones the first.

    A question with a NaN among its choices, or whose best score is infinite, gets UNDEFINED (-1): NaN never wins, and
    neither does the first of many impossible choices.
    Raises ValueError if the offsets do not cut the scores into questions of at least one choice.
    """
    scores, offsets = checked(scores, offsets)
    if len(offsets) == 1:
        return np.empty(0, dtype=np.int64)
    starts, sizes = offsets[:-1], np.diff(offsets)
    best = np.maximum.reduceat(scores, starts)  # NaN if any choice is NaN
    place = np.arange(len(scores)) - np.repeat(starts, sizes)
    nowhere = len(scores)
    first = np.minimum.reduceat(np.where(scores == np.repeat(best, sizes), place, nowhere), starts)
    return np.where(np.isfinite(best), first, UNDEFINED)


def count_ties(scores: ArrayLike, offsets: ArrayLike) -> int:
    """Number of questions whose best score is shared by several choices; undefined questions are not counted."""
    scores, offsets = checked(scores, offsets)
    if len(offsets) == 1:
        return 0
    best = np.maximum.reduceat(scores, offsets[:-1])
    winners = np.add.reduceat((scores == np.repeat(best, np.diff(offsets))).astype(np.int64), offsets[:-1])
    return int(np.sum((winners > 1) & np.isfinite(best)))


def correct(predictions: ArrayLike, gold: ArrayLike) -> NDArray[np.float64]:
    """1.0 where the prediction is the gold choice, 0.0 where not, NaN where it is undefined; float64[questions]."""
    predictions, gold = np.asarray(predictions), np.asarray(gold)
    return np.where(predictions == UNDEFINED, np.nan, (predictions == gold).astype(np.float64))


def mean(values: ArrayLike, subjects: ArrayLike | None = None, tasks: ArrayLike | None = None) -> NDArray[np.float64]:
    """The headline average over the last axis: (…, questions) → (…).

    Over the questions of a subject, then over the subjects of a task (macro, as OLMES does for MMLU's 57), then over
    tasks. subjects, tasks: a label for each question, None where there is only one. A NaN makes its average NaN, and so
    does having no questions.
    """
    return _strata(values, subjects, tasks).mean()


def stderr(values: ArrayLike, subjects: ArrayLike | None = None, tasks: ArrayLike | None = None) -> NDArray[np.float64]:
    """Standard error of `mean(values, subjects, tasks)`, the questions taken as drawn within their subjects.

    Without labels it is sd/√n, with n − 1 in the sd: for 0/1 values the binomial √(p(1−p)/(n−1)). For the gap give the
    differences mcf − cf: question by question they cancel what makes a question hard for both (paired).
    Over k subjects it is √(Σ se²)/k, and likewise over tasks. A subject with fewer than ENOUGH questions has no
    variance worth the name (quick suites ask one or two a subject): it takes its task's pooled within-subject variance,
    Σ(x − its subject's mean)² / Σ(n_s − 1); if no subject has two questions, the task's variance around its own mean,
    which errs on the wide side. One question alone has no standard error: NaN.
    """
    return _strata(values, subjects, tasks).stderr()


class _Strata(NamedTuple):
    """Values sorted so that each subject's questions lie together."""

    values: NDArray[np.float64]  # (…, questions)
    starts: NDArray[np.int64]  # (subjects,) where a subject begins
    sizes: NDArray[np.int64]  # (subjects,) its questions
    task_starts: NDArray[np.int64]  # (tasks,) the first subject of a task
    task_sizes: NDArray[np.int64]  # (tasks,) its subjects

    def mean(self) -> NDArray[np.float64]:
        if not len(self.starts):
            return np.full(self.values.shape[:-1], np.nan)
        return self._over_tasks(self._subject_means()).mean(axis=-1)

    def stderr(self) -> NDArray[np.float64]:
        if not len(self.starts):
            return np.full(self.values.shape[:-1], np.nan)
        deviations = self.values - np.repeat(self._subject_means(), self.sizes, axis=-1)
        squares = np.add.reduceat(deviations**2, self.starts, axis=-1)
        own = squares / np.maximum(self.sizes - 1, 1)
        pooled = np.repeat(self._pooled(squares), self.task_sizes, axis=-1)
        squared = np.where(self.sizes >= ENOUGH, own, pooled) / self.sizes
        k = np.repeat(self.task_sizes, self.task_sizes) * len(self.task_sizes)  # the weight of a subject is 1/k
        return np.sqrt(np.sum(squared / k**2, axis=-1))

    def _pooled(self, squares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Pooled within-subject variance, (…, tasks); the whole variance where no subject has two questions."""
        freedom = np.add.reduceat(self.sizes - 1, self.task_starts)
        within = np.add.reduceat(squares, self.task_starts, axis=-1) / np.maximum(freedom, 1)
        questions = np.add.reduceat(self.sizes, self.task_starts)
        firsts = self.starts[self.task_starts]
        centre = np.add.reduceat(self.values, firsts, axis=-1) / questions
        around = (self.values - np.repeat(centre, questions, axis=-1)) ** 2
        whole = np.add.reduceat(around, firsts, axis=-1) / np.where(questions > 1, questions - 1, np.nan)
        return np.where(freedom > 0, within, whole)

    def _subject_means(self) -> NDArray[np.float64]:
        return np.add.reduceat(self.values, self.starts, axis=-1) / self.sizes

    def _over_tasks(self, by_subject: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.add.reduceat(by_subject, self.task_starts, axis=-1) / self.task_sizes


def _strata(values: ArrayLike, subjects: ArrayLike | None, tasks: ArrayLike | None) -> _Strata:
    array = np.asarray(values, dtype=np.float64)
    questions = array.shape[-1]
    subject, task = _codes(subjects, questions, "subjects"), _codes(tasks, questions, "tasks")
    order = np.lexsort((subject, task))
    subject, task = subject[order], task[order]
    new_task = np.ones(questions, dtype=bool)
    new_task[1:] = task[1:] != task[:-1]
    new = new_task.copy()
    new[1:] |= subject[1:] != subject[:-1]
    starts = np.flatnonzero(new)
    task_starts = np.flatnonzero(new_task[starts])
    sizes = np.diff(starts, append=questions)
    return _Strata(array[..., order], starts, sizes, task_starts, np.diff(task_starts, append=len(starts)))


def _codes(labels: ArrayLike | None, questions: int, name: str) -> NDArray[np.int64]:
    if labels is None:
        return np.zeros(questions, dtype=np.int64)
    array = np.asarray(labels)
    if array.shape != (questions,):
        raise ValueError(f"{name} has shape {array.shape}, but there are {questions} questions")
    return np.unique(array.astype(str) if array.dtype == object else array, return_inverse=True)[1]


def checked(scores: Any, offsets: Any) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Both as arrays, float64 (choices,) and int64 (questions + 1,).

    Raises ValueError if the offsets do not cut the scores into questions of at least one choice.
    """
    scores, offsets = np.asarray(scores, dtype=np.float64), np.asarray(offsets, dtype=np.int64)
    if scores.ndim != 1 or offsets.ndim != 1 or not len(offsets) or offsets[0] != 0 or offsets[-1] != len(scores):
        raise ValueError(f"offsets must run from 0 to the number of scores ({scores.shape}), in one dimension")
    if np.any(np.diff(offsets) < 1):
        raise ValueError("offsets must increase: each question has at least one choice")
    return scores, offsets
