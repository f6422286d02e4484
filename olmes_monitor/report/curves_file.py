"""A table of accuracies from any source, one row a task and evaluation, as the curves of runs.

tokens   tokens trained on; where it lacks, steps times `tokens_per_step`
step     the optimizer step
task     the task's name
cf, mcf  accuracies, as fractions or in percent
n        the task's number of questions; where it lacks, see `questions_from`
floor    what MCF must exceed to lead, beside CF; none where it lacks
run      which run a row belongs to; one run where it lacks
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from olmes_monitor.errors import DataError
from olmes_monitor.measure.crossover import find_crossover
from olmes_monitor.record.run import AVERAGE
from olmes_monitor.report.curves import OWN, Curve, Source

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("run", "tokens", "step", "task", "cf", "mcf", "n", "floor")
MOST = 50_000
"""Questions beyond which a count cannot be told from accuracies with six decimals."""


def read_curves(
    path: Path,
    columns: Mapping[str, str] | None = None,
    questions: Mapping[str, int] | None = None,
    tokens_per_step: float | None = None,
) -> list[Source]:
    """The runs of a CSV file, in the file's order.

    columns: our name → the file's, where they differ. questions: task → its number of questions ("" for any task).
    Raises DataError, naming file, column and row, where the table cannot be read as one.
    """
    frame = _read(path, columns or {}, tokens_per_step)
    sources = []
    for name, rows in frame.groupby("run", sort=False):
        curves, unknown = {}, []
        for task, own in rows.groupby("task", sort=False):
            curves[str(task)] = _curve(own.sort_values("tokens"), str(task), questions or {}, path)
            if curves[str(task)].n is None:
                unknown.append(str(task))
        notes = ["From a table of accuracies: the errors of the gap are unpaired, so wider than a record's."]
        if len(curves) > 1:
            notes.append(f"The average is the plain mean over the table's {len(curves)} tasks.")
            _add_average(curves)
        if unknown:
            notes.append(
                f"No verdict and no band for {', '.join(unknown)}: the number of questions is not known (--questions)."
            )
        sources.append(Source(str(name), curves, notes=notes))
    return sources


def _read(path: Path, columns: Mapping[str, str], tokens_per_step: float | None) -> pd.DataFrame:
    import pandas as pd

    try:
        frame = pd.read_csv(path)
    except (OSError, ValueError) as error:  # ParserError and UnicodeDecodeError are ValueErrors
        raise DataError(f"cannot read the table {path}: {error}") from error
    if absent := [theirs for theirs in columns.values() if theirs not in frame.columns]:
        raise DataError(f"{path} has no column {absent[0]!r}; its columns: {', '.join(map(str, frame.columns))}")
    frame = frame.rename(columns={theirs: ours for ours, theirs in columns.items()})
    if "tokens" not in frame.columns and "step" in frame.columns and tokens_per_step:
        frame["tokens"] = frame["step"] * tokens_per_step
    if missing := [name for name in ("tokens", "task", "cf", "mcf") if name not in frame.columns]:
        hint = "; with steps alone give --tokens-per-step" if missing[0] == "tokens" else ""
        raise DataError(
            f"{path} has no column {missing[0]!r}: name the file's with --columns {missing[0]}=NAME{hint}; "
            f"its columns: {', '.join(map(str, frame.columns))}"
        )
    frame["run"] = frame["run"].astype(str) if "run" in frame.columns else path.stem
    for name in sorted(({*COLUMNS} - {"run", "task"}) & set(frame.columns)):
        numbers = pd.to_numeric(frame[name], errors="coerce")
        wrong = numbers.isna() & frame[name].notna()
        if wrong.any():
            row = int(np.argmax(wrong.to_numpy()))
            raise DataError(f"{path}, line {row + 2}: {name} is {frame[name].iloc[row]!r}, not a number")
        frame[name] = numbers
    frame = frame[frame["tokens"].notna() & frame["task"].notna()]
    if not len(frame):
        raise DataError(f"{path} has no rows with tokens and a task")
    top = np.nanmax(frame[["cf", "mcf"]].to_numpy(), initial=0)
    if top > 1:
        frame[["cf", "mcf"]] /= 100
        if "floor" in frame.columns:
            frame["floor"] /= 100
    if top > 100 or np.nanmin(frame[["cf", "mcf"]].to_numpy(), initial=0) < 0:
        raise DataError(f"{path}: accuracies lie between 0 and 1, or 0 and 100 in percent; the largest is {top}")
    return frame


def _curve(rows: pd.DataFrame, task: str, questions: Mapping[str, int], path: Path) -> Curve:
    if rows["tokens"].duplicated().any():
        twice = rows["tokens"][rows["tokens"].duplicated()].iloc[0]
        raise DataError(f"{path}: {task} has two rows at {twice:.0f} tokens; a run column would tell them apart")
    cf, mcf = rows["cf"].to_numpy(np.float64), rows["mcf"].to_numpy(np.float64)
    n = questions.get(task, questions.get(""))
    if n is None and "n" in rows.columns and rows["n"].notna().any():
        n = int(rows["n"].max())
    if n is None:
        n = questions_from(np.concatenate([cf, mcf]))
    tokens = rows["tokens"].to_numpy(np.float64).round().astype(np.int64)
    steps = None
    if "step" in rows.columns and rows["step"].notna().all():
        steps = rows["step"].to_numpy(np.float64).round().astype(np.int64)
    floor = float(rows["floor"].max()) if "floor" in rows.columns and rows["floor"].notna().any() else None
    crossovers = {OWN: find_crossover(tokens, cf, mcf, n=n, steps=steps, floor=floor)} if n else {}
    error_cf, error_mcf = (_binomial(values, n) for values in (cf, mcf))
    return Curve(
        tokens,
        steps,
        mcf,
        error_mcf,
        cf={OWN: cf},
        cf_error={OWN: error_cf},
        gap_error={OWN: np.hypot(error_cf, error_mcf)},
        crossovers=crossovers,
        n=n,
        floor=floor,
    )


def questions_from(accuracies: ArrayLike) -> int | None:
    """The number of questions that accuracies give away, each being a count over it, rounded to some decimals.

    The smallest n of which all of them are multiples, if chance or the rounding would not make them so; else None: for
    macro averages, percentages with few decimals, a few values only.
    """
    values = np.unique(np.asarray(accuracies, dtype=np.float64))
    values = values[np.isfinite(values) & (values > 0) & (values < 1)]
    decimals = next((d for d in range(1, 9) if np.allclose(values, np.round(values, d), rtol=0, atol=1e-9)), 9)
    n = np.arange(2, MOST)
    near = n * 0.6 * 10.0**-decimals  # how far a rounded count/n, times n, may be from the count; float32 adds a little
    # A random value lies that near a whole number with probability 2·near; all of them, for one of the n counts tried:
    telling = np.log(n) + len(values) * np.log(np.minimum(2 * near, 1)) < np.log(1e-6)
    n, near = n[telling], near[telling]
    for value in values:
        fits = np.abs(value * n - np.round(value * n)) <= near
        n, near = n[fits], near[fits]
    return int(n[0]) if len(n) else None


def _binomial(values: NDArray[np.float64], n: int | None) -> NDArray[np.float64]:
    """√(p(1−p)/(n−1)); NaN where n is not known."""
    return np.sqrt(values * (1 - values) / (n - 1)) if n and n > 1 else np.full_like(values, np.nan)


def _add_average(curves: dict[str, Curve]) -> None:
    """The plain mean over tasks at the evaluations that have all of them; its error √(Σ se²)/tasks."""
    parts = list(curves.values())
    tokens = parts[0].tokens
    for part in parts[1:]:
        tokens = np.intersect1d(tokens, part.tokens)
    if not len(tokens):
        return
    at = [np.searchsorted(part.tokens, tokens) for part in parts]
    cf = np.mean([part.cf[OWN][where] for part, where in zip(parts, at, strict=True)], axis=0)
    mcf = np.mean([part.mcf[where] for part, where in zip(parts, at, strict=True)], axis=0)

    def error(arrays: list[NDArray[np.float64]]) -> NDArray[np.float64]:
        return np.sqrt(np.sum([a[where] ** 2 for a, where in zip(arrays, at, strict=True)], axis=0)) / len(parts)

    steps = None if parts[0].steps is None else parts[0].steps[at[0]]
    crossovers = {}
    if all(part.n for part in parts):
        # The count whose binomial error is that of the mean, were all tasks' accuracies alike.
        n = round(len(parts) ** 2 / sum(1 / (part.n or 1) for part in parts))
        crossovers = {OWN: find_crossover(tokens, cf, mcf, n=n, steps=steps)}
    curves[AVERAGE] = Curve(
        tokens,
        steps,
        mcf,
        error([part.mcf_error for part in parts]),
        {OWN: cf},
        {OWN: error([part.cf_error[OWN] for part in parts])},
        {OWN: error([part.gap_error[OWN] for part in parts])},
        crossovers,
    )
