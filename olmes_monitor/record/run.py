"""A run read back from its record: its evaluations, its curves, its crossovers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from olmes_monitor.errors import RecordError
from olmes_monitor.measure.choices import Choices, read_choices
from olmes_monitor.measure.crossover import Crossover, find_crossover
from olmes_monitor.measure.domains import DOMAINS, domains_of
from olmes_monitor.measure.floors import guesses
from olmes_monitor.record.evaluation import Evaluation
from olmes_monitor.record.files import read_table

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from matplotlib.figure import Figure

AVERAGE = "average"
SIGNALS = ("gold_probability_cf", "gold_probability_mcf", "bits_per_byte")
"""Facts that move before accuracy does; not logged, but columns of `Run.frame`."""


class Correct(NamedTuple):
    """What was answered right at each live evaluation of a run, for one task."""

    tokens: NDArray[np.int64]
    """(evaluations,)"""
    steps: NDArray[np.int64]
    """(evaluations,)"""
    cf: NDArray[np.float64] | None
    """(evaluations, questions): 1 or 0, NaN where undefined or the evaluation failed; None if CF was never asked."""
    mcf: NDArray[np.float64] | None
    """(evaluations, questions), likewise."""
    subjects: NDArray[np.object_]
    """(questions,) MMLU's subjects, "" elsewhere."""
    guesses: NDArray[np.float64]
    """(questions,) what the best guesser that knows nothing gets right: its mean is the floor (`floors.guesses`)."""


class _Answers(NamedTuple):
    """What one evaluation answered right, for one task."""

    ids: NDArray[np.object_]
    subjects: NDArray[np.object_]
    right: dict[str, NDArray[np.float64]]
    """Formulation → (questions,)."""
    guesses: NDArray[np.float64]
    """(questions,) as in Correct."""
    domains: dict[str, NDArray[np.float64]]
    """MMLU's domain → what the best guesser on it gets right of its questions; empty for another task."""


class Run:
    """The evaluations of one run and one suite. Log-likelihoods are read from disk when asked for."""

    def __init__(self, folder: Path, lines: Iterable[dict[str, Any]], known: Run | None = None) -> None:
        """lines: of one fingerprint, in the order they were written; `merge` says which of them the curve holds. known: the
        same record as it was read before, whose files, which never change, are not read again."""
        self.folder = folder
        live, superseded, others = merge(lines)
        self.superseded = [Evaluation.from_json(line) for line in superseded]
        """Evaluations of stretches that training went back on, in the order they were given up."""
        self.others = [Evaluation.from_json(line) for line in others]
        """Evaluations of a point that the curve has from elsewhere: by a scan where the training loop asked itself."""
        self.others_files: list[str | None] = [line["scores_file"] for line in others]
        self.evaluations: list[Evaluation] = [Evaluation.from_json(line) for line in live]
        """The live evaluations, by tokens. Their `scores` are None until `run.scores(index)` reads them."""
        self._files: list[str | None] = [line["scores_file"] for line in live]
        self._read: dict[str, dict[str, _Answers]] = {} if known is None else known._read

    def __repr__(self) -> str:
        at = [evaluation.point.tokens for evaluation in self.evaluations]
        span = f", {at[0]:,} to {at[-1]:,} tokens" if at else ""
        return f"Run({str(self.folder)!r}, {len(at)} evaluations of {self.suite or 'no suite'}{span})"

    @property
    def suite(self) -> str:
        """Name of the suite, "" without evaluations."""
        return self.evaluations[-1].suite if self.evaluations else ""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the suite, "" without evaluations."""
        return self.evaluations[-1].fingerprint if self.evaluations else ""

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks in the suite's order."""
        return list(dict.fromkeys(task for evaluation in self.evaluations for task in evaluation.tasks))

    def scores(self, index: int) -> pa.Table:
        """The log-likelihoods of `evaluations[index]`, read once and then kept in `evaluations[index].scores`.

        Raises RecordError if that evaluation failed, or its file is missing or damaged.
        """
        evaluation, file = self.evaluations[index], self._files[index]
        if evaluation.scores is None:
            if file is None:
                raise RecordError(f"the evaluation at {evaluation.point.tokens} tokens failed: {evaluation.problems}")
            evaluation.scores = read_table(self.folder / file)
        return evaluation.scores

    def frame(self) -> pd.DataFrame:
        """One row per evaluation and task, and one for task "average"; a value that is absent is NaN.

        Columns: tokens, step, task, n, cf, mcf, score, gap, stderr_cf, stderr_mcf, stderr_gap, floor,
        gold_probability_cf, gold_probability_mcf, bits_per_byte. A failed evaluation has no rows.
        """
        import pandas as pd

        numbers = ["cf", "mcf", "score", "gap", "stderr_cf", "stderr_mcf", "stderr_gap", "floor", *SIGNALS]
        rows = [
            {"tokens": evaluation.point.tokens, "step": evaluation.point.step, "task": task, **facts}
            for evaluation in self.evaluations
            for task, facts in [*evaluation.tasks.items(), (AVERAGE, average_facts(evaluation))]
            if facts
        ]
        frame = pd.DataFrame(rows, columns=["tokens", "step", "task", "n", *numbers])
        return frame.astype({"tokens": "int64", "step": "int64", "n": "Int64"} | dict.fromkeys(numbers, "float64"))

    def correct(self, task: str) -> Correct:
        """What was answered right, question by question, under the task's own normalization.

        Raises RecordError for an unknown task, a missing scores file, or evaluations that asked other questions.
        """
        if task not in self._correct:
            raise RecordError(
                f"no scores of task {task!r} in {self.folder}; tasks: {', '.join(self._correct) or 'none'}"
            )
        return self._correct[task]

    def crossovers(self) -> dict[str, Crossover]:
        """Task → its crossover; MMLU's domains as "mmlu_stem", "mmlu_humanities", "mmlu_social_sciences", "mmlu_other";
        "average" if all tasks were asked in both formulations. Made once and then kept."""
        return dict(self._crossovers)

    @cached_property
    def _crossovers(self) -> dict[str, Crossover]:
        found = {}
        both = {task: right for task, right in self._correct.items() if right.cf is not None and right.mcf is not None}
        for task, right in both.items():
            found[task] = _crossover(right)
            best_of = next(read[task].domains for read in self._read.values() if task in read)
            domains = np.array(domains_of(right.subjects.tolist()) if best_of else [], dtype=str)
            for domain, best in best_of.items():
                found[f"{task}_{domain}"] = _crossover(_part(right, domains == domain)._replace(guesses=best))
        if both and len(both) == len(self._correct):
            found[AVERAGE] = _average_crossover(both)
        return found

    def verdicts(self) -> pd.DataFrame:
        """The crossovers as a table, one row a task (columns: report.tables.VERDICTS)."""
        from olmes_monitor.report.tables import verdict_frame

        return verdict_frame(self.crossovers())

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        tasks: Sequence[str] | None = None,
        width: float | None = None,
    ) -> Figure:
        """Both curves of every task against tokens, as a matplotlib figure; with a path (PNG, SVG, PDF) saved there.

        tasks: which; width: inches, see report.plot.plot_run.
        """
        from olmes_monitor.report.plot import plot_run, save_figure

        figure = plot_run(self, tasks, width)
        if path is not None:
            save_figure(figure, path)
        return figure

    def _repr_html_(self) -> str:
        """The run's chart, as a notebook shows it."""
        from olmes_monitor.report.notebook import run_html

        return run_html(self)

    @cached_property
    def _correct(self) -> dict[str, Correct]:
        """Every parquet file read once, for all tasks; what is kept is a number a question, not the table."""
        first: dict[str, _Answers] = {}
        read: list[dict[str, _Answers]] = []
        for evaluation, file in zip(self.evaluations, self._files, strict=True):
            found = {} if file is None else self._answers(evaluation, file)
            for task, answers in found.items():
                # Thousands of ids an evaluation, and always the same: one copy is kept.
                ids = self._same_questions(task, first.setdefault(task, answers).ids, answers.ids)
                found[task] = answers._replace(ids=ids, subjects=first[task].subjects)
            read.append(found)
        tokens = np.array([evaluation.point.tokens for evaluation in self.evaluations], dtype=np.int64)
        steps = np.array([evaluation.point.step for evaluation in self.evaluations], dtype=np.int64)
        return {
            task: Correct(
                tokens, steps, _stack(read, task, "cf"), _stack(read, task, "mcf"), answers.subjects, answers.guesses
            )
            for task, answers in first.items()
        }

    def _answers(self, evaluation: Evaluation, file: str) -> dict[str, _Answers]:
        if file not in self._read:
            self._read[file] = {
                task: _Answers(
                    choices.ids,
                    choices.subjects,
                    {
                        formulation: choices.correct(formulation, evaluation.tasks[task]["normalization"])
                        for formulation in ("cf", "mcf")
                        if formulation in choices.columns
                    },
                    *_guesses(choices),
                )
                for task, choices in read_choices(read_table(self.folder / file)).items()
            }
        return self._read[file]

    def _same_questions(self, task: str, one: NDArray[np.object_], other: NDArray[np.object_]) -> NDArray[np.object_]:
        if one is not other and not np.array_equal(one, other):
            raise RecordError(
                f"two evaluations in {self.folder} asked different questions of {task} under one fingerprint"
            )
        return one


Line = dict[str, Any]


def merge(lines: Iterable[Line]) -> tuple[list[Line], list[Line], list[Line]]:
    """One curve from the lines of training loops and scans: (the curve by tokens, superseded, others).

    A training loop that went back to an earlier point supersedes the abandoned stretch: its line takes out all earlier
    ones of the loop whose tokens are not below its own, and those of earlier attempts beyond the point from which its own
    attempt went on. A scan's line supersedes nothing at other tokens, and at its own
    only an earlier scan's, unless it failed. Where both have a point the curve holds the loop's, unless that failed; the
    scan's is among the others.
    """
    loop: list[Line] = []
    scans: dict[int, Line] = {}
    superseded: list[Line] = []
    others: list[Line] = []
    for line in lines:
        tokens = line["point"]["tokens"]
        if line["point"].get("origin", "loop") == "loop":
            while loop and _supersedes(line, loop[-1]):
                superseded.append(loop.pop())
            loop.append(line)
        elif tokens not in scans or line["scores_file"] or not scans[tokens]["scores_file"]:
            superseded += [scans[tokens]] if tokens in scans else []
            scans[tokens] = line
        else:
            superseded.append(line)
    curve = {line["point"]["tokens"]: line for line in loop}
    for tokens, line in scans.items():
        if tokens not in curve or (line["scores_file"] and not curve[tokens]["scores_file"]):
            others += [curve[tokens]] if tokens in curve else []
            curve[tokens] = line
        else:
            others.append(line)
    return [curve[tokens] for tokens in sorted(curve)], superseded, others


def _supersedes(line: Line, earlier: Line) -> bool:
    there, since = earlier["point"]["tokens"], line.get("since")
    if there >= line["point"]["tokens"]:
        return True
    # An attempt that began at 0 tokens has nothing of the ones before.
    return since is not None and line["attempt"] > earlier.get("attempt", 1) and (there > since or since == 0)


def average_facts(evaluation: Evaluation) -> dict[str, float]:
    """The averages an evaluation logged, under the names a task's facts have; the mean floor and the mean of each
    signal if every task has it."""
    names = {"cf", "mcf", "score", "gap"} | {f"stderr_{name}" for name in ("cf", "mcf", "gap")}
    logged = {name: f"olmes/{name.replace('stderr_', 'stderr/')}/{AVERAGE}" for name in names}
    facts = {name: evaluation.metrics[key] for name, key in logged.items() if key in evaluation.metrics}
    for name in ("floor", *SIGNALS) if facts else ():
        values = [task[name] for task in evaluation.tasks.values() if name in task]
        if len(values) == len(evaluation.tasks):
            facts[name] = float(np.mean(values))
    return facts


def _crossover(right: Correct) -> Crossover:
    assert right.cf is not None
    assert right.mcf is not None
    return find_crossover(
        right.tokens, right.cf, right.mcf, steps=right.steps, floor=right.guesses, subjects=right.subjects
    )


def _part(right: Correct, inside: NDArray[np.bool_]) -> Correct:
    """The same for some of the questions, (questions,)."""
    cf, mcf = (None if values is None else values[:, inside] for values in (right.cf, right.mcf))
    return right._replace(cf=cf, mcf=mcf, subjects=right.subjects[inside], guesses=right.guesses[inside])


def _guesses(choices: Choices) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    """What the best guesser gets right of a task's questions; and of each of MMLU's domains, in the order of
    measure/domains.py's table, the best on that domain. Empty for another task."""
    domains = np.array(domains_of(choices.subjects.tolist()) or [], dtype=str)
    sizes, subjects = np.diff(choices.offsets), np.unique(choices.subjects.astype(str), return_inverse=True)[1]
    return guesses(sizes, choices.gold, subjects), {
        domain: guesses(*(values[domains == domain] for values in (sizes, choices.gold, subjects)))
        for domain in dict.fromkeys(DOMAINS.values())
        if domain in domains
    }


def _average_crossover(rights: dict[str, Correct]) -> Crossover:
    """Of the mean over tasks (macro within MMLU), from the questions themselves, so that its error is paired too."""
    any_task = next(iter(rights.values()))
    return find_crossover(
        any_task.tokens,
        np.concatenate([right.cf for right in rights.values() if right.cf is not None], axis=1),
        np.concatenate([right.mcf for right in rights.values() if right.mcf is not None], axis=1),
        steps=any_task.steps,
        subjects=np.concatenate([right.subjects for right in rights.values()]),
        tasks=np.repeat(list(rights), [len(right.subjects) for right in rights.values()]),
        floor=np.concatenate([right.guesses for right in rights.values()]),
    )


def _stack(read: list[dict[str, _Answers]], task: str, formulation: str) -> NDArray[np.float64] | None:
    """Rows of all evaluations, NaN where one has none; None if no evaluation has one."""
    rows = [found[task].right.get(formulation) if task in found else None for found in read]
    known = [row for row in rows if row is not None]
    return np.stack([np.full_like(known[0], np.nan) if row is None else row for row in rows]) if known else None
