"""The other cyclic orders of a task's choices, as requests (what they mean: measure/cyclic.py)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from olmes_monitor.measure.cyclic import shift_column
from olmes_monitor.scoring.encode import EncodedTask, Encoder
from olmes_monitor.suite import Question, Task

Permutations = Literal["none", "cyclic"]
PERMUTATIONS: tuple[Permutations, ...] = get_args(Permutations)
"""In which orders of the choices MCF is asked: the official one, or all cyclic ones."""


@dataclass(frozen=True)
class Order:
    """The questions of a task that have more than `shift` choices, in MCF, their choices moved up by `shift` places."""

    shift: int
    encoded: EncodedTask
    choice: np.ndarray
    """int64 (requests,): which of all the task's choices each label stands for."""

    @property
    def column(self) -> str:
        """The column its log-likelihoods go to."""
        return shift_column(self.shift)


def make_orders(task: Task, encoder: Encoder) -> list[Order]:
    """Every order but the official one, encoded. Raises SetupError as `Encoder.encode_task` does."""
    most = max(len(question.choices) for question in task.questions)
    return [
        Order(shift, encoder.encode_task(shifted_task(task, shift), "mcf"), shifted_choices(task, shift))
        for shift in range(1, most)
    ]


def shifted_task(task: Task, shift: int) -> Task:
    """The task's questions that have more than `shift` choices, shifted; the shots stay as they are."""
    kept = [shifted(question, shift) for question in task.questions if len(question.choices) > shift]
    return replace(task, questions=kept)


def shifted(question: Question, shift: int) -> Question:
    """The same question, its choices beginning with choice `shift`: label j stands for choice (j + shift) mod n."""
    choices = question.choices
    gold = (question.gold - shift) % len(choices)
    return replace(question, choices=choices[shift:] + choices[:shift], gold=gold)


def shifted_choices(task: Task, shift: int) -> np.ndarray:
    """int64: for each label of `shifted_task`'s questions, the place of its choice among all the task's choices."""
    sizes = [len(question.choices) for question in task.questions]
    firsts = np.cumsum([0, *sizes[:-1]])
    kept = [(first, size) for first, size in zip(firsts, sizes, strict=True) if size > shift]
    return np.concatenate([first + (np.arange(size) + shift) % size for first, size in kept])
