"""A bootstrap over questions, paired: a question keeps its answers in both formulations and at all evaluations."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from olmes_monitor.measure.accuracy import ENOUGH, _strata

Floats = NDArray[np.float64]


def covariance(values: ArrayLike, subjects: ArrayLike | None = None, tasks: ArrayLike | None = None) -> Floats:
    """(evaluations, evaluations) of `mean(values, subjects, tasks)` over draws of the questions within their subjects.

    values: (evaluations, questions). The diagonal is `stderr(values, subjects, tasks)`², small subjects treated alike;
    beside it stands what two evaluations share because they ask the same questions. NaN for one question alone.
    """
    strata = _strata(values, subjects, tasks)
    values, sizes, task_sizes = strata.values, strata.sizes, strata.task_sizes
    if not len(sizes):
        return np.full((len(values), len(values)), np.nan)
    k = np.repeat(task_sizes, task_sizes) * len(task_sizes)  # the weight of a subject is 1/k
    owed = 1 / (sizes * k**2)  # times the variance of its questions
    enough = sizes >= ENOUGH
    own = np.where(enough, owed / np.maximum(sizes - 1, 1), 0)
    freedom = np.add.reduceat(sizes - 1, strata.task_starts)
    pooled = np.add.reduceat(np.where(enough, 0, owed), strata.task_starts)
    within = np.repeat(np.where(freedom > 0, pooled / np.maximum(freedom, 1), 0), task_sizes)
    deviations = values - np.repeat(strata._subject_means(), sizes, axis=-1)
    found = (deviations * np.repeat(own + within, sizes)) @ deviations.T
    ends = np.append(strata.starts, values.shape[1])
    for task in np.flatnonzero(freedom == 0):  # a question a subject: around the task's own mean
        first = strata.task_starts[task]
        part = values[:, ends[first] : ends[first + task_sizes[task]]]
        around = part - part.mean(axis=1, keepdims=True)
        found += pooled[task] / (part.shape[1] - 1 or np.nan) * (around @ around.T)
    return found


def draws(covariance: Floats, jitter: float, samples: int, generator: np.random.Generator) -> NDArray[np.float32]:
    """(samples, evaluations) of the noise of a curve: its questions' and its checkpoints'.

    The questions' is the bootstrap with a normal weight for each question (multiplier bootstrap) instead of the number
    of times it was drawn: a weighted sum of questions with such weights is normal with their covariance, so that it is
    drawn as such, whatever their number; from a hundred questions on the sums cannot be told apart. jitter: variance of
    what each checkpoint adds by itself.
    """
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(np.maximum(values, 0))).T.astype(np.float32)
    normal = generator.standard_normal((2, samples, len(covariance)), dtype=np.float32)
    return normal[0] @ root + normal[1] * np.float32(np.sqrt(jitter))
