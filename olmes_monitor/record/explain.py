"""Why MCF overtook CF on a task of a run: what measure/flips.py says of it, with the answers and the labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from olmes_monitor.errors import RecordError
from olmes_monitor.measure.accuracy import predict
from olmes_monitor.measure.bias import label_bias
from olmes_monitor.measure.choices import Choices, read_choices
from olmes_monitor.measure.crossover import Crossover
from olmes_monitor.measure.flips import WINDOW, Flips, explain_crossing, usual_answer
from olmes_monitor.measure.noise import TaskNoise, task_noise
from olmes_monitor.record.run import AVERAGE

if TYPE_CHECKING:
    from olmes_monitor.record.run import Run


@dataclass(frozen=True, eq=False)
class Side:
    """The evaluations on one side of the crossing, taken together."""

    tokens: NDArray[np.int64]
    """(evaluations,)"""
    cf: float
    """Mean accuracy of these evaluations, as the headline is averaged."""
    mcf: float
    label_mass: float
    """Mean Σ p(label): how sure the model is that a label comes at all."""
    label_bias: dict[str, Any]
    """Of these evaluations' answers together, as measure/bias.py defines it: predicted, gold, total_variation, accuracy."""
    cf_answer: NDArray[np.int64]
    """(questions,) choice that CF usually took, −1 where none; gold exactly where the majority was right."""
    mcf_answer: NDArray[np.int64]
    """(questions,) likewise."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """What turned around a task's crossing."""

    task: str
    suite: str
    crossover: Crossover
    flips: Flips
    before: Side
    after: Side
    ids: NDArray[np.object_]
    """(questions,)"""
    subjects: NDArray[np.object_]
    """(questions,) MMLU's subjects, "" elsewhere."""
    gold: NDArray[np.int64]
    """(questions,)"""
    sizes: NDArray[np.int64]
    """(questions,) number of choices."""

    @property
    def kinds(self) -> NDArray[np.object_]:
        """(questions,) what became of each question: a key of measure.flips.KINDS."""
        found = np.empty(len(self.ids), dtype=object)
        for kind, which in self.flips.kinds.items():
            found[which] = kind
        return found


def explain(run: Run, task: str, *, window: int = WINDOW, crossover: Crossover | None = None) -> Explanation:
    """What turned on a task between before and after its crossing; without one, between the run's beginning and end.

    window: evaluations that vote on either side (measure/flips.py says which). crossover: the task's, where
    `run.crossovers()` is at hand already.
    Raises RecordError for an unknown task, one that was not asked in both forms, the average (it has no questions of its
    own), fewer than two evaluations with values, and a missing or damaged scores file.
    """
    if task == AVERAGE:
        raise RecordError(f"the average has no questions of its own; explain one of {', '.join(run.tasks)}")
    right = run.correct(task)
    if right.cf is None or right.mcf is None:
        missing = "CF" if right.cf is None else "MCF"
        raise RecordError(f"{task} was not asked in {missing} in {run.folder}: without both forms nothing crosses")
    crossover = run.crossovers()[task] if crossover is None else crossover
    subjects = right.subjects if len(set(right.subjects.tolist())) > 1 else None
    try:
        flips = explain_crossing(right.tokens, right.cf, right.mcf, crossover.tokens, window=window, subjects=subjects)
    except ValueError as error:
        raise RecordError(f"{task} in {run.folder}: {error}") from error
    before = [_choices(run, index, task) for index in flips.before.tolist()]
    after = [_choices(run, index, task) for index in flips.after.tolist()]
    known = before[0]
    return Explanation(
        task=task,
        suite=run.suite,
        crossover=crossover,
        flips=flips,
        before=_side(run, flips.before, before, task, flips.cf_before, flips.mcf_before),
        after=_side(run, flips.after, after, task, flips.cf_after, flips.mcf_after),
        ids=known.ids,
        subjects=known.subjects,
        gold=known.gold,
        sizes=np.diff(known.offsets),
    )


def noise(run: Run) -> dict[str, TaskNoise]:
    """Task → the noise of its curves and what its questions can resolve, for every task asked in both forms that has
    an evaluation with values. Raises RecordError for a missing or damaged scores file."""
    found = {}
    for task in run.tasks:
        right = run.correct(task)
        if right.cf is None or right.mcf is None or not np.isfinite(right.cf + right.mcf).all(axis=1).any():
            continue
        subjects = right.subjects if len(set(right.subjects.tolist())) > 1 else None
        found[task] = task_noise(right.tokens, right.cf, right.mcf, subjects)
    return found


def _choices(run: Run, index: int, task: str) -> Choices:
    """One task's part of one evaluation."""
    import pyarrow as pa
    import pyarrow.compute as pc

    scores = run.scores(index)
    return read_choices(scores.filter(pc.equal(scores.column("task").cast(pa.string()), task)))[task]


def _side(
    run: Run,
    indices: NDArray[np.int64],
    parts: list[Choices],
    task: str,
    cf_right: NDArray[np.bool_],
    mcf_right: NDArray[np.bool_],
) -> Side:
    facts = [run.evaluations[index].tasks[task] for index in indices.tolist()]
    gold, sizes = parts[0].gold, np.diff(parts[0].offsets)
    answers = {
        form: np.stack(
            [
                predict(part.scores(form, fact["normalization"]), part.offsets)
                for part, fact in zip(parts, facts, strict=True)
            ]
        )
        for form in ("cf", "mcf")
    }
    return Side(
        tokens=np.array([run.evaluations[index].point.tokens for index in indices.tolist()], dtype=np.int64),
        cf=float(np.mean([fact["cf"] for fact in facts])),
        mcf=float(np.mean([fact["mcf"] for fact in facts])),
        label_mass=float(np.mean([fact["label_mass"] for fact in facts])),
        label_bias=label_bias(answers["mcf"].ravel(), np.tile(gold, len(parts)), int(sizes.max())),
        cf_answer=usual_answer(answers["cf"], cf_right, gold),
        mcf_answer=usual_answer(answers["mcf"], mcf_right, gold),
    )
