"""At which token the multiple-choice form overtook the cloze form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from olmes_monitor.measure.accuracy import mean, stderr

State = Literal["tentative", "not_reached", "from_start", "reverted", "undecided"]
"""MCF leads at an evaluation if it is above CF and above its floor: two curves at chance cross often and mean nothing by it.
tentative: it took the lead and kept it to the last evaluation. not_reached: it does not lead at the end. from_start: it
leads at every evaluation: the crossover lies before the first. reverted: it does not lead at the end, though it once did
for two evaluations in a row, by more than two standard errors. undecided: fewer than two evaluations with values."""

CLEAR = 2.0
"""Standard errors beyond which a gap counts as clearly positive."""


@dataclass(frozen=True)
class Crossover:
    """Where the gap (MCF minus CF) turned positive to stay, and the gap it was read from."""

    state: State
    tokens: int | None = None
    """Token count from which MCF keeps the lead, interpolated; None in every state but `tentative`."""
    lo: int | None = None
    """Lower end of the interval of `tokens`; None while no interval is known."""
    hi: int | None = None
    """Upper end of the interval of `tokens`."""
    step: int | None = None
    """The optimizer step that belongs to `tokens`, interpolated likewise; None if steps were not given."""
    evaluated: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64), compare=False, repr=False)
    """(evaluations,) token counts."""
    gap: NDArray[np.float64] = field(default_factory=lambda: np.empty(0), compare=False, repr=False)
    """(evaluations,) MCF minus CF accuracy; NaN where the evaluation has no value."""
    stderr: NDArray[np.float64] = field(default_factory=lambda: np.empty(0), compare=False, repr=False)
    """(evaluations,) standard error of `gap`: paired if per-question results were given."""


def find_crossover(
    tokens: ArrayLike,
    cf: ArrayLike,
    mcf: ArrayLike,
    *,
    steps: ArrayLike | None = None,
    n: int | None = None,
    floor: float | None = None,
    subjects: ArrayLike | None = None,
    tasks: ArrayLike | None = None,
) -> Crossover:
    """The token count where MCF takes the lead and keeps it to the last evaluation.

    tokens: int (evaluations,), strictly increasing. cf, mcf: either what was answered right, bool or 0/1 floats
    (evaluations, questions), the same questions in both; or accuracies (evaluations,) between 0 and 1, together with n,
    the number of questions. The first gives a paired standard error, usually a much smaller one. A NaN takes its whole
    evaluation out. steps: int (evaluations,). floor: what MCF must exceed to lead, beside CF. subjects,
    tasks: a label for each question, for averages over subjects (MMLU) and tasks.

    The crossing is interpolated linearly, on MCF − max(CF, floor), between the last evaluation at which that is not
    positive and the next one.
    Raises ValueError for shapes that do not fit, tokens that do not increase, or accuracies without n.
    """
    tokens = np.asarray(tokens)
    cf, mcf = np.asarray(cf, dtype=np.float64), np.asarray(mcf, dtype=np.float64)
    _check(tokens, cf, mcf, steps, n)
    if cf.ndim == 2:
        gap, error = mean(mcf - cf, subjects, tasks), stderr(mcf - cf, subjects, tasks)
        level = mean(mcf, subjects, tasks)
    else:
        gap, error, level = mcf - cf, _unpaired(cf, mcf, n or 0), mcf
    gap = np.round(gap, 12)  # a macro average of equal parts may miss zero by 1e-17, and the sign decides here
    lead = gap if floor is None else np.minimum(gap, np.round(level - floor, 12))
    finite = np.flatnonzero(np.isfinite(lead))
    state = _state(lead[finite], error[finite])
    at = step = None
    if state == "tentative":
        before = int(np.flatnonzero(lead[finite] <= 0)[-1])
        pair = finite[before : before + 2]
        at = _zero(tokens[pair], lead[pair])
        step = None if steps is None else _zero(np.asarray(steps)[pair], lead[pair])
    return Crossover(state, at, step=step, evaluated=tokens, gap=gap, stderr=error)


def _state(lead: NDArray[np.float64], error: NDArray[np.float64]) -> State:
    """State of a curve without NaN, (evaluations,)."""
    if len(lead) < 2:
        return "undecided"
    if lead[-1] > 0:
        return "from_start" if np.all(lead > 0) else "tentative"
    clear = (lead > 0) & (lead > CLEAR * error)  # False where the error is NaN (one question)
    return "reverted" if np.any(clear[1:] & clear[:-1]) else "not_reached"


def _zero(x: NDArray[np.int64], lead: NDArray[np.float64]) -> int:
    """Where the line through (x[0], lead[0] ≤ 0) and (x[1], lead[1] > 0) is zero, rounded to a whole count."""
    return round(float(x[0] + (x[1] - x[0]) * (-lead[0] / (lead[1] - lead[0]))))


def _unpaired(cf: NDArray[np.float64], mcf: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Standard error of the gap of two accuracies as if over different questions: √(Σ p(1−p)/(n−1))."""
    if n < 2:
        return np.full_like(cf, np.nan)
    return np.sqrt((cf * (1 - cf) + mcf * (1 - mcf)) / (n - 1))


def _check(
    tokens: NDArray[np.int64],
    cf: NDArray[np.float64],
    mcf: NDArray[np.float64],
    steps: ArrayLike | None,
    n: int | None,
) -> None:
    if cf.shape != mcf.shape:
        raise ValueError(f"cf has shape {cf.shape} and mcf {mcf.shape}; they must be over the same questions")
    if cf.ndim not in (1, 2) or tokens.shape != cf.shape[:1]:
        raise ValueError(
            f"tokens has shape {tokens.shape}, cf {cf.shape}; cf is (evaluations, questions) or (evaluations,)"
        )
    if steps is not None and np.shape(steps) != tokens.shape:
        raise ValueError(f"steps has shape {np.shape(steps)}, tokens {tokens.shape}")
    if not np.all(np.diff(tokens) > 0):
        place = int(np.argmin(np.diff(tokens) > 0))
        raise ValueError(
            f"tokens must increase, but {tokens[place + 1]} follows {tokens[place]} (evaluation {place + 1})"
        )
    if np.any(cf < 0) or np.any(cf > 1) or np.any(mcf < 0) or np.any(mcf > 1):
        raise ValueError("cf and mcf must lie between 0 and 1: right or wrong, or accuracies as fractions")
    if cf.ndim == 1 and n is None:
        raise ValueError("accuracies without the number of questions have no standard error: give n=")
    if cf.ndim == 2 and n is not None:
        raise ValueError("n is for accuracies; with (evaluations, questions) arrays it is known")
