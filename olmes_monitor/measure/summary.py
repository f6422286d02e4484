"""An evaluation's log-likelihoods → what is logged and what is kept about each task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from olmes_monitor.measure import floors
from olmes_monitor.measure.accuracy import UNDEFINED, mean, predict, stderr
from olmes_monitor.measure.choices import Choices, read_choices
from olmes_monitor.measure.normalize import NORMALIZATIONS
from olmes_monitor.suite.question import FORMULATIONS

if TYPE_CHECKING:
    import pyarrow as pa

_LOGGED = {"cf": "cf", "mcf": "mcf", "score": "score", "gap": "gap"} | {
    f"stderr_{name}": f"stderr/{name}" for name in ("cf", "mcf", "gap")
}
"""Key in a task's dict → the middle of its logged name."""


def summarize(
    scores: pa.Table, normalization: Mapping[str, str]
) -> tuple[dict[str, dict[str, Any]], dict[str, float], dict[str, str]]:
    """(tasks, metrics, problems) of one evaluation's table of scores (columns: record/evaluation.py).

    normalization: task → the kind its cloze choices are ranked by.
    tasks[t]: n, normalization, chance, floor, pick_longest, pick_shortest; where asked cf, mcf, their stderr_, ties_
    and label_mass; where both were asked score, best, gap, stderr_gap; cf_by_normalization: CF by the other kinds;
    micro: averages over questions, where the headline is over subjects.
    metrics: `olmes/{cf,mcf,score,gap}/<task>`, `olmes/stderr/{cf,mcf,gap}/<task>`, and the same for `average`, the
    plain mean over the table's tasks; absent unless every task has its value, since a mean over fewer would jump.
    problems: task → why its metrics are absent. A formulation that was not asked is no problem.

    Raises ValueError for a malformed table or a task without a normalization.
    """
    tasks: dict[str, dict[str, Any]] = {}
    metrics: dict[str, float] = {}
    problems: dict[str, str] = {}
    for task, choices in read_choices(scores).items():
        if task not in normalization:
            raise ValueError(f"no normalization given for task {task!r}")
        kind = normalization[task]
        tasks[task] = _known_beforehand(choices, kind)
        if problem := _undefined(choices, kind):
            problems[task] = problem
        else:
            tasks[task] |= _measured(choices, kind)
        metrics |= _metrics(task, tasks[task])
    return tasks, metrics | _metrics("average", _average(tasks)), problems


def _subjects(choices: Choices) -> Any:
    """Labels for a macro average, None if the task has no more than one subject."""
    return choices.subjects if len(set(choices.subjects.tolist())) > 1 else None


def _known_beforehand(choices: Choices, kind: str) -> dict[str, Any]:
    """What follows from the questions alone."""
    sizes, subjects = np.diff(choices.offsets), _subjects(choices)
    facts: dict[str, Any] = {
        "n": choices.n,
        "normalization": kind,
        "chance": floors.chance(sizes, subjects),
        "floor": floors.floor(sizes, choices.gold, subjects),
    }
    chars = choices.columns.get("chars")
    if chars is not None and not np.isnan(chars).any():
        facts["pick_longest"] = floors.pick_longest(chars, choices.offsets, choices.gold, subjects)
        facts["pick_shortest"] = floors.pick_shortest(chars, choices.offsets, choices.gold, subjects)
    return facts


def _undefined(choices: Choices, kind: str) -> str | None:
    """How many questions have no answer, and which is the first; None if all have one."""
    for formulation in FORMULATIONS:
        if formulation not in choices.columns:
            continue
        if formulation == "cf" and kind == "pmi" and "unconditional" not in choices.columns:
            return "cf: normalization 'pmi' needs unconditional log-likelihoods, and none were asked"
        missing = predict(choices.scores(formulation, kind), choices.offsets) == UNDEFINED
        if missing.any():
            first = choices.ids[np.argmax(missing)]
            return f"{formulation}: {missing.sum()} of {choices.n} questions have NaN log-likelihoods, first {first!r}"
    return None


def _measured(choices: Choices, kind: str) -> dict[str, Any]:
    """Accuracies of a task all of whose questions are defined."""
    subjects = _subjects(choices)
    asked = [formulation for formulation in FORMULATIONS if formulation in choices.columns]
    right: dict[str, NDArray[np.float64]] = {formulation: choices.correct(formulation, kind) for formulation in asked}
    if len(asked) == 2:
        right["gap"] = right["mcf"] - right["cf"]  # question by question, so its standard error is paired
    facts: dict[str, Any] = {name: float(mean(values, subjects)) for name, values in right.items()}
    facts |= {f"stderr_{name}": float(stderr(values, subjects)) for name, values in right.items()}
    facts |= {f"ties_{formulation}": choices.ties(formulation, kind) for formulation in asked}
    if len(asked) == 2:
        facts["best"] = "mcf" if facts["mcf"] > facts["cf"] else "cf"
        facts["score"] = facts[facts["best"]]
    if "cf" in asked:
        facts["cf_by_normalization"] = _by_normalization(choices, kind)
    if "mcf" in asked:
        facts["label_mass"] = float(np.exp(choices.columns["mcf"]).sum() / choices.n)
    if subjects is not None:
        facts["micro"] = {name: float(mean(values)) for name, values in right.items()}
        facts["micro"] |= {f"stderr_{name}": float(stderr(values)) for name, values in right.items()}
    return {name: value for name, value in facts.items() if not (isinstance(value, float) and np.isnan(value))}


def _by_normalization(choices: Choices, kind: str) -> dict[str, float]:
    """CF accuracy under every kind but the task's own that the columns allow."""
    others = [other for other in NORMALIZATIONS if other != kind]
    accuracies = {other: float(mean(choices.correct("cf", other), _subjects(choices))) for other in others}
    return {other: accuracy for other, accuracy in accuracies.items() if not np.isnan(accuracy)}


def _average(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Mean over tasks of each logged value that all of them have; standard errors add as √(Σ se²)/tasks."""
    averages = {}
    for name in _LOGGED:
        values = np.array([task[name] for task in tasks.values() if name in task])
        if len(values) == len(tasks) > 0:
            total = np.sqrt(np.sum(values**2)) if name.startswith("stderr_") else np.sum(values)
            averages[name] = float(total / len(values))
    return averages


def _metrics(task: str, facts: Mapping[str, Any]) -> dict[str, float]:
    return {f"olmes/{middle}/{task}": facts[name] for name, middle in _LOGGED.items() if name in facts}
