"""At which token the multiple-choice form overtook the cloze form."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from olmes_monitor.measure import resample
from olmes_monitor.measure.accuracy import mean, stderr
from olmes_monitor.measure.gap import jitter_variance, smoother, spikes, width
from olmes_monitor.measure.verdict import BEHIND, abrupt, begins, clear, runs, scatter, zeros

State = Literal["not_reached", "tentative", "confirmed", "from_start", "reverted", "undecided"]
"""MCF leads at an evaluation if it is above CF and above its floor: two curves at chance cross often and mean nothing by it.
not_reached: the smoothed lead ends at or below zero, and no lead was ever confirmed. tentative: the lead begins between
two evaluations and lasts to the end, but is not confirmed, or was and has since sunk to nothing that is clear. confirmed:
likewise, and clear (verdict.clear); nothing since speaks clearly against it. from_start: clear, and it begins before
the first evaluation. reverted: a lead was confirmed, and since then the contrary. undecided: fewer than two evaluations
with values, or MCF leads from the first on, but not clearly."""

Floats = NDArray[np.float64]

SETBACK = 0.6
"""Standard errors below zero at which the smoothed lead is lost for a while: the crossing that is reported is the one after
the last such place, if the interval holds it."""


@dataclass(frozen=True)
class Crossover:
    """Where the lead (MCF minus CF, or minus the floor where CF is below it) turned positive to stay, and its evidence."""

    state: State
    tokens: int | None = None
    """Token count from which MCF keeps the lead, between two evaluations; None but in `tentative` and `confirmed`."""
    lo: int | None = None
    """Lower end of the interval of `tokens`; None where `tokens` is, and where it may lie before the first evaluation."""
    hi: int | None = None
    """Upper end, likewise; None also where the lead may be none, so that the crossing may be still to come."""
    step: int | None = None
    """The optimizer step that belongs to `tokens`; None if steps were not given."""
    confirmed: int | None = None
    """Token count of the evaluation that made the lead clear; None but in `confirmed` and `from_start`."""
    confirmed_step: int | None = None
    """Its optimizer step; None if steps were not given."""
    p_value: float | None = None
    """One-sided, of the mean lead over the lasting run being none, sampling of questions and jitter counted, looks not;
    None without a lasting run."""
    jitter: float | None = None
    """Estimated standard deviation of the gap from checkpoint to checkpoint, beyond the questions' noise (of accuracies:
    with it), as a fraction; None with fewer than four evaluations."""
    evaluated: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64), compare=False, repr=False)
    """(evaluations,) token counts."""
    gap: Floats = field(default_factory=lambda: np.empty(0), compare=False, repr=False)
    """(evaluations,) MCF minus CF accuracy; NaN where the evaluation has no value."""
    stderr: Floats = field(default_factory=lambda: np.empty(0), compare=False, repr=False)
    """(evaluations,) standard error of `gap` over questions: paired if per-question results were given."""
    smooth: Floats = field(default_factory=lambda: np.empty(0), compare=False, repr=False)
    """(evaluations,) the smoothed lead, whose zero is `tokens`; NaN where the evaluation has no value."""


def find_crossover(
    tokens: ArrayLike,
    cf: ArrayLike,
    mcf: ArrayLike,
    *,
    steps: ArrayLike | None = None,
    n: int | None = None,
    floor: float | ArrayLike | None = None,
    subjects: ArrayLike | None = None,
    tasks: ArrayLike | None = None,
    k: int = 3,
    samples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Crossover:
    """Where MCF takes the lead over CF and keeps it to the last evaluation (docs/crossover.md says how, step by step).

    tokens: int (evaluations,), strictly increasing. cf, mcf: either what was answered right, bool or 0/1 floats
    (evaluations, questions), the same questions in both; or accuracies (evaluations,) between 0 and 1, together with n,
    the number of questions. The first is paired, and usually much sharper. A NaN takes its whole evaluation out.
    steps: int (evaluations,). floor: what MCF must exceed to lead, beside CF: a number, or what the best guesser gets right
    of each question, (questions,), `floors.guesses`; that is paired too: an MCF that always answers one label is at its floor
    without any noise. subjects, tasks: a label for each question, for averages over subjects (MMLU) and tasks. k:
    evaluations in a row that a confirmation needs at least. samples, seed: of the bootstrap over questions and jitter, whose
    quantiles are lo and hi. level: of that interval.
    The same input gives the same answer.
    Raises ValueError for shapes that do not fit, tokens that do not increase, accuracies without n, or k < 1.
    """
    tokens = np.asarray(tokens)
    cf, mcf = np.asarray(cf, dtype=np.float64), np.asarray(mcf, dtype=np.float64)
    _check(tokens, cf, mcf, steps, n)
    if floor is not None and np.ndim(floor) and (cf.ndim == 1 or np.shape(floor) != cf.shape[1:]):
        raise ValueError(f"floor has shape {np.shape(floor)}, cf {cf.shape}: it is a number, or one for each question")
    if k < 1 or samples < 1 or not 0 < level < 1:
        raise ValueError(f"k={k} and samples={samples} must be at least 1, level={level} between 0 and 1")
    if cf.ndim == 2:
        gap, error = mean(mcf - cf, subjects, tasks), stderr(mcf - cf, subjects, tasks)
        reached = mean(mcf, subjects, tasks)
    else:
        gap, error, reached = mcf - cf, _unpaired(cf, mcf, n or 0), mcf
    gap = np.round(gap, 12)  # a macro average of equal parts may miss zero by 1e-17, and the sign decides here
    guessed = 0.0 if floor is None else np.asarray(floor, dtype=np.float64)
    lowest = guessed if np.ndim(guessed) == 0 else mean(guessed, subjects, tasks)
    lead = gap if floor is None else np.minimum(gap, np.round(reached - lowest, 12))
    use = np.flatnonzero(np.isfinite(lead))
    smooth = np.full(len(lead), np.nan)
    curve: dict[str, Any] = {"evaluated": tokens, "gap": gap, "stderr": error, "smooth": smooth}
    if len(use) < 2:
        smooth[use] = lead[use]
        return Crossover("undecided", **curve)
    if cf.ndim == 1:
        covariance = np.outer(error[use], error[use])
    else:
        over_cf = lead[use] == gap[use]  # else MCF leads over the floor; one given as a number has no noise
        rival = np.where(over_cf[:, None], cf[use], guessed if np.ndim(guessed) else 0.0)
        covariance = resample.covariance(mcf[use] - rival, subjects, tasks)
    found = _analyse(tokens[use].astype(np.float64), lead[use], covariance, k, samples, level, seed)
    smooth[use] = found.smooth
    at_steps = None if steps is None else np.asarray(steps)[use]
    who = None if found.confirmed is None else int(use[found.confirmed])
    return Crossover(
        found.state,
        tokens=_whole(found.at),
        lo=_whole(found.lo),
        hi=_whole(found.hi),
        step=None if at_steps is None or found.at is None else _whole(np.interp(found.at, tokens[use], at_steps)),
        confirmed=None if who is None else int(tokens[who]),
        confirmed_step=None if who is None or steps is None else int(np.asarray(steps)[who]),
        p_value=found.p_value,
        jitter=found.jitter,
        **curve,
    )


class _Found(NamedTuple):
    """What the lead of the evaluations with values shows, in tokens and numbers of those evaluations."""

    state: State
    at: float | None
    lo: float | None
    hi: float | None
    confirmed: int | None
    p_value: float | None
    jitter: float | None
    smooth: Floats


def _analyse(x: Floats, lead: Floats, covariance: Floats, k: int, samples: int, level: float, seed: int) -> _Found:
    """x, lead: (evaluations,), at least two, without NaN. covariance: of the questions' noise, NaN if it is unknown."""
    known = bool(np.isfinite(covariance).all())
    covariance = covariance if known else np.zeros_like(covariance)
    noise = _noise(x, lead, covariance)
    kept, curve, shared = x[noise.keep], lead[noise.keep], covariance[np.ix_(noise.keep, noise.keep)]
    pilot = begins(curve[None], BEHIND * np.sqrt(np.diag(shared) + noise.jitter))[0]
    rows = smoother(kept, width(kept, curve, int(pilot), noise.jitter + noise.flips))
    fitted = rows @ curve
    spread = np.sqrt(np.einsum("te,te->t", rows @ shared, rows) + noise.jitter * np.sum(rows**2, axis=1))
    behind = BEHIND * spread
    before = int(begins(fitted[None], behind)[0])
    confirmed, lost = _stands(x, lead, covariance, k) if known else (None, False)
    end = len(kept) - 1 if confirmed is None else int(np.searchsorted(noise.keep, confirmed))
    faded = confirmed is not None and before == len(kept) - 1
    if faded:  # the lead has sunk to zero since it was clear: it began before that
        before = min(int(begins(fitted[None, : end + 1], behind[: end + 1])[0]), end - 1)
    elif confirmed is None and fitted[-1] <= 0:
        before = len(kept) - 1
    doubt = faded or bool(np.all(lead[-k:] <= 0))
    state = _state(noise.keep, before, None if doubt else confirmed, lost)
    at = lo = hi = p_value = None
    if state in ("tentative", "confirmed"):
        late = int(begins(fitted[None], SETBACK * spread)[0])
        before = late if late < end else before
        at = float(zeros(kept, fitted[None], np.array([before]))[0])
        if known:
            generator = np.random.default_rng(seed)
            draws = resample.draws(shared, noise.jitter, samples, generator)
            strayed = (curve.astype(np.float32) + draws) @ rows.T.astype(np.float32)
            begun = begins(strayed, behind.astype(np.float32))
            whole = rows @ (shared + noise.jitter * np.eye(len(kept))) @ rows.T
            step = abrupt(kept, fitted, whole, before)
            lo, hi = _middle(scatter(kept, zeros(kept, strayed, begun), begun, before, step, generator), level)
            at = min(max(at, at if lo is None else lo), at if hi is None else hi)
    if known and state in ("tentative", "confirmed", "from_start"):
        p_value = _p_value(curve, shared, noise.jitter, before + 1)
    jitter = math.sqrt(noise.jitter) if known and len(x) > 3 else None
    stands = confirmed if state in ("confirmed", "from_start") else None
    return _Found(state, at, lo, hi, stands, p_value, jitter, np.interp(x, kept, fitted))


class _Noise(NamedTuple):
    """The noise around the crossing."""

    jitter: float
    """Variance."""
    flips: float
    """Variance of the questions' noise that neighbours do not share."""
    keep: NDArray[np.int64]
    """Numbers of the evaluations that are no spikes."""


def _noise(x: Floats, lead: Floats, covariance: Floats) -> _Noise:
    jitter, flips = jitter_variance(x, lead, covariance, centred=True)
    pilot = max(int(begins(lead[None], BEHIND * np.sqrt(np.diag(covariance) + jitter))[0]), 0)
    spread = math.sqrt(jitter[pilot] + flips[pilot])
    return _Noise(float(jitter[pilot]), float(flips[pilot]), np.flatnonzero(~spikes(lead, spread)))


def _stands(x: Floats, lead: Floats, covariance: Floats, k: int) -> tuple[int | None, bool]:
    """(the evaluation that made the lead clear that still stands, whether a clear lead was lost and not regained)."""
    jitter, flips = jitter_variance(x, lead, covariance)
    return runs(clear(lead, covariance, jitter, flips, k), clear(-lead, covariance, jitter, flips, k))


def _state(keep: NDArray[np.int64], before: int, confirmed: int | None, lost: bool) -> State:
    """keep: numbers of the evaluations that are no spikes. before: which of them is the last before the lasting run.
    confirmed: the evaluation that made the lead clear, None if none did or it is in doubt."""
    if before == len(keep) - 1:
        return "reverted" if lost else "not_reached"
    if before < 0:
        return "undecided" if confirmed is None else "from_start"
    return "tentative" if confirmed is None or keep[before] >= confirmed else "confirmed"


def _middle(crossings: Floats, level: float) -> tuple[float | None, float | None]:
    """The middle `level` of the samples' crossings; an end that lies outside the evaluations is None."""
    found = np.sort(crossings)
    beyond = math.floor((1 - level) / 2 * (len(found) - 1))  # as many lie below lo, and as many above hi
    lo, hi = float(found[beyond]), float(found[-1 - beyond])
    return lo if math.isfinite(lo) else None, hi if math.isfinite(hi) else None


def _p_value(lead: Floats, covariance: Floats, jitter: float, start: int) -> float:
    """P(mean lead from evaluation `start` on is at least as large | there is none), normal."""
    run = slice(start, None)
    error = math.sqrt(max(covariance[run, run].mean(), 0) + jitter / len(lead[run]))
    return 0.5 * math.erfc(lead[run].mean() / error / math.sqrt(2)) if error else float(lead[run].mean() <= 0)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


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
