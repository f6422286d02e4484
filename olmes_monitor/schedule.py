"""When an evaluation is due, in tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from olmes_monitor.errors import SetupError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_NUMBER = re.compile(r"(?P<number>\d[\d_,]*(?:\.\d+)?(?:[eE]\+?\d+)?|\.\d+)\s*(?P<unit>[KMBGTkmbgt]?)")

Tokens = int | float | str
"""A number of tokens as parse_tokens takes it."""


def parse_tokens(value: Tokens, name: str = "every") -> int:
    """A number of tokens from 1_000_000, 2.5e9, "500M", "1B", "2.5e9" or "1 T" (decimal units: K, M, B = G, T).

    Raises SetupError if the value is not a positive whole number of tokens.
    """
    mend = f'{name} takes a positive number of tokens: an int, "500M", "1B" or "2.5e9"; got {value!r}'
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value.strip())
        if match is None:
            raise SetupError(mend)
        number = float(match["number"].replace("_", "").replace(",", "")) * _UNITS[match["unit"].upper()]
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise SetupError(mend)
    else:
        number = value
    # inf and NaN fail the comparison; a fraction of a token is a typing error, not a request.
    if not 1 <= number < 2**63 or number != int(number):
        raise SetupError(mend)
    return int(number)


@dataclass(frozen=True)
class Geometric:
    """The points first, first · ratio, first · ratio², …: dense early, where small models cross."""

    first: int
    ratio: float

    @classmethod
    def parse(cls, text: str) -> Geometric:
        """From "geometric:100M,1.2". Raises SetupError if it is not of this form or the ratio not above 1."""
        mend = (
            f'a geometric schedule is written "geometric:<first point>,<ratio>", as "geometric:100M,1.2"; got {text!r}'
        )
        try:
            first, ratio = text.removeprefix("geometric:").rsplit(",", 1)
            found = cls(parse_tokens(first), float(ratio))
        except (ValueError, SetupError) as error:
            raise SetupError(mend) from error
        if not 1 < found.ratio < math.inf:
            raise SetupError(mend)
        return found

    def next(self, tokens: int) -> int:
        """The first point beyond `tokens`."""
        if tokens < self.first:
            return self.first
        # One before what the logarithm says: it may be off by a rounding, the points themselves may not.
        power = max(0, int(math.log(tokens / self.first, self.ratio)) - 1)
        while round(self.first * self.ratio**power) <= tokens:
            power += 1
        return round(self.first * self.ratio**power)


@dataclass(frozen=True)
class Schedule:
    """When to evaluate: at multiples of `every`, at given points, at saved checkpoints, at the start and at the end."""

    every: Tokens | Geometric | None
    """Tokens between two evaluations; or "geometric:<first>,<ratio>"; or None."""
    at_start: bool = True
    """Evaluate before the first optimizer step (of a run that starts at 0 tokens)."""
    at_end: bool = True
    """Evaluate when training ends, unless that very point was evaluated."""
    at: Sequence[Tokens] = ()
    """Token counts at which to evaluate, besides `every`; kept sorted, each once."""
    at_checkpoints: bool = False
    """Evaluate whenever a checkpoint is saved."""

    def __post_init__(self) -> None:
        every, at = self.every, self.at
        if isinstance(every, str) and every.startswith("geometric:"):
            every = Geometric.parse(every)
        elif every is not None and not isinstance(every, Geometric):
            every = parse_tokens(every)
        if isinstance(at, str | int | float):
            raise SetupError(f'at takes a list of token counts, as ["100M", "1B"]; got {at!r}')
        object.__setattr__(self, "every", every)
        object.__setattr__(self, "at", tuple(sorted({parse_tokens(point, "at") for point in at})))
        if every is None and not (self.at or self.at_checkpoints or self.at_start or self.at_end):
            raise SetupError(
                'nothing is scheduled: give every="1B", at=["100M", …], at_checkpoints=True, at_start or at_end'
            )

    def next(self, tokens: int) -> int | None:
        """The first scheduled point beyond `tokens`; None if there is no further one."""
        points: list[int] = []
        if isinstance(self.every, Geometric):
            points.append(self.every.next(tokens))
        elif isinstance(self.every, int):
            points.append((tokens // self.every + 1) * self.every)
        points += [int(point) for point in self.at if int(point) > tokens][:1]
        return min(points, default=None)

    def due(self, before: int, after: int) -> bool:
        """Whether a scheduled point lies in (before, after]; a step that jumps over several owes one evaluation."""
        point = self.next(before)
        return point is not None and point <= after

    @property
    def interval(self) -> int | None:
        """Tokens between the two scheduled points that lie closest together; None if that cannot be known."""
        if isinstance(self.every, Geometric):
            gaps = [self.every.first, max(1, self.every.next(self.every.first) - self.every.first)]
        else:
            gaps = [] if self.every is None else [int(self.every)]
        points = (0, *self.at)
        gaps += [int(b) - int(a) for a, b in pairwise(points)]
        return min(gaps, default=None)
