"""Verdicts and curves as tables: pandas, CSV, JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from olmes_monitor.report.curves import OWN

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from olmes_monitor.measure.crossover import Crossover
    from olmes_monitor.record.evaluation import Evaluation
    from olmes_monitor.report.curves import Curve, Source

VERDICTS: Mapping[str, str] = {
    "task": 'the task, or "average"',
    "state": "not_reached, tentative, confirmed, from_start, reverted or undecided",
    "tokens": "of the crossing; empty where there is none",
    "lo": "lower end of its 95 % interval; empty where it may lie before the first evaluation",
    "hi": "upper end; empty where the crossing may be still to come",
    "step": "the optimizer step at `tokens`",
    "confirmed": "tokens of the evaluation that confirmed it",
    "gap": "MCF − CF at the latest evaluation, a fraction of 1",
    "stderr": "its standard error",
}
"""Column → what it is."""

COUNTS = ("tokens", "lo", "hi", "step", "confirmed")


def verdict_frame(crossovers: Mapping[str, Crossover]) -> pd.DataFrame:
    """One row a task with the columns of VERDICTS; counts are Int64, so that they stay whole where some are absent."""
    import pandas as pd

    rows = [verdict(task, found) for task, found in crossovers.items()]
    frame = pd.DataFrame(rows, columns=list(VERDICTS))
    return frame.astype(dict.fromkeys(COUNTS, "Int64") | dict.fromkeys(("gap", "stderr"), "float64"))


def verdict(task: str, found: Crossover) -> dict[str, Any]:
    """One row of `verdict_frame`; None where there is no value."""
    known = np.flatnonzero(np.isfinite(found.gap))
    row: dict[str, Any] = {"task": task, "state": found.state} | {name: getattr(found, name) for name in COUNTS}
    for name, values in (("gap", found.gap), ("stderr", found.stderr)):
        value = float(values[known[-1]]) if len(known) else np.nan
        row[name] = value if np.isfinite(value) else None
    return row


def curve_frame(sources: Sequence[Source]) -> pd.DataFrame:
    """All curves as one table: a row for each run, task, evaluation and normalization of CF.

    Columns: run, task, normalization ("olmes" is the headline's, each task's own), tokens, step, n, cf, mcf, gap,
    stderr_cf, stderr_mcf, stderr_gap, floor. Fractions of 1; NaN where there is no value.
    """
    import pandas as pd

    parts = [
        pd.DataFrame({"run": source.name, "task": task, "normalization": kind, **_columns(curve, kind)})
        for source in sources
        for task, curve in source.curves.items()
        for kind in curve.cf
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def evaluation_frame(evaluation: Evaluation) -> pd.DataFrame:
    """One evaluation's rows of `Run.frame`, without the point: a row a task, the average last where there is one."""
    import pandas as pd

    from olmes_monitor.record.run import AVERAGE, average_facts

    tasks = {**evaluation.tasks, AVERAGE: average_facts(evaluation)}
    names = ("n", "normalization", "cf", "mcf", "score", "gap", "stderr_cf", "stderr_mcf", "stderr_gap", "floor")
    rows = [{"task": task, **{name: facts.get(name) for name in names}} for task, facts in tasks.items() if facts]
    return pd.DataFrame(rows, columns=["task", *names]).astype({"n": "Int64"})


def _columns(curve: Curve, kind: str) -> dict[str, Any]:
    import pandas as pd

    unknown = np.full(len(curve.tokens), np.nan)
    steps = [None] * len(curve.tokens) if curve.steps is None else curve.steps.tolist()
    return {
        "tokens": curve.tokens,
        "step": pd.array(steps, dtype="Int64"),
        "n": pd.array([curve.n] * len(curve.tokens), dtype="Int64"),
        "cf": curve.cf[kind],
        "mcf": curve.mcf,
        "gap": curve.mcf - curve.cf[kind],
        "stderr_cf": curve.cf_error.get(kind, unknown),
        "stderr_mcf": curve.mcf_error,
        "stderr_gap": curve.gap_error.get(kind, unknown),
        "floor": np.nan if curve.floor is None else curve.floor,
    }


def as_json(sources: Sequence[Source]) -> dict[str, Any]:
    """Everything as one object: runs, each with name, suite, fingerprint, verdicts (rows of VERDICTS) and evaluations
    (what the record's lines hold; for a table of accuracies the rows of `curve_frame`)."""
    return {"runs": [_run(source) for source in sources]}


def _run(source: Source) -> dict[str, Any]:
    run = source.run
    found = {task: curve.crossovers[OWN] for task, curve in source.rows.items() if OWN in curve.crossovers}
    return {
        "name": source.name,
        "suite": run.suite if run else None,
        "fingerprint": run.fingerprint if run else None,
        "notes": source.notes,
        "verdicts": [verdict(task, crossover) for task, crossover in found.items()],
        "evaluations": [evaluation.to_json() for evaluation in run.evaluations]
        if run
        else curve_frame([source]).astype(object).where(lambda frame: frame.notna(), None).to_dict("records"),
    }


def verdict_table(sources: Sequence[Source]) -> Table:
    """The verdicts for a terminal: a row for each run and task. Fits 80 columns with one run."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from olmes_monitor.report.words import format_tokens, interval_words

    many = len(sources) > 1
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    for name in (*(["run"] if many else []), "task", "verdict"):
        table.add_column(name, no_wrap=name != "run")
    for name in ("crossing", "95 % interval", "step", "gap"):
        table.add_column(name, justify="right", no_wrap=True)
    for source in sources:
        for task, curve in source.rows.items():
            found = curve.crossovers.get(OWN)
            cells = ["no verdict", "", "", "", ""]
            if found is not None:
                row = verdict(task, found)
                gap = "" if row["gap"] is None else f"{100 * row['gap']:+.1f}".replace("-", "−")
                if gap and row["stderr"] is not None:
                    gap += f" ± {100 * row['stderr']:.1f}"
                at = "" if found.tokens is None else format_tokens(found.tokens)
                step = "" if found.step is None else f"{found.step:,}"
                cells = [found.state.replace("_", " "), at, interval_words(found), step, gap]
            whose = [escape(source.name)] if many else []
            table.add_row(*whose, escape(task), *cells, style="bold" if task == "average" else None)
        table.add_section()
    return table
