"""The errors a user can meet. Each message names the thing and the mend."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from inspect import signature
from typing import Any


class OLMESError(Exception):
    """Base of every error this package raises on purpose."""


class SetupError(OLMESError, ValueError):
    """A wrong argument or an unusable model, tokenizer or suite, found before training starts."""


class DataError(OLMESError):
    """The questions cannot be fetched, verified or cached."""


class RecordError(OLMESError):
    """A run's record cannot be read, written or mixed with another."""


class EvaluationError(OLMESError, RuntimeError):
    """An evaluation could not be finished; the message names the rank, the task and the first cause."""

    out_of_memory = False
    """Whether a rank ran out of device memory, so that smaller forward calls may help."""


def settings_of(*made: Callable[..., Any], but: Sequence[str] = ()) -> list[str]:
    """Names of the arguments of functions or classes, each once, those in `but` left out."""
    return [name for name in dict.fromkeys(n for each in made for n in signature(each).parameters) if name not in but]


def refuse_unknown(owner: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raise SetupError, offering the nearest name, for a setting that `owner` does not have."""
    for name in sorted(set(given) - set(known)):
        near = difflib.get_close_matches(name, known, n=1)
        offer = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(known)}"
        raise SetupError(f"{owner} has no setting {name!r}{offer}")
