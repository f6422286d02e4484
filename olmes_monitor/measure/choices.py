"""The table of an evaluation's log-likelihoods, cut into one set of plain arrays a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from olmes_monitor.measure.accuracy import correct, count_ties, predict
from olmes_monitor.measure.cyclic import SHIFTED, shift_column
from olmes_monitor.measure.normalize import NEEDS, NORMALIZATIONS, Normalization, normalize

if TYPE_CHECKING:
    import pyarrow as pa

_LENGTHS_AND_LOGS = ("cf", "mcf", "unconditional", "tokens", "chars", "bytes")
COLUMNS = ("task", "subject", "question", "index", "choice", "gold", *_LENGTHS_AND_LOGS)
"""The columns of the table that are read (documented in record/evaluation.py), beside `shift_column`s if it has some."""


@dataclass(frozen=True, eq=False)
class Choices:
    """One task's choices, flat, in the suite's order."""

    task: str
    ids: NDArray[np.object_]
    """(questions,) question ids."""
    subjects: NDArray[np.object_]
    """(questions,) "" where the task has no subjects."""
    offsets: NDArray[np.int64]
    """(questions + 1,) where each question's choices begin and end."""
    gold: NDArray[np.int64]
    """(questions,) position of the right choice."""
    columns: dict[str, NDArray[np.float64]]
    """cf, mcf, unconditional, tokens, chars, bytes and `shift_column`s, each (choices,). A column that was not asked
    (all null) is left out; a null in a column that was asked is NaN."""

    @property
    def n(self) -> int:
        """Number of questions."""
        return len(self.gold)

    @property
    def normalizations(self) -> tuple[Normalization, ...]:
        """The kinds by which these cloze choices can be scored: those whose inputs were asked."""
        known = {*self.columns, "offsets"} if "cf" in self.columns else set()
        return tuple(kind for kind in NORMALIZATIONS if known.issuperset({"cf", *NEEDS[kind]}))

    @property
    def orders(self) -> NDArray[np.float64] | None:
        """MCF in every cyclic order, (orders, choices), as cyclic.py takes it; None if only the official was asked."""
        names = [shift_column(shift) for shift in range(1, int(np.diff(self.offsets).max(initial=1)))]
        if not self.columns.keys() & set(names):
            return None
        unknown = np.full(self.offsets[-1], np.nan)
        return np.stack([self.columns.get(name, unknown) for name in ("mcf", *names)])

    def scores(self, formulation: str, normalization: str) -> NDArray[np.float64]:
        """What the choices are ranked by, (choices,): normalized for cf, the labels' bare log-likelihood for mcf.

        NaN where the normalization needs something that was not asked.
        """
        if formulation == "mcf":
            return self.columns["mcf"]
        unknown = np.full(self.offsets[-1], np.nan)
        inputs = {name: self.columns.get(name, unknown) for name in ("tokens", "chars", "bytes", "unconditional")}
        return normalize(self.columns["cf"], normalization, **inputs, offsets=self.offsets)

    def correct(self, formulation: str, normalization: str) -> NDArray[np.float64]:
        """1, 0 or NaN (undefined) for each question, (questions,)."""
        return correct(predict(self.scores(formulation, normalization), self.offsets), self.gold)

    def ties(self, formulation: str, normalization: str) -> int:
        """Questions whose best choice shares its score."""
        return count_ties(self.scores(formulation, normalization), self.offsets)


def read_choices(scores: pa.Table) -> dict[str, Choices]:
    """Task → its choices, tasks in the order of the table.

    Raises ValueError if a column is missing, or a task's rows are not whole questions in order with one gold choice.
    """
    import pyarrow as pa

    if missing := [name for name in COLUMNS if name not in scores.column_names]:
        raise ValueError(f"the table of scores lacks the columns {', '.join(missing)}")
    shifted = [name for name in scores.column_names if name.startswith(SHIFTED)]
    values = (*_LENGTHS_AND_LOGS, *shifted)
    text = {name: _numpy(scores.column(name).cast(pa.string())) for name in ("task", "subject", "question")}
    # Nulls become NaN here; `asked` keeps apart what was never asked from what came back undefined.
    numbers = {name: _numpy(scores.column(name)) for name in ("index", "choice", "gold", *values)}
    asked = {name: _numpy(scores.column(name).is_valid()) for name in values}
    found: dict[str, Choices] = {}
    for task in dict.fromkeys(text["task"].tolist()):
        rows = np.flatnonzero(text["task"] == task)
        offsets = _offsets(numbers["index"][rows], numbers["choice"][rows], task)
        firsts = rows[offsets[:-1]]
        found[task] = Choices(
            task=task,
            ids=text["question"][firsts],
            subjects=text["subject"][firsts],
            offsets=offsets,
            gold=_gold(numbers["gold"][rows].astype(bool), offsets, task),
            columns={name: numbers[name][rows].astype(np.float64) for name in values if asked[name][rows].any()},
        )
    return found


def _numpy(column: Any) -> NDArray[Any]:
    return column.to_numpy() if len(column) else np.empty(0)


def _offsets(index: NDArray[Any], choice: NDArray[Any], task: str) -> NDArray[np.int64]:
    """Where questions begin: where `index` changes. Checked against `choice`, which counts up from 0 in each."""
    starts = np.flatnonzero(np.concatenate(([True], index[1:] != index[:-1])))
    offsets = np.append(starts, len(index))
    if np.any(choice != np.arange(len(index)) - np.repeat(starts, np.diff(offsets))):
        raise ValueError(f"the table of scores: rows of {task} are not whole questions with their choices in order")
    return offsets


def _gold(gold: NDArray[np.bool_], offsets: NDArray[np.int64], task: str) -> NDArray[np.int64]:
    if np.any(np.add.reduceat(gold.astype(np.int64), offsets[:-1]) != 1):
        raise ValueError(f"the table of scores: a question of {task} has not exactly one gold choice")
    return np.flatnonzero(gold) - offsets[:-1]
