"""A task: questions with their template, shots and normalization."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from olmes_monitor.errors import SetupError
from olmes_monitor.suite.question import FORMULATIONS, Formulation, Question, Request
from olmes_monitor.suite.templates import BLANK, Template

NORMALIZATIONS = ("none", "token", "char", "byte", "pmi")
"""OLMES's CF normalizations; a task names the one its CF accuracy is reported with."""

DEFAULT = Template()

RESERVED_NAMES = ("average",)
"""Metric keys stand in `olmes/cf/<task>`, and `olmes/cf/average` is taken."""


@dataclass(frozen=True, repr=False)
class Task:
    """Questions to ask, and how. Immutable; renders requests on demand.

    Raises SetupError when it is built from something that could not be scored or logged: no questions, ids that
    repeat, a name unfit for a metric key, an unknown normalization, a subject without shots, a blank answer.
    """

    name: str
    """Part of the metric keys: lower-case letters, digits and underscores."""
    questions: Sequence[Question]
    shots: Sequence[Question] | Mapping[str, Sequence[Question]] = field(default=(), hash=False)
    """Solved examples before each question: the same for all, or one sequence per subject (MMLU)."""
    template: Template = DEFAULT
    normalization: str = "char"
    split: str = ""
    """The benchmark's split the questions are from; only told, never used."""
    version: int = 1
    """Raise it when the questions or the form change, so that old and new curves are not mixed."""
    _prefixes: dict[tuple[str, Formulation, int], str] = field(
        default_factory=dict, init=False, compare=False, hash=False
    )

    def __post_init__(self) -> None:
        shots = self.shots
        if isinstance(shots, Mapping):
            normal: object = {subject: tuple(group) for subject, group in shots.items()}
        else:
            normal = tuple(shots)
        # A frozen dataclass can only be tidied up this way; afterwards nothing in it can be changed from outside.
        object.__setattr__(self, "questions", tuple(self.questions))
        object.__setattr__(self, "shots", normal)
        _check_names(self)
        _check_questions(self)

    def __repr__(self) -> str:
        counts = f"{len(self.questions)} questions, {self.max_shots} shots"
        return f"Task({self.name!r}, {counts}, normalization={self.normalization!r})"

    @property
    def unconditional(self) -> bool:
        """Whether CF asks for each choice's unconditional log-likelihood too (pmi)."""
        return self.normalization == "pmi"

    @property
    def subjects(self) -> tuple[str, ...]:
        """The subjects that occur, sorted; () for a task without subjects."""
        return tuple(sorted({question.subject for question in self.questions} - {""}))

    @property
    def max_shots(self) -> int:
        """The largest number of shots any question of this task has."""
        groups = self.shots.values() if isinstance(self.shots, Mapping) else [self.shots]
        return max((len(group) for group in groups), default=0)

    def shots_of(self, question: Question) -> Sequence[Question]:
        """The shots that stand before this question."""
        return self.shots[question.subject] if isinstance(self.shots, Mapping) else self.shots

    def requests(self, question: Question, formulation: Formulation, shots: int | None = None) -> list[Request]:
        """One request per choice, in order; then, in CF with pmi, one unconditional request per choice.

        `shots=k` keeps the last k shots only: a prompt too long for the model loses whole shots from the left.

        Raises SetupError for an unknown formulation or a negative number of shots.
        """
        if formulation not in FORMULATIONS:
            raise SetupError(f"formulation {formulation!r} is unknown; it is one of {', '.join(FORMULATIONS)}")
        render, choices = self.template, range(len(question.choices))
        prefix = self._prefix(question, formulation, shots)
        if formulation == "cf" and render.blank:
            contexts = [prefix + render.context(question, formulation, choice) for choice in choices]
        else:
            contexts = [prefix + render.context(question, formulation, 0)] * len(choices)
        continuations = [render.continuation(question, formulation, choice) for choice in choices]
        requests = [Request(*pair) for pair in zip(contexts, continuations, strict=True)]
        if formulation == "cf" and self.unconditional:
            requests += [Request(render.unconditional, continuation) for continuation in continuations]
        return requests

    def _prefix(self, question: Question, formulation: Formulation, shots: int | None) -> str:
        """Preamble and shots, rendered once per subject, formulation and number of shots: they are most of the text."""
        available = self.shots_of(question)
        keep = len(available) if shots is None else shots
        if keep < 0:
            raise SetupError(f"shots must be 0 or more, not {shots}")
        keep = min(keep, len(available))
        # With shots shared by all, only a preamble that names the subject makes the prefix differ by subject.
        key = (question.subject, formulation, keep)
        if key not in self._prefixes:
            kept = available[len(available) - keep :]
            self._prefixes[key] = self.template.prefix(kept, formulation, question.subject)
        return self._prefixes[key]


def _check_names(task: Task) -> None:
    if not re.fullmatch(r"[a-z0-9_]+", task.name):
        raise SetupError(
            f"task name {task.name!r} cannot be a metric key; use lower-case letters, digits and underscores"
        )
    if task.name in RESERVED_NAMES:
        raise SetupError(f"task name {task.name!r} is taken by the metric olmes/cf/{task.name}; choose another")
    if task.normalization not in NORMALIZATIONS:
        raise SetupError(
            f"task {task.name!r}: unknown normalization {task.normalization!r}; "
            f"it is one of {', '.join(NORMALIZATIONS)}"
        )
    if task.normalization == "pmi" and task.template.blank:
        # All choices of a fill-in question share one continuation, so its unconditional log-likelihood tells nothing.
        raise SetupError(f"task {task.name!r}: pmi does not apply to a fill-in template; use 'none'")


def _check_questions(task: Task) -> None:
    if not task.questions:
        raise SetupError(f"task {task.name!r} has no questions")
    repeated = [id for id, count in Counter(question.id for question in task.questions).items() if count > 1]
    if repeated:
        raise SetupError(
            f"task {task.name!r}: {len(repeated)} question ids occur more than once, first {repeated[0]!r}; "
            "ids must be unique within a task"
        )
    shots: list[Question] = []
    if isinstance(task.shots, Mapping):
        if missing := sorted({question.subject for question in task.questions} - set(task.shots)):
            raise SetupError(f"task {task.name!r}: subject {missing[0]!r} has no shots (give () for none)")
        shots = [shot for group in task.shots.values() for shot in group]
    else:
        shots = list(task.shots)
    for question in (*shots, *task.questions):
        if problem := _problem(question, task.template):
            raise SetupError(f"task {task.name!r}, question {question.id!r}: {problem}")


def _problem(question: Question, template: Template) -> str | None:
    """Why this question cannot be rendered with this template, or None."""
    if bool(question.passage) != template.takes_passage:
        if question.passage:
            return "it has a passage, but the template has no {passage}"
        return "the template has a {passage}, but the question has none"
    if any(not choice.strip() for choice in question.choices):
        return "a choice is blank; there would be nothing to score"
    if template.blank:
        if question.stem.count(BLANK) != 1:
            return f"a fill-in stem needs exactly one {BLANK!r}, this one has {question.stem.count(BLANK)}"
        if not question.stem.partition(BLANK)[2].strip():
            return f"nothing follows the {BLANK!r}; a fill-in question is scored on the text after it"
    return None
