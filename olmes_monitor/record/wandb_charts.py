"""What a W&B page shows of a run, as plain lists: one chart a task, and a table of the latest evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from olmes_monitor.measure.crossover import Crossover
from olmes_monitor.record.evaluation import Evaluation
from olmes_monitor.record.run import AVERAGE, Run, average_facts
from olmes_monitor.report.words import crossover_line, format_tokens

Lines = dict[str, tuple[list[int], list[float]]]
"""Name of a line → its tokens and its values, of equal length."""

COLUMNS = ("task", "n", "CF", "± CF", "MCF", "± MCF", "gap", "± gap", "score", "floor", "state", "crossing")
"""Of the table: accuracies as fractions with their standard errors, the verdict, and its tokens."""

_FACTS = ("n", "cf", "stderr_cf", "mcf", "stderr_mcf", "gap", "stderr_gap", "score", "floor")


def chart_lines(run: Run, task: str, crossover: Crossover | None) -> Lines:
    """CF, MCF and the floor of a task (or "average") against tokens; where they crossed, an upright line.

    Its name carries the token count and the interval: a legend is redrawn with its data, a title once edited is not.
    """
    found: Lines = {name.upper(): _line(run, task, name) for name in ("cf", "mcf")}
    found = {name: line for name, line in found.items() if line[0]}
    if not found:
        return {}
    first, last = run.evaluations[0].point.tokens, run.evaluations[-1].point.tokens
    floors = _line(run, task, "floor")[1]
    if floors:
        found["floor"] = ([first, last], [floors[-1]] * 2)
    if crossover is not None and crossover.tokens is not None:
        values = [value for _, line in found.values() for value in line]
        found[_crossing(crossover)] = ([crossover.tokens] * 2, [min(values), max(values)])
    return found


def _crossing(crossover: Crossover) -> str:
    """ "crossing at 412B [398B, 431B]"."""
    ends = (crossover.lo, crossover.hi)
    interval = "" if None in ends else f" [{', '.join(format_tokens(end) for end in ends if end is not None)}]"
    return f"crossing at {format_tokens(crossover.tokens or 0)}{interval}"


def chart_title(task: str, crossover: Crossover | None) -> str:
    """The verdict in words where there is one."""
    return f"{task}: CF and MCF" if crossover is None else crossover_line(task, crossover)


def charted(run: Run) -> list[str]:
    """The tasks that get a chart, "average" last, where it means something."""
    return [*run.tasks, AVERAGE] if len(run.tasks) > 1 else run.tasks


def latest_rows(run: Run, crossovers: Mapping[str, Crossover]) -> list[list[Any]]:
    """Rows of COLUMNS: the last evaluation that did not fail, a task a row; None where there is no value."""
    whole = [evaluation for evaluation in run.evaluations if evaluation.metrics]
    if not whole:
        return []
    rows = []
    for task in charted(run):
        facts, crossover = facts_of(whole[-1], task), crossovers.get(task)
        verdict = [None, None] if crossover is None else [crossover.state, crossover.tokens]
        rows.append([task, *(facts.get(name) for name in _FACTS), *verdict])
    return rows


def facts_of(evaluation: Evaluation, task: str) -> Mapping[str, Any]:
    """A task's facts at an evaluation, or the averages'; empty where it failed."""
    return average_facts(evaluation) if task == AVERAGE else evaluation.tasks.get(task, {})


def _line(run: Run, task: str, name: str) -> tuple[list[int], list[float]]:
    """A fact against tokens, without the evaluations that lack it."""
    points = [(evaluation.point.tokens, facts_of(evaluation, task).get(name)) for evaluation in run.evaluations]
    known = [(tokens, value) for tokens, value in points if value is not None and math.isfinite(value)]
    return [tokens for tokens, _ in known], [value for _, value in known]
