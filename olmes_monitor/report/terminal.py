"""An evaluation and a crossover as a terminal shows them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from olmes_monitor.record.run import AVERAGE, average_facts
from olmes_monitor.report.words import crossover_line, crossover_lines, format_tokens

if TYPE_CHECKING:
    from rich.table import Table

    from olmes_monitor.record.evaluation import Evaluation

__all__ = ["crossover_line", "crossover_lines", "evaluation_table", "format_tokens"]

ABSENT = "–"
BETTER = "†"


def evaluation_table(evaluation: Evaluation) -> Table:
    """One row a task and the average last: CF, MCF and their gap in percent, each ± its standard error.

    † stands at the better formulation; below the table stand the OLMES score (the average of those), MCF over the
    cyclic orders if it was asked, why values are absent (–), and one line of warnings. The gap's sign is a character
    and a colour, so nothing is lost without colour. Fits 80 columns.
    """
    from rich import box
    from rich.table import Table

    notes = _notes(evaluation)
    point, seconds = evaluation.point, evaluation.cost.get("seconds")
    title = f"{evaluation.suite} at {format_tokens(point.tokens)} tokens, step {point.step:,}"
    table = Table(
        title=title if seconds is None else f"{title}, {seconds:.1f} s",
        caption=notes,
        caption_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        min_width=76 if notes else None,  # the notes wrap at the table's width
    )
    table.add_column("task", no_wrap=True)
    for name in ("n", "CF", "MCF", "gap"):
        table.add_column(name, justify="right", no_wrap=True)
    for task, facts in evaluation.tasks.items():
        table.add_row(*_row(task, facts))
    if len(evaluation.tasks) > 1:
        table.add_section()
        table.add_row(*_row(AVERAGE, average_facts(evaluation)), style="bold")
    return table


def _row(task: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
    both = "cf" in facts and "mcf" in facts
    better = ("mcf" if facts["mcf"] > facts["cf"] else "cf") if both else None
    cells = [(f"{BETTER} " if name == better else "") + _value(facts, name) for name in ("cf", "mcf")]
    return task, f"{facts['n']:,}" if "n" in facts else "", *cells, _gap(facts)


def _value(facts: Mapping[str, Any], name: str, sign: str = "") -> str:
    """Percent ± standard error; `sign` is the sign flag of the format."""
    if name not in facts:
        return ABSENT
    error = facts.get(f"stderr_{name}")
    return f"{100 * facts[name]:{sign}.1f}" + (f" ± {100 * error:.1f}" if error is not None else "")


def _gap(facts: Mapping[str, Any]) -> str:
    text = _value(facts, "gap", "+")
    if text == ABSENT or facts["gap"] == 0:
        return text
    return f"[green]{text}[/green]" if facts["gap"] > 0 else f"[red]{text.replace('-', '−')}[/red]"


def _notes(evaluation: Evaluation) -> str | None:
    """The OLMES score, MCF over the cyclic orders, why values are absent, a line each, and what to be wary of, in one."""
    from rich.markup import escape

    found = [line for lines in (_score, _cyclic, _reasons, _warnings) for line in lines(evaluation)]
    return escape("\n".join(found)) or None


def _score(evaluation: Evaluation) -> list[str]:
    """The suite's OLMES score; its error is that of the marked forms, as if they had been chosen beforehand."""
    tasks, averages = evaluation.tasks.values(), average_facts(evaluation)
    if len(tasks) < 2 or "score" not in averages:
        return []
    errors = [facts[f"stderr_{facts['best']}"] for facts in tasks if f"stderr_{facts['best']}" in facts]
    if len(errors) == len(tasks):
        averages["stderr_score"] = math.hypot(*errors) / len(errors)
    return [f"OLMES score, the average of each task's {BETTER}: {_value(averages, 'score')}"]


def _cyclic(evaluation: Evaluation) -> list[str]:
    """MCF over the cyclic orders of the choices, averaged over tasks."""
    found = [facts["cyclic"] for facts in evaluation.tasks.values() if "cyclic" in facts]
    if not found:
        return []
    if len(found) < len(evaluation.tasks):
        return ["cyclic: absent unless every task has its value"]
    averages = {name: math.fsum(facts[name] for facts in found) / len(found) for name in ("debiased", "gain", "spread")}
    for name in ("stderr_debiased", "stderr_gain"):
        if all(name in facts for facts in found):
            averages[name] = math.hypot(*(facts[name] for facts in found)) / len(found)
    gain = _value(averages, "gain", "+").replace("-", "−")
    return [f"cyclic: debiased MCF {_value(averages, 'debiased')} ({gain} on MCF), spread {_value(averages, 'spread')}"]


def _reasons(evaluation: Evaluation) -> list[str]:
    lines = [f"{task}: {problem}" for task, problem in evaluation.problems.items()]
    for formulation in ("cf", "mcf"):
        unasked = [task for task, facts in evaluation.tasks.items() if formulation not in facts]
        if unasked := [task for task in unasked if task not in evaluation.problems]:
            lines.append(f"{formulation.upper()} was not asked: {', '.join(unasked)}")
    if len(evaluation.tasks) > 1 and not average_facts(evaluation):
        lines.append("average: absent unless every task has its value")
    return lines


def _warnings(evaluation: Evaluation) -> list[str]:
    """The first warning's finding, and how many more tasks have one; the record has them in full."""
    found = {task: facts["warnings"] for task, facts in evaluation.tasks.items() if facts.get("warnings")}
    if not found:
        return []
    task, warnings = next(iter(found.items()))
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return [f"! {task}{more}: {warnings[0].split(': ')[0]}"]
