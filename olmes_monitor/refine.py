"""Zooming in: where the next evaluation falls, when the gap comes near zero. Pure and deterministic; imports nothing heavy.

Denser evaluations average out what moves from checkpoint to checkpoint (jitter, answers that flip to and fro), and they see
a rise that is steep beside the spacing. They do not make the questions more: where the interval's width comes from
which questions were asked, they hardly narrow it (docs/explain.md has the figures), and there this rule spends little.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

from olmes_monitor.errors import SetupError
from olmes_monitor.schedule import Schedule, Tokens, parse_tokens

FINEST = 8
"""By default the floor of the spacing is every / FINEST."""
CAP = 0.3
"""By default at most this share of evaluations beyond the regular ones, at any time of the run."""

BAND = 2.0
"""Standard errors on either side of the gap: its confidence band."""
LOOK_BACK = 3.0
"""How far back, in units of `every`, the gap is compared with the latest to see how fast it rises."""
APART = 0.5
"""How far apart, likewise, two evaluations must be for that."""
APPROACH = 0.5
"""Share of the predicted way to the crossing that one evaluation may skip: the prediction is from few, noisy numbers."""

CHANCE = 0.1
"""How often, of evaluations of curves that stay where they are, one may be taken for a rise (over all tasks together): each
costs an extra evaluation, to look again. The beginning of a rise within one spacing is seen in time only so."""
PLATEAU = 0.9
"""How long before an evaluation, in units of `every`, the level lies from which it may have begun to rise."""
LEAST = 0.25
"""Standard errors that the evaluation before is taken to have risen at least: less cannot be told from none."""
SUDDEN = 0.25
"""As APPROACH, for a rise that has just begun."""

AFTER = 0.5
"""How long, in units of `every`, a task counts on after its crossing was confirmed: as many evaluations beyond the crossing
as before it pin it down best, and where it is steep three close ones confirm it at once."""


@dataclass(frozen=True)
class Refine:
    """How a run zooms in: Monitor(refine=Refine(floor="100M"))."""

    floor: Tokens | None = None
    """The smallest spacing of evaluations, in tokens; every/8 by default."""
    cap: float = CAP
    """At most this share of evaluations beyond the regular ones."""


class Seen(NamedTuple):
    """One evaluation's gap for one task."""

    tokens: int
    lead: float
    """MCF minus CF, or minus its floor where that is higher."""
    stderr: float
    """Its standard error, jitter included where it is known."""


def next_point(
    curves: Sequence[Sequence[Seen]],
    tokens: int,
    extra: int,
    every: int,
    floor: int | None = None,
    cap: float = CAP,
    planned: int | None = None,
) -> int:
    """Tokens of the next evaluation after the one at `tokens`: a multiple of `every`, or nearer.

    curves: for each task whose crossing is not settled yet, its evaluations so far, by tokens. extra: evaluations so far
    between which and the one before lay no multiple of `every`. floor: the smallest spacing, every/8 by default. cap:
    the extra ones' largest share of the regular ones: of those up to `planned` tokens, the run's end, if it is given and
    still ahead, else of those so far, so that the share holds whenever the run ends.

    The spacing is every, every/2, every/4, … not below the floor, the smallest that any task asks for (`spacing`); points
    lie on its multiples, so the regular ones are always among them. The same numbers give the same answer on every rank.
    """
    regular = (tokens // every + 1) * every
    left = int(cap * (max(tokens, planned or 0) // every)) - extra
    if left < 1:
        return regular
    smallest = every if floor is None else floor
    levels = math.floor(math.log2(every / smallest)) if floor is not None else int(math.log2(FINEST))
    finest, doubt = every / 2**levels, NormalDist().inv_cdf(1 - CHANCE / max(len(curves), 1))
    wanted = min(
        (min(spacing(curve, every, finest, left, doubt), max(sudden(curve, every, doubt), finest)) for curve in curves),
        default=float(every),
    )
    level = min(levels, max(0, math.ceil(math.log2(every / wanted))))
    # Not every // 2**level: the multiples of a rounded spacing would drift off those of `every`.
    number = tokens * 2**level // every + 1
    point = -(-number * every // 2**level)
    return point if point > tokens else regular


def spacing(curve: Sequence[Seen], every: float, floor: float, left: int, doubt: float) -> float:
    """The spacing in tokens that one task asks for, from `floor` to `every`; left: extra evaluations it may count on; doubt:
    standard errors by which a rise may be less than it looks.

    With the gap at g ± s and rising by r a token, the band needs 2·BAND·s/r tokens to pass zero, and the crossing is
    |g|/r tokens away. The extra evaluations are laid evenly over the band, or as closely as the floor allows where it
    is narrow; on the way there (and away) the spacing is APPROACH of what is left. A slow rise has a band wider than the
    extra ones can fill: then the answer is `every`, and so it is where the gap does not rise.
    """
    rise = _rise(curve, every, doubt)
    if rise <= 0:
        return every
    latest = curve[-1]
    within = max(2 * BAND * latest.stderr / rise / left, floor)
    away = abs(latest.lead) / rise - within * left / 2
    return min(every, max(within, APPROACH * away, floor))


def sudden(curve: Sequence[Seen], every: float, doubt: float) -> float:
    """The spacing in tokens that a task asks for as its lead begins to rise from a plateau below zero; `every` if none does.

    The lead is above the plateau by h, more than `doubt` standard errors, and was by less at the evaluation before. A
    sudden rise begins exponentially (a logistic curve does): at that rate of growth it reaches zero in
    ln(−plateau / h) / rate tokens, of which SUDDEN may pass unseen.
    """
    latest = curve[-1]
    level = [seen.lead for seen in curve if latest.tokens - seen.tokens >= PLATEAU * every]
    plateau = sum(level) / len(level) if level else 0.0
    risen = latest.lead - plateau
    error = latest.stderr * math.sqrt(1 + 1 / max(len(level), 1))
    if latest.lead >= 0 or plateau >= 0 or risen <= doubt * error:
        return every
    before = max(curve[-2].lead - plateau, LEAST * latest.stderr)
    if not 0 < before < risen:
        return every
    growth = math.log(risen / before) / (latest.tokens - curve[-2].tokens)
    return SUDDEN * math.log(-plateau / risen) / growth


def _rise(curve: Sequence[Seen], every: float, doubt: float) -> float:
    """How fast the lead rises, a token, at the latest evaluation: the steepest way up from an earlier one, each lessened
    by `doubt` standard errors, so that noise alone seldom counts as a rise; 0 where there is none."""
    if len(curve) < 2:
        return 0.0
    latest = curve[-1]
    found = [0.0]
    for earlier in curve[:-1]:
        apart = latest.tokens - earlier.tokens
        if APART * every <= apart <= LOOK_BACK * every:
            error = math.hypot(latest.stderr, earlier.stderr)
            found.append((latest.lead - earlier.lead - doubt * error) / apart)
    return max(found)


def refiner_of(refine: bool | Refine, schedule: Schedule) -> Refiner | None:
    """What `refine=` asks for beside this schedule; None for False. Raises SetupError where the two do not fit."""
    if refine is False:
        return None
    settings = Refine() if refine is True else refine
    if not isinstance(settings, Refine):
        raise SetupError(f'refine takes True, False or Refine(floor="100M", cap=0.3); got {refine!r}')
    if not isinstance(schedule.every, int):
        raise SetupError('refine divides a regular spacing: give every as a number of tokens, as every="1B"')
    floor = None if settings.floor is None else parse_tokens(settings.floor, "floor")
    return Refiner(schedule.every, floor, settings.cap)


class Refiner:
    """The same decision with its memory: what was seen, and how many extra evaluations were spent."""

    def __init__(self, every: int, floor: int | None = None, cap: float = CAP, planned: int | None = None) -> None:
        """every: tokens between regular evaluations. floor: the smallest spacing, every/8 by default. cap: largest
        share of extra evaluations. planned: tokens at the run's end, if known; all extra ones may then be spent at an
        early crossing. Raises SetupError for a floor not in 1 to every, or a cap below 0."""
        if floor is not None and not 1 <= floor <= every:
            raise SetupError(f"the floor of the refined spacing must lie between 1 and every={every}, not {floor}")
        if not cap >= 0:
            raise SetupError(f"the cap on extra evaluations must be 0 or more, not {cap}")
        self.every, self.floor, self.cap, self.planned = every, floor, cap, planned
        self._curves: dict[str, list[Seen]] = {}
        self._settled: dict[str, int] = {}  # task → tokens at which its crossing was known to be confirmed
        self._extra = 0
        self._last = 0

    def observe(
        self,
        tokens: int,
        leads: Mapping[str, tuple[float, float]],
        settled: Sequence[str] = (),
        extra: bool | None = None,
    ) -> int:
        """After each evaluation: the tokens at which the next one is due.

        leads: task → (lead, its standard error); a task without a value (NaN, absent) is left out of this decision.
        settled: tasks whose crossing is confirmed; they count for AFTER more. extra: whether it is an evaluation beyond the
        regular ones; by default, whether no multiple of `every` lies between it and the one before. Training that went
        back gives up what lies at or beyond `tokens`.
        """
        if extra is None:  # training advances in whole steps: none falls on a multiple
            extra = self._last < tokens and tokens // self.every == self._last // self.every
        self._extra += extra
        if tokens <= self._last:
            for curve in self._curves.values():
                curve[:] = [seen for seen in curve if seen.tokens < tokens]
        self._last = tokens
        self._settled = {task: min(self._settled.get(task, tokens), tokens) for task in settled}
        for task, (lead, error) in leads.items():
            if math.isfinite(lead) and math.isfinite(error):
                curve = self._curves.setdefault(task, [])
                curve.append(Seen(tokens, lead, error))
                # What is older is never looked at again.
                curve[:] = [seen for seen in curve if tokens - seen.tokens <= LOOK_BACK * self.every]
        return self.next()

    def reset(self) -> None:
        """Forget what was seen."""
        self._curves, self._settled, self._extra, self._last = {}, {}, 0, 0

    @property
    def last(self) -> int:
        """Tokens of the last evaluation observed; 0 before the first."""
        return self._last

    def next(self) -> int:
        """The tokens at which the next evaluation is due, after the last one observed."""
        curves = [
            curve
            for task, curve in self._curves.items()
            if curve
            and curve[-1].tokens == self._last
            and self._last < self._settled.get(task, self._last) + AFTER * self.every
        ]
        return next_point(curves, self._last, self._extra, self.every, self.floor, self.cap, self.planned)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on with the same decisions; plain lists and numbers."""
        return {
            "curves": {task: [list(seen) for seen in curve] for task, curve in self._curves.items()},
            "settled": dict(self._settled),
            "extra": self._extra,
            "last": self._last,
            "planned": self.planned,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of state_dict."""
        self._curves = {task: [Seen(*seen) for seen in curve] for task, curve in state["curves"].items()}
        self._settled, self._extra, self._last = dict(state["settled"]), int(state["extra"]), int(state["last"])
        self.planned = state["planned"]
