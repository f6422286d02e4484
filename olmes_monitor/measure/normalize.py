"""From a choice's log-likelihood to the score it is ranked by.

The first five are OLMES's (§3.3, arXiv 2406.08446). `bayes` is Bayesian accuracy (arXiv 2607.12767, eq. 23–24), `anpmi`
the asymmetric normalized PMI (arXiv 2502.18798). All of one evaluation's follow from one forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from olmes_monitor.measure.accuracy import checked

Normalization = Literal["none", "token", "char", "byte", "pmi", "bayes", "anpmi"]
NORMALIZATIONS: tuple[Normalization, ...] = get_args(Normalization)
"""With ℓ = ln p(a|q), u = ln p(a|"Answer:") and n bytes: `none` ℓ; `token`, `char`, `byte` ℓ per unit of length; `pmi`
ℓ − u; `bayes` ℓ − b·n, where b is the task's slope of ℓ over n within questions; `anpmi` (ℓ − u)/−u."""

NEEDS: Mapping[str, tuple[str, ...]] = {
    "none": (),
    "token": ("tokens",),
    "char": ("chars",),
    "byte": ("bytes",),
    "pmi": ("unconditional",),
    "bayes": ("bytes", "offsets"),
    "anpmi": ("unconditional",),
}
"""Kind → what it needs beside the log-likelihoods."""


def normalize(
    loglikelihood: ArrayLike,
    kind: str,
    *,
    tokens: ArrayLike | None = None,
    chars: ArrayLike | None = None,
    bytes: ArrayLike | None = None,
    unconditional: ArrayLike | None = None,
    offsets: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Scores of choices, float64 of `loglikelihood`'s shape; a higher score is a better choice, NaN stays NaN.

    loglikelihood: ln p(choice | question), natural log. tokens, chars, bytes: lengths of the continuation, its
    leading space counted, as OLMES counts it: " x" has two characters. unconditional: ln p(choice | "Answer:").
    offsets: int[questions + 1], where each question's choices begin and end; for `bayes` only, whose slope is of one
    task at one point, so give it one task's choices at a time.
    `pmi` is a difference of log-likelihoods, not a ratio of them: ln [p(a|q) / p(a|u)]. `anpmi` is NaN for a choice
    that is certain by itself (u = 0).

    Raises ValueError for an unknown kind, for a kind whose input is missing or of another shape, and for a length
    below one.
    """
    scores = np.asarray(loglikelihood, dtype=np.float64)
    if kind not in NEEDS:
        raise ValueError(f"unknown normalization {kind!r}; the kinds are {', '.join(NORMALIZATIONS)}")
    given = {"tokens": tokens, "chars": chars, "bytes": bytes, "unconditional": unconditional, "offsets": offsets}
    if missing := [name for name in NEEDS[kind] if given[name] is None]:
        raise ValueError(f"normalization {kind!r} needs {missing[0]}=")
    if kind == "none":
        return scores.copy()
    name = NEEDS[kind][0]
    other = np.asarray(given[name], dtype=np.float64)
    if other.shape != scores.shape:
        raise ValueError(f"{name} has shape {other.shape}, the log-likelihoods {scores.shape}")
    if kind in ("pmi", "anpmi"):
        with np.errstate(invalid="ignore"):  # −inf − −inf is NaN, which is the honest answer
            return scores - other if kind == "pmi" else (scores - other) / np.where(other < 0, -other, np.nan)
    if np.any(other < 1):  # NaN (length unknown) passes and gives a NaN score
        raise ValueError(f"{name} holds a length below one; an empty continuation cannot be scored")
    if kind == "bayes":
        return scores - length_slope(scores, other, np.asarray(offsets)) * other
    return scores / other


def length_slope(loglikelihood: ArrayLike, bytes: ArrayLike, offsets: ArrayLike) -> float:
    """b = Σ(ℓ−ℓ̄)(n−n̄) / Σ(n−n̄)², each question around its own means, in nats a byte (arXiv 2607.12767, eq. 24).

    Centring within questions keeps their difficulty out: b is what one more byte costs among the choices of one
    question. loglikelihood, bytes: flat over choices. A question with a value that is not finite takes no part. Where
    no question has choices of different length there is no length effect to take out, and b is 0.
    """
    scores, offsets = checked(loglikelihood, offsets)
    starts, sizes = offsets[:-1], np.diff(offsets)
    lengths = np.asarray(bytes, dtype=np.float64)
    known = np.repeat(np.logical_and.reduceat(np.isfinite(scores) & np.isfinite(lengths), starts), sizes)
    scores, lengths = np.where(known, scores, 0.0), np.where(known, lengths, 0.0)
    centred = lengths - np.repeat(np.add.reduceat(lengths, starts) / sizes, sizes)
    spread = np.sum(centred**2)
    return float(np.sum(scores * centred) / spread) if spread > 0 else 0.0  # ℓ̄ falls out: Σ(n−n̄) is 0 in a question
