"""What the page, the picture and the tables are drawn from: every task's curves, of a record or of a table of accuracies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from olmes_monitor.measure.accuracy import mean, stderr
from olmes_monitor.measure.choices import read_choices
from olmes_monitor.measure.crossover import Crossover, find_crossover
from olmes_monitor.measure.domains import DOMAINS
from olmes_monitor.record.run import AVERAGE

if TYPE_CHECKING:
    from olmes_monitor.record.run import Run

OWN = "olmes"
"""The headline's normalization: each task's own, as OLMES chose it."""

SAMPLES = 500
"""Of the bootstrap behind the crossings under other normalizations than OLMES's: seven curves for one, so a coarser end."""

Floats = NDArray[np.float64]


@dataclass
class Curve:
    """One task of one run against tokens. Arrays are (evaluations,), fractions of 1, NaN where there is no value."""

    tokens: NDArray[np.int64]
    steps: NDArray[np.int64] | None
    mcf: Floats
    mcf_error: Floats
    """Standard errors of `mcf`."""
    cf: dict[str, Floats]
    """OWN, and the other normalizations that were asked, → accuracy of the cloze form."""
    cf_error: dict[str, Floats]
    gap_error: dict[str, Floats]
    """Standard errors of mcf − cf: paired where the questions are known."""
    crossovers: dict[str, Crossover]
    """Normalization → crossover; none where one of the forms was not asked."""
    normalization: str = ""
    """Which one OWN is; "" for the average and where it is not known."""
    n: int | None = None
    floor: float | None = None


@dataclass
class Source:
    """A run as it is shown."""

    name: str
    curves: dict[str, Curve]
    """Task → curve, the average last, in the suite's order."""
    run: Run | None = None
    """None where only accuracies are known."""
    domains: dict[str, Curve] = field(default_factory=dict)
    """MMLU's domains, under the names their verdicts have (mmlu_stem, …)."""
    subjects: dict[str, dict[str, Curve]] = field(default_factory=dict)
    """Task with subjects (MMLU) → subject → curve."""
    notes: list[str] = field(default_factory=list)
    """What a reader must know of this run's numbers."""

    @property
    def rows(self) -> dict[str, Curve]:
        """All curves in the order of a table: a task, its domains below it, the average last."""
        found: dict[str, Curve] = {}
        for task, curve in self.curves.items():
            found |= {task: curve} | ({} if task != "mmlu" else self.domains)
        return found

    @property
    def headline(self) -> tuple[str, Crossover] | None:
        """Whose verdict comes first, the average's or the only task's, and that verdict; None without one."""
        for task in (AVERAGE, *self.curves):
            if task in self.curves and OWN in self.curves[task].crossovers:
                return task, self.curves[task].crossovers[OWN]
        return None


@dataclass
class Answers:
    """What was answered right of one task, question by question, at the run's evaluations."""

    cf: dict[str, Floats]
    """Normalization → (evaluations, questions): 1, 0, or NaN where undefined."""
    mcf: Floats | None
    """(evaluations, questions), likewise; None where it was never asked."""
    subjects: NDArray[np.object_]
    """(questions,) "" where there are none."""
    guesses: Floats
    """(questions,) what the best guesser that knows nothing gets right."""


def read_run(run: Run, name: str, *, others: bool = True) -> Source:
    """The curves of a record. others: under the other normalizations too, and by subject, for which every scores file is
    read once more than the verdicts do.

    Raises RecordError where a scores file is missing or damaged.
    """
    answers = _read_answers(run) if others else {}
    frame, verdicts = run.frame(), run.crossovers()
    curves = {}
    for task in [*run.tasks, AVERAGE]:
        rows = frame[frame["task"] == task]
        if not len(rows) or (task == AVERAGE and len(run.tasks) < 2):
            continue
        facts = next((e.tasks[task] for e in reversed(run.evaluations) if task in e.tasks), {})
        floors = rows["floor"].dropna()
        curve = Curve(
            tokens=rows["tokens"].to_numpy(np.int64),
            steps=rows["step"].to_numpy(np.int64),
            mcf=rows["mcf"].to_numpy(),
            mcf_error=rows["stderr_mcf"].to_numpy(),
            cf={OWN: rows["cf"].to_numpy()},
            cf_error={OWN: rows["stderr_cf"].to_numpy()},
            gap_error={OWN: rows["stderr_gap"].to_numpy()},
            crossovers={OWN: verdicts[task]} if task in verdicts else {},
            normalization=facts.get("normalization", ""),
            n=facts.get("n"),
            floor=float(floors.iloc[-1]) if len(floors) else None,
        )
        _other_normalizations(
            curve, run, answers if task == AVERAGE else {task: answers[task]} if task in answers else {}
        )
        curves[task] = curve
    subjects = {task: _by_subject(run, answers[task], curves[task]) for task in answers if task in curves}
    subjects = {task: found for task, found in subjects.items() if found}
    notes = []
    if any(evaluation.point.axis == "steps" for evaluation in run.evaluations):
        notes.append("This record is over optimizer steps: where it says tokens here, read steps.")
    return Source(name, curves, run, _domains(run, verdicts), subjects, notes)


def _domains(run: Run, verdicts: dict[str, Crossover]) -> dict[str, Curve]:
    """MMLU's domains, as every evaluation recorded them."""
    rows = [(e.point, e.tasks["mmlu"]) for e in run.evaluations if "domains" in e.tasks.get("mmlu", {})]
    found = {}
    for domain in dict.fromkeys(DOMAINS.values()):
        if not any(domain in facts["domains"] for _, facts in rows):
            continue
        facts = [task["domains"].get(domain, {}) for _, task in rows]

        def values(name: str, facts: list[dict[str, float]] = facts) -> Floats:
            return np.array([fact.get(name, np.nan) for fact in facts], dtype=np.float64)

        name = f"mmlu_{domain}"
        found[name] = Curve(
            tokens=np.array([point.tokens for point, _ in rows], dtype=np.int64),
            steps=np.array([point.step for point, _ in rows], dtype=np.int64),
            mcf=values("mcf"),
            mcf_error=values("stderr_mcf"),
            cf={OWN: values("cf")},
            cf_error={OWN: values("stderr_cf")},
            gap_error={OWN: values("stderr_gap")},
            crossovers={OWN: verdicts[name]} if name in verdicts else {},
            normalization=rows[-1][1].get("normalization", ""),
            n=facts[-1].get("n"),
        )
    return found


def _read_answers(run: Run) -> dict[str, Answers]:
    found: dict[str, Answers] = {}
    for place, evaluation in enumerate(run.evaluations):
        if not evaluation.tasks:  # it failed
            continue
        kept = evaluation.scores
        choices_of = read_choices(run.scores(place))
        evaluation.scores = kept  # a long run's tables do not fit in memory all at once
        for task, choices in choices_of.items():
            known = found.setdefault(task, Answers({}, None, choices.subjects, run.correct(task).guesses))
            unknown = np.full((len(run.evaluations), choices.n), np.nan)
            for kind in choices.normalizations:
                known.cf.setdefault(kind, unknown.copy())[place] = choices.correct("cf", kind)
            if "mcf" in choices.columns:
                known.mcf = unknown if known.mcf is None else known.mcf
                known.mcf[place] = choices.correct("mcf", "none")
    return found


def _other_normalizations(curve: Curve, run: Run, answers: dict[str, Answers]) -> None:
    """Adds the curves of every normalization that all the given tasks were asked by, at the curve's evaluations.

    One task, or all for the average, which is then the mean over tasks.
    """
    if not answers:
        return
    first = next(iter(answers.values()))
    at = np.searchsorted([e.point.tokens for e in run.evaluations], curve.tokens)
    subjects = np.concatenate([a.subjects for a in answers.values()])
    tasks = np.repeat(list(answers), [len(a.subjects) for a in answers.values()])
    mcf = None
    if all(a.mcf is not None for a in answers.values()):
        mcf = np.concatenate([a.mcf[at] for a in answers.values() if a.mcf is not None], axis=1)
    for kind in first.cf:
        if kind == curve.normalization or not all(kind in a.cf for a in answers.values()):
            continue
        cf = np.concatenate([a.cf[kind][at] for a in answers.values()], axis=1)
        curve.cf[kind], curve.cf_error[kind] = mean(cf, subjects, tasks), stderr(cf, subjects, tasks)
        if mcf is None:
            continue
        curve.gap_error[kind] = stderr(mcf - cf, subjects, tasks)
        curve.crossovers[kind] = find_crossover(
            curve.tokens,
            cf,
            mcf,
            steps=curve.steps,
            floor=np.concatenate([a.guesses for a in answers.values()]),
            subjects=subjects,
            tasks=tasks,
            samples=SAMPLES,
        )


def _by_subject(run: Run, answers: Answers, task: Curve) -> dict[str, Curve]:
    """Subject → its curves under the task's own normalization; {} for a task without subjects."""
    names = sorted(set(answers.subjects.tolist()) - {""})
    cf = answers.cf.get(task.normalization)
    if len(names) < 2 or cf is None or answers.mcf is None:
        return {}
    at = np.searchsorted([e.point.tokens for e in run.evaluations], task.tokens)
    found = {}
    for name in names:
        mine = answers.subjects == name
        right, lettered = cf[at][:, mine], answers.mcf[at][:, mine]
        found[name] = Curve(
            task.tokens,
            task.steps,
            mean(lettered),
            stderr(lettered),
            {OWN: mean(right)},
            {OWN: stderr(right)},
            {OWN: stderr(lettered - right)},
            {},
            task.normalization,
            int(mine.sum()),
        )
    return found
