"""When an evaluation is due, in tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass

from olmes_monitor.errors import SetupError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_NUMBER = re.compile(r"(?P<number>\d[\d_,]*(?:\.\d+)?(?:[eE]\+?\d+)?|\.\d+)\s*(?P<unit>[KMBGTkmbgt]?)")


def parse_tokens(value: int | float | str, name: str = "every") -> int:
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
class Schedule:
    """An evaluation at every multiple of `every` tokens, and by choice at the start and at the end."""

    every: int
    """Tokens between two evaluations."""
    at_start: bool = True
    """Evaluate before the first optimizer step (of a run that starts at 0 tokens)."""
    at_end: bool = True
    """Evaluate when training ends, unless that very point was evaluated."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "every", parse_tokens(self.every))

    def due(self, before: int, after: int) -> bool:
        """Whether a boundary lies in (before, after]; a step that jumps over several owes one evaluation."""
        return after // self.every > before // self.every

    def next(self, tokens: int) -> int:
        """The first boundary beyond `tokens`."""
        return (tokens // self.every + 1) * self.every
