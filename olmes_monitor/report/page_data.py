"""What the page's script draws, as one JSON object: curves and summaries, never a question's answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from olmes_monitor.measure.domains import domains_of
from olmes_monitor.report.curves import OWN, Curve, Source
from olmes_monitor.report.words import crossover_line

if TYPE_CHECKING:
    from olmes_monitor.measure.crossover import Crossover
    from olmes_monitor.record.evaluation import Evaluation

DECIMALS = 5
"""Of a fraction: a thousandth of a point, far below what 50,000 questions can tell."""

EARLY = 0.2
"""Share of the tokens so far before which a crossing is hard to read on a linear axis."""

DOMAIN_NAMES = {
    "stem": "STEM",
    "humanities": "humanities",
    "social_sciences": "social sciences",
    "other": "other",
}


def page_data(sources: Sequence[Source]) -> dict[str, Any]:
    """runs: what is drawn of each; tasks: all, in order, the average last; kinds: normalizations to choose from."""
    tasks = list(dict.fromkeys(task for source in sources for task in source.curves if task != "average"))
    if any("average" in source.curves for source in sources):
        tasks.append("average")
    kinds = dict.fromkeys(k for source in sources for curve in source.curves.values() for k in curve.cf)
    return {"tasks": tasks, "kinds": list(kinds), "x": _axis(sources), "runs": [_run(source) for source in sources]}


def _axis(sources: Sequence[Source]) -> str:
    """How tokens are drawn at first: "log" where most crossings would be squeezed to the left edge, else "linear"."""
    early = [
        found.tokens < EARLY * curve.tokens[-1]
        for source in sources
        for curve in source.curves.values()
        if (found := curve.crossovers.get(OWN)) is not None and found.tokens is not None
    ]
    return "log" if early and np.mean(early) > 0.5 else "linear"


def _run(source: Source) -> dict[str, Any]:
    evaluations = source.run.evaluations if source.run is not None else []
    return {
        "name": source.name,
        "tasks": {task: _curve(curve, task) for task, curve in source.curves.items()},
        "checkpoints": [[e.point.tokens, e.point.checkpoint] for e in evaluations if e.point.checkpoint],
        "domains": {
            DOMAIN_NAMES.get(name.removeprefix("mmlu_"), name): _curve(c, name) for name, c in source.domains.items()
        },
        "subjects": {task: _subjects(found) for task, found in source.subjects.items()},
        "bias": {task: _bias(evaluations, task) for task in source.curves if any(task in e.tasks for e in evaluations)},
        "cost": _cost(evaluations),
    }


def _curve(curve: Curve, task: str) -> dict[str, Any]:
    return {
        "tokens": curve.tokens.tolist(),
        "steps": None if curve.steps is None else curve.steps.tolist(),
        "n": curve.n,
        "own": curve.normalization,
        "floor": curve.floor,
        "mcf": _numbers(curve.mcf),
        "mcf_error": _numbers(curve.mcf_error),
        "cf": {kind: _numbers(values) for kind, values in curve.cf.items()},
        "cf_error": {kind: _numbers(values) for kind, values in curve.cf_error.items()},
        "gap_error": {kind: _numbers(values) for kind, values in curve.gap_error.items()},
        "crossings": {kind: _crossing(found, task) for kind, found in curve.crossovers.items()},
    }


def _crossing(found: Crossover, task: str) -> dict[str, Any]:
    return {
        "state": found.state,
        "tokens": found.tokens,
        "lo": found.lo,
        "hi": found.hi,
        "step": found.step,
        "words": crossover_line(task, found),
    }


def _subjects(found: dict[str, Curve]) -> dict[str, Any]:
    """The latest values of every subject; at which token count is in `tokens`."""
    first = next(iter(found.values()))
    domains = domains_of(found) or [""] * len(found)
    known = np.flatnonzero(np.isfinite(first.mcf) & np.isfinite(first.cf[OWN]))
    last = int(known[-1]) if len(known) else -1
    return {
        "tokens": int(first.tokens[last]),
        "names": list(found),
        "domains": [DOMAIN_NAMES.get(domain, domain) for domain in domains],
        "n": [curve.n for curve in found.values()],
        "cf": _numbers([curve.cf[OWN][last] for curve in found.values()]),
        "mcf": _numbers([curve.mcf[last] for curve in found.values()]),
    }


def _bias(evaluations: Sequence[Evaluation], task: str) -> dict[str, Any]:
    """Over tokens: shares of MCF's answers by label and where the gold choices are, label mass, length bias."""
    rows = [(e.point.tokens, e.tasks[task]) for e in evaluations if task in e.tasks]
    shares, gold = [], None
    for _, facts in rows:
        bias = facts.get("label_bias")
        total = max(sum(bias["predicted"]), 1) if bias else 1
        shares.append([round(count / total, DECIMALS) for count in bias["predicted"]] if bias else None)
        if bias:
            gold = [round(count / max(sum(bias["gold"]), 1), DECIMALS) for count in bias["gold"]]
    taus = [facts.get("length_bias", {}).get("tau", {}) for _, facts in rows]
    kinds = dict.fromkeys(kind for tau in taus for kind in tau)
    return {
        "tokens": [tokens for tokens, _ in rows],
        "shares": shares,
        "gold": gold,
        "mass": [None if facts.get("label_mass") is None else float(f"{facts['label_mass']:.3g}") for _, facts in rows],
        "tau": {kind: _numbers([tau.get(kind) for tau in taus]) for kind in kinds},
        "own": rows[-1][1].get("normalization", ""),
    }


def _cost(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    rows = [e for e in evaluations if "seconds" in e.cost]
    return {
        "tokens": [e.point.tokens for e in rows],
        "seconds": [round(e.cost["seconds"], 2) for e in rows],
        "overhead": _numbers([_overhead(e) for e in rows]),
    }


def _overhead(evaluation: Evaluation) -> float | None:
    return evaluation.cost.get("overhead", evaluation.metrics.get("olmes/overhead"))


def _numbers(values: Iterable[float | None]) -> list[float | None]:
    """As JSON holds them: rounded, null where there is no value."""
    return [None if value is None or not np.isfinite(value) else round(float(value), DECIMALS) for value in values]
