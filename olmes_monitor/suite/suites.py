"""Suites: named lists of tasks with how many questions of each, drawn the same way every time."""

from __future__ import annotations

import difflib
import hashlib
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from olmes_monitor.errors import SetupError
from olmes_monitor.suite import cache
from olmes_monitor.suite.olmes import OLMES, VERSION
from olmes_monitor.suite.question import Question
from olmes_monitor.suite.task import Task

SEED = 1234
"""OLMES's seed; with it the samples equal AI2's own 1000 of BoolQ, HellaSwag, PIQA and Social IQa."""

SUITES: dict[str, str] = {
    "standard": "OLMES as published: 1000 questions of a task with more than 1500, all of any other, all of MMLU",
    "monitor": "at most 1000 questions a task, MMLU's spread evenly over its subjects",
    "quick": "100 questions a task",
}

DIGEST = "_digest"
"""Where a task keeps its digest: beside its fields, as cached_property does it, for the class is frozen."""


@dataclass(frozen=True, repr=False)
class Suite:
    """A named list of tasks. Own tasks go in like official ones: `Suite("mine", [task, ...])`.

    Raises SetupError if there are no tasks, or two of one name.
    """

    name: str
    tasks: Mapping[str, Task] = field(hash=False)
    """Name → task; a plain sequence of tasks may be given."""

    def __post_init__(self) -> None:
        given: Iterable[Task] = self.tasks.values() if isinstance(self.tasks, Mapping) else self.tasks
        tasks: dict[str, Task] = {}
        for task in given:
            if task.name in tasks:
                raise SetupError(f"suite {self.name!r} has two tasks named {task.name!r}")
            tasks[task.name] = task
        if not tasks:
            raise SetupError(f"suite {self.name!r} has no tasks")
        object.__setattr__(self, "tasks", tasks)

    def __repr__(self) -> str:
        counts = ", ".join(f"{name} {len(task.questions)}" for name, task in self.tasks.items())
        return f"Suite({self.name!r}: {counts})"

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits over all texts, their order, gold, shots, templates, normalizations and versions."""
        # The digits are those of one JSON list of all tasks' contents.
        text = ",".join(_text(self.tasks[name]) for name in sorted(self.tasks))
        return hashlib.sha256(f"[{text}]".encode("ascii")).hexdigest()[:16]


def load_suite(name: str = "monitor", tasks: str | Iterable[str] | None = None, limit: int | None = None) -> Suite:
    """An official suite, with all its tasks or the named ones (a list, or one string with commas).

    `limit` keeps at most that many questions a task, drawn by the suite's own rule. The questions are fetched and
    cached on first use.

    Raises SetupError for an unknown suite or task or a limit below 1, DataError if the questions cannot be had.
    """
    _known("suite", name, SUITES)
    names = _task_names(tasks)
    if limit is not None and limit < 1:
        raise SetupError(f"limit must be at least 1, not {limit}")
    folder = cache.ensure()
    manifest = cache.read_manifest(folder)["tasks"]
    loaded = {}
    for task in names:
        count = suite_count(name, task, limit)
        loaded[task] = load_task(folder, task, sample_rows(OLMES[task].count, count, manifest[task]["subjects"]))
    return Suite(name, loaded)


def load_task(folder: Path, name: str, rows: Sequence[int] | None = None) -> Task:
    """One official task from the cache; only the asked rows become questions."""
    official = OLMES[name]
    questions = cache.read_questions(folder, name, "questions", rows)
    found = cache.read_questions(folder, name, "shots")
    shots: Sequence[Question] | dict[str, list[Question]] = found
    if any(shot.subject for shot in found):
        subjects = sorted({question.subject for question in questions})
        shots = {subject: [shot for shot in found if shot.subject == subject] for subject in subjects}
    return Task(name, questions, shots, official.template, official.normalization, official.split, VERSION)


def suite_count(suite: str, task: str, limit: int | None = None) -> int:
    """How many questions of a task a suite asks."""
    total = OLMES[task].count
    if suite == "standard":
        count = 1000 if total > 1500 and task != "mmlu" else total
    else:
        count = min(total, {"monitor": 1000, "quick": 100}[suite])
    return count if limit is None else min(count, limit)


def sample_rows(total: int, count: int, subjects: Mapping[str, int] | None = None) -> list[int] | None:
    """The rows to ask, as OLMES draws them: `Random(1234).sample` over the whole list; None means all, in order.

    With `subjects` (name → rows, in row order) the count is spread over them evenly: subject i of n gets
    floor((i+1)·count/n) − floor(i·count/n), or all it has if that is less.
    """
    if count >= total:
        return None
    if not subjects:
        return random.Random(SEED).sample(range(total), count)
    rows: list[int] = []
    starts = accumulate(subjects.values(), initial=0)
    for i, (start, size) in enumerate(zip(starts, subjects.values(), strict=False)):
        share = (i + 1) * count // len(subjects) - i * count // len(subjects)
        rows += random.Random(SEED).sample(range(start, start + size), min(share, size))
    return rows


def check_task_name(name: str) -> None:
    """Raise SetupError, offering the nearest names, if there is no such official task."""
    _known("task", name, OLMES)


def task_content(task: Task) -> dict[str, Any]:
    """All that a task's prompts and scores depend on, as JSON takes it."""
    shots = task.shots
    return {
        "name": task.name,
        "version": task.version,
        "normalization": task.normalization,
        "template": asdict(task.template),
        "questions": [_row(question) for question in task.questions],
        "shots": {subject: [_row(shot) for shot in group] for subject, group in shots.items()}
        if isinstance(shots, Mapping)
        else [_row(shot) for shot in shots],
    }


def task_digest(task: Task) -> str:
    """64 hex digits over task_content; a task never changes, so they are found once."""
    if DIGEST not in task.__dict__:
        _text(task)
    return task.__dict__[DIGEST]


def _text(task: Task) -> str:
    """A task's content as JSON; its digest is kept, since writing and hashing a large task takes a tenth of a second."""
    # Escaped to ASCII: one byte sequence whatever the platform, and lone surrogates do not raise.
    text = json.dumps(task_content(task), ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    task.__dict__[DIGEST] = hashlib.sha256(text.encode("ascii")).hexdigest()
    return text


def _row(question: Question) -> list[Any]:
    return [question.id, question.stem, question.choices, question.gold, question.passage, question.subject]


def _task_names(tasks: str | Iterable[str] | None) -> list[str]:
    if tasks is None:
        return list(OLMES)
    listed = tasks.split(",") if isinstance(tasks, str) else list(tasks)
    names = [task.strip() for task in listed if task.strip()]
    if not names:
        raise SetupError(f"no task is named; the tasks are {', '.join(OLMES)}")
    for task in names:
        check_task_name(task)
    return list(dict.fromkeys(names))


def _known(kind: str, name: str, known: Iterable[str]) -> None:
    names = list(known)
    if name in names:
        return
    near = difflib.get_close_matches(name.lower(), names, n=2)
    offer = f"; did you mean {' or '.join(near)}? The" if near else "; the"
    raise SetupError(f"there is no {kind} {name!r}{offer} {kind}s are {', '.join(names)}")
