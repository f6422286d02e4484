"""From a choice's log-likelihood to the score it is ranked by (OLMES §3.3, arXiv 2406.08446)."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Normalization = Literal["none", "token", "char", "byte", "pmi"]
NORMALIZATIONS: tuple[Normalization, ...] = get_args(Normalization)
"""`none` ln p(a|q); `token`, `char`, `byte` the same per unit of length; `pmi` ln p(a|q) − ln p(a|"Answer:")."""


def normalize(
    loglikelihood: ArrayLike,
    kind: str,
    *,
    tokens: ArrayLike | None = None,
    chars: ArrayLike | None = None,
    bytes: ArrayLike | None = None,
    unconditional: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Scores of choices, float64 of `loglikelihood`'s shape; a higher score is a better choice, NaN stays NaN.

    loglikelihood: ln p(choice | question), natural log. tokens, chars, bytes: lengths of the continuation, its
    leading space counted, as OLMES counts it: " x" has two characters. unconditional: ln p(choice | "Answer:").
    `pmi` is a difference of log-likelihoods, not a ratio of them: ln [p(a|q) / p(a|u)].

    Raises ValueError for an unknown kind, for a kind whose input is missing or of another shape, and for a length
    below one.
    """
    scores = np.asarray(loglikelihood, dtype=np.float64)
    inputs = {"token": tokens, "char": chars, "byte": bytes, "pmi": unconditional}
    names = {"token": "tokens", "char": "chars", "byte": "bytes", "pmi": "unconditional"}
    if kind == "none":
        return scores.copy()
    if kind not in inputs:
        raise ValueError(f"unknown normalization {kind!r}; the kinds are {', '.join(NORMALIZATIONS)}")
    given = inputs[kind]
    if given is None:
        raise ValueError(f"normalization {kind!r} needs {names[kind]}=")
    other = np.asarray(given, dtype=np.float64)
    if other.shape != scores.shape:
        raise ValueError(f"{names[kind]} has shape {other.shape}, the log-likelihoods {scores.shape}")
    if kind == "pmi":
        with np.errstate(invalid="ignore"):  # −inf − −inf is NaN, which is the honest answer
            return scores - other
    if np.any(other < 1):  # NaN (length unknown) passes and gives a NaN score
        raise ValueError(f"{names[kind]} holds a length below one; an empty continuation cannot be scored")
    return scores / other
