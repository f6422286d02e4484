"""A curve in one line of text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

LEVELS = "▁▂▃▄▅▆▇█"


def sparkline(values: ArrayLike, width: int, low: float, high: float) -> str:
    """At most `width` characters, the latest value last; a gap (·) where there is no value.

    values: (evaluations,). low, high: what the lowest and the highest level stand for, the same for curves that are
    compared. More values than characters are averaged in equal shares, NaN left out.
    """
    array = np.asarray(values, dtype=np.float64)
    if not len(array) or width < 1:
        return ""
    shares = np.array_split(array, min(width, len(array)))
    return "".join(_level(share[np.isfinite(share)], low, high) for share in shares)


def _level(values: np.ndarray, low: float, high: float) -> str:
    if not len(values):
        return "·"
    place = 0.5 if high <= low else (float(values.mean()) - low) / (high - low)
    return LEVELS[int(np.clip(place * len(LEVELS), 0, len(LEVELS) - 1))]


def common_range(curves: Sequence[ArrayLike]) -> tuple[float, float]:
    """The lowest and the highest value of several curves; (0, 0) without any."""
    values = np.concatenate([np.asarray(curve, dtype=np.float64) for curve in curves]) if curves else np.empty(0)
    values = values[np.isfinite(values)]
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
