"""Two runs read from their records, compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from olmes_monitor.errors import RecordError
from olmes_monitor.measure.compare import Answers, Comparison, compare
from olmes_monitor.measure.crossover import Crossover
from olmes_monitor.record.run import AVERAGE
from olmes_monitor.report.words import format_tokens

if TYPE_CHECKING:
    from olmes_monitor.record.run import Run


def compare_crossovers(run_a: Run, run_b: Run) -> dict[str, Comparison]:
    """Task → by how many tokens B's crossover lies before or after A's, with a paired 95 % interval.

    For every task that both runs asked in both forms, and "average" if all tasks are among them. A question counts alike in
    both runs in each bootstrap sample, so what makes it hard for both cancels. Undefined, and said so by
    `comparison_line`, where one of the two has not crossed.
    Raises RecordError if the runs asked different suites (fingerprints), or a scores file is missing or damaged.
    """
    if not run_a.fingerprint or run_a.fingerprint != run_b.fingerprint:
        raise RecordError(
            "crossovers can be compared over the same questions only, but "
            + " and ".join(f"{run.folder} has {_suite(run)}" for run in (run_a, run_b))
            + "; score both with one suite (olmes-monitor scan)"
        )
    crossovers = [run.crossovers() for run in (run_a, run_b)]
    shared = [task for task in run_a.tasks if all(task in found for found in crossovers)]
    comparisons = {}
    for task in shared:
        pair = [_answers(run, [task], found[task]) for run, found in zip((run_a, run_b), crossovers, strict=True)]
        comparisons[task] = compare(task, *pair, subjects=run_a.correct(task).subjects)
    if shared and all(AVERAGE in found for found in crossovers):
        pair = [_answers(run, shared, found[AVERAGE]) for run, found in zip((run_a, run_b), crossovers, strict=True)]
        subjects = [run_a.correct(task).subjects for task in shared]
        tasks = np.repeat(shared, [len(part) for part in subjects])
        comparisons[AVERAGE] = compare(AVERAGE, *pair, subjects=np.concatenate(subjects), tasks=tasks)
    return comparisons


def comparison_line(comparison: Comparison, a: str = "A", b: str = "B") -> str:
    """One sentence: "B crossed 61B tokens earlier [22B, 104B] on arc_easy"; a, b: the runs' names.

    The interval is in the direction told: a negative end of "earlier" is later. … stands for an open end.
    """
    runs = {a: comparison.a, b: comparison.b}
    if comparison.tokens is None:
        reasons = [f"{name}: {found.state.replace('_', ' ')}" for name, found in runs.items() if found.tokens is None]
        crossed = [f"{name} crossed" for name, found in runs.items() if found.tokens is not None]
        return f"no difference in tokens on {comparison.task}, since not both crossed ({', '.join(reasons + crossed)})"
    sign = -1 if comparison.tokens < 0 else 1
    ends = (comparison.lo, comparison.hi) if sign > 0 else (comparison.hi, comparison.lo)
    low, high = ("…" if end is None else _signed(sign * end) for end in ends)
    clear = (comparison.lo is not None and comparison.lo > 0) or (comparison.hi is not None and comparison.hi < 0)
    notes = [] if clear else ["no clear difference"]
    notes += [f"{name} not yet confirmed" for name, found in runs.items() if found.state != "confirmed"]
    distance = f"{format_tokens(abs(comparison.tokens))} tokens {'earlier' if sign < 0 else 'later'}"
    return f"{b} crossed {distance} [{low}, {high}] on {comparison.task}" + (f" ({'; '.join(notes)})" if notes else "")


def _signed(tokens: int) -> str:
    return ("−" if tokens < 0 else "") + format_tokens(abs(tokens))


def _answers(run: Run, tasks: list[str], crossover: Crossover) -> Answers:
    """One task's, or several tasks' side by side."""
    rights = [run.correct(task) for task in tasks]
    return Answers(
        tokens=rights[0].tokens,
        cf=np.concatenate([right.cf for right in rights if right.cf is not None], axis=1),
        mcf=np.concatenate([right.mcf for right in rights if right.mcf is not None], axis=1),
        floor=np.concatenate([right.guesses for right in rights]),
        crossover=crossover,
    )


def _suite(run: Run) -> str:
    return f"{run.suite} ({run.fingerprint})" if run.fingerprint else "no evaluations"
