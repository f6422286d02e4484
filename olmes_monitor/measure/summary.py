"""An evaluation's log-likelihoods → what is logged and what is kept about each task (defined in reference.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from olmes_monitor.measure import floors
from olmes_monitor.measure.accuracy import UNDEFINED, correct, mean, predict, stderr
from olmes_monitor.measure.bias import label_bias, length_bias
from olmes_monitor.measure.choices import Choices, read_choices
from olmes_monitor.measure.cyclic import (
    consistent,
    debiased_answers,
    existing,
    order_accuracies,
    order_answers,
    shift_column,
    spread,
)
from olmes_monitor.measure.domains import domains_of
from olmes_monitor.measure.normalize import NORMALIZATIONS, length_slope
from olmes_monitor.measure.signals import bits_per_byte, gold_probability, label_mass
from olmes_monitor.suite.question import FORMULATIONS

if TYPE_CHECKING:
    import pyarrow as pa

Codes = NDArray[np.int64] | None
"""(questions,) a number for each subject; None where there is no more than one."""

_LOGGED = {"cf": "cf", "mcf": "mcf", "score": "score", "gap": "gap"} | {
    f"stderr_{name}": f"stderr/{name}" for name in ("cf", "mcf", "gap")
}
"""Key in a task's dict → the middle of its logged name."""

TINY = 0.01
"""Label mass below which a warning is due. A model that has learned to continue the pattern of five shots puts most of
its mass on the labels; one that never learned anything 4/50,000 ≈ 1e-4. Below a hundredth the labels are ranked in the
tail of a distribution over other answers: right for a young model, and for a grown one a sign of wrong label tokens."""


def summarize(
    scores: pa.Table, normalization: Mapping[str, str]
) -> tuple[dict[str, dict[str, Any]], dict[str, float], dict[str, str]]:
    """(tasks, metrics, problems) of one evaluation's table of scores (columns: record/evaluation.py).

    normalization: task → the kind its cloze choices are ranked by.
    tasks: task → its facts, as reference.FACTS names and defines them; a fact without an honest value is absent.
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
        kind, subjects = normalization[task], _codes(choices)
        tasks[task] = _known_beforehand(choices, kind, subjects)
        if problem := _undefined(choices, kind):
            problems[task] = problem
        else:
            tasks[task] |= _measured(choices, kind, subjects)
        metrics |= _metrics(task, tasks[task])
    return tasks, metrics | _metrics("average", _average(tasks)), problems


def _codes(choices: Choices) -> Codes:
    names = choices.subjects.tolist()
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], dtype=np.int64) if len(numbers) > 1 else None


def _known_beforehand(choices: Choices, kind: str, subjects: Codes) -> dict[str, Any]:
    """What follows from the questions alone."""
    sizes = np.diff(choices.offsets)
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
        if formulation == "cf" and kind in NORMALIZATIONS and kind not in choices.normalizations:
            needed = "unconditional log-likelihoods" if "pmi" in kind else "the choices' lengths"
            return f"cf: normalization {kind!r} needs {needed}, and none were asked"
        missing = predict(choices.scores(formulation, kind), choices.offsets) == UNDEFINED
        if missing.any():
            first = choices.ids[np.argmax(missing)]
            return f"{formulation}: {missing.sum()} of {choices.n} questions have NaN log-likelihoods, first {first!r}"
    return None


def _measured(choices: Choices, kind: str, subjects: Codes) -> dict[str, Any]:
    """The facts of a task all of whose questions are defined."""
    asked = [formulation for formulation in FORMULATIONS if formulation in choices.columns]
    right: dict[str, NDArray[np.float64]] = {formulation: choices.correct(formulation, kind) for formulation in asked}
    if len(asked) == 2:
        right["gap"] = right["mcf"] - right["cf"]  # question by question, so its standard error is paired
    facts: dict[str, Any] = _averages(right, subjects)
    facts |= {f"ties_{formulation}": choices.ties(formulation, kind) for formulation in asked}
    if len(asked) == 2:
        facts["best"] = "mcf" if facts["mcf"] > facts["cf"] else "cf"
        facts["score"] = facts[facts["best"]]
    if subjects is not None:
        facts["micro"] = _averages(right, None)
        if domains := domains_of(choices.subjects.tolist()):
            facts["domains"] = _by_domain(right, subjects, np.array(domains))
    if "cf" in asked:
        facts |= _cloze(choices, subjects)
    if "mcf" in asked:
        facts |= _labels(choices, subjects)
    if choices.orders is not None:
        facts |= _cyclic(choices, choices.orders, subjects, facts.get("warnings", []))
    return facts


def _averages(values: Mapping[str, NDArray[np.float64]], subjects: Codes) -> dict[str, float]:
    """Each mean under its name and its standard error under stderr_<name>; what is not finite is left out."""
    array = np.stack(list(values.values()))
    facts = dict(zip(values, mean(array, subjects).tolist(), strict=True))
    facts |= {f"stderr_{name}": error for name, error in zip(values, stderr(array, subjects).tolist(), strict=True)}
    return {name: value for name, value in facts.items() if math.isfinite(value)}


def _by_domain(
    right: Mapping[str, NDArray[np.float64]], subjects: NDArray[np.int64], domains: NDArray[np.str_]
) -> dict[str, dict[str, float]]:
    """Domain → n and the averages of its subjects, over subjects like the headline."""
    found = {}
    for domain in np.unique(domains).tolist():
        inside = domains == domain
        averages = _averages({name: values[inside] for name, values in right.items()}, subjects[inside])
        found[domain] = {"n": int(inside.sum()), **averages}
    return found


def _cloze(choices: Choices, subjects: Codes) -> dict[str, Any]:
    """What CF's log-likelihoods give beyond the headline: the other normalizations, length bias, smooth signals."""
    cf, offsets, gold = choices.columns["cf"], choices.offsets, choices.gold
    scores = {kind: choices.scores("cf", kind) for kind in choices.normalizations}
    right = np.stack([correct(predict(values, offsets), gold) for values in scores.values()])
    by_kind = zip(scores, mean(right, subjects).tolist(), strict=True)
    facts: dict[str, Any] = {"cf_by_normalization": {kind: cf for kind, cf in by_kind if math.isfinite(cf)}}
    signals = {"gold_probability_cf": gold_probability(cf, offsets, gold)}
    lengths = choices.columns.get("bytes")
    if lengths is not None:
        signals["bits_per_byte"] = bits_per_byte(cf, lengths, offsets, gold)
        biases = {kind: length_bias(values, lengths, offsets) for kind, values in scores.items()}
        facts["length_bias"] = {
            "tau": {kind: tau for kind, (tau, _) in biases.items() if math.isfinite(tau)},
            "undefined": {kind: undefined for kind, (_, undefined) in biases.items()},
            "slope": length_slope(cf, lengths, offsets),
        }
    return facts | _means(signals, subjects)


def _labels(choices: Choices, subjects: Codes) -> dict[str, Any]:
    """What MCF's log-likelihoods give beyond the headline: smooth signal, label mass and its warning, label bias."""
    mcf, offsets, gold = choices.columns["mcf"], choices.offsets, choices.gold
    signals = {"gold_probability_mcf": gold_probability(mcf, offsets, gold), "label_mass": label_mass(mcf, offsets)}
    facts: dict[str, Any] = _means(signals, subjects)
    facts["label_bias"] = label_bias(predict(mcf, offsets), gold, int(np.diff(offsets).max()))
    if facts["label_mass"] < TINY:
        facts["warnings"] = [
            f"label mass {facts['label_mass']:.1g}, normal only early in training: the labels may be tokenized "
            "differently from what the model expects (an untrained model with 50k tokens has about 1e-4)"
        ]
    return facts


def _cyclic(
    choices: Choices, orders: NDArray[np.float64], subjects: Codes, warnings: list[str]
) -> dict[str, dict[str, Any]] | dict[str, list[str]]:
    """MCF over all cyclic orders of the choices (orders: (orders, choices)), or a warning more that says why not."""
    offsets, gold = choices.offsets, choices.gold
    answers = order_answers(orders, offsets)
    lacking = (answers == UNDEFINED) & existing(orders, offsets)
    if lacking.any():
        shift = int(np.argmax(lacking.any(axis=1)))
        first = choices.ids[np.argmax(lacking[shift])]
        problem = f"{lacking[shift].sum()} of {choices.n} questions have NaN log-likelihoods in {shift_column(shift)}"
        return {"warnings": [*warnings, f"no cyclic measures: {problem}, first {first!r}"]}
    debiased = correct(debiased_answers(orders, offsets), gold)
    values = {
        "debiased": debiased,
        "gain": debiased - correct(answers[0], gold),  # question by question, so its standard error is paired
        "consistent": consistent(answers, offsets),
    }
    accuracies = order_accuracies(answers, offsets, gold, subjects)
    facts = {"accuracy": accuracies.tolist(), "questions": existing(orders, offsets).sum(axis=1).tolist()}
    return {"cyclic": facts | _averages(values, subjects) | {"spread": spread(accuracies, offsets)}}


def _means(values: Mapping[str, NDArray[np.float64]], subjects: Codes) -> dict[str, float]:
    means = zip(values, mean(np.stack(list(values.values())), subjects).tolist(), strict=True)
    return {name: value for name, value in means if math.isfinite(value)}


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
