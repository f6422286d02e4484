"""A question and a request: the two small records that everything else is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Formulation = Literal["cf", "mcf"]
FORMULATIONS: tuple[Formulation, ...] = ("cf", "mcf")
"""Cloze (the answer text is scored) and multiple choice (its label is scored), OLMES §2 (arXiv 2406.08446)."""

LABELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Question:
    """One benchmark item."""

    id: str
    """The benchmark's own id; unique within its task."""
    stem: str
    """The question text. With a fill-in template (WinoGrande) it holds one `_` where a choice goes."""
    choices: tuple[str, ...]
    """The answer texts, in the benchmark's order. Equal texts may occur; nothing is keyed by text."""
    gold: int
    """Index of the right choice."""
    passage: str = ""
    """Text the question is about (BoolQ)."""
    subject: str = ""
    """MMLU's subject; "" elsewhere. Shots and macro averages go by subject."""

    def __post_init__(self) -> None:
        if len(self.choices) < 2:
            raise ValueError(f"question {self.id!r} has {len(self.choices)} choices; a question needs at least two")
        if len(self.choices) > len(LABELS):
            raise ValueError(f"question {self.id!r} has {len(self.choices)} choices; labels end at Z (26)")
        if not 0 <= self.gold < len(self.choices):
            raise ValueError(f"question {self.id!r}: gold is {self.gold}, but there are {len(self.choices)} choices")


class Request(NamedTuple):
    """A context and the continuation whose log-likelihood is asked for, as text."""

    context: str
    continuation: str
