"""Own tasks from rows: of a list, a JSONL or parquet file, or a dataset on the hub.

task = task_from_rows("medqa", file_rows("medqa.jsonl"), stem="question", choices="options", gold="answer_idx")
suite = Suite("mine", [task])
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from olmes_monitor.errors import DataError, SetupError
from olmes_monitor.suite.olmes import BOOLQ, SHOTS
from olmes_monitor.suite.question import LABELS, Question
from olmes_monitor.suite.task import DEFAULT, Task
from olmes_monitor.suite.templates import Template

Row = Mapping[str, Any]
Column = str | Callable[[Row], Any]
"""A column's name, or a function of the row."""


def task_from_rows(
    name: str,
    rows: Iterable[Row],
    *,
    stem: Column = "question",
    choices: Column | Sequence[str] = "choices",
    gold: Column = "answer",
    id: Column | None = None,
    passage: Column | None = None,
    subject: Column | None = None,
    shots: int | Iterable[Row] | Mapping[str, Iterable[Row]] = SHOTS,
    template: Template | None = None,
    normalization: str = "char",
    split: str = "",
) -> Task:
    """A task whose questions are rows; each part of a question is a column, by name or as a function of the row.

    `choices`: a column with a list of texts, with texts and labels (`{"text": [...], "label": [...]}`, as ARC has
    them) or with a text a label (`{"A": ...}`); or several columns with a text each. `gold`: an index from 0, one of
    the row's own labels, a choice's text, or a letter from A. `id`: the row's number if left out.
    `shots`: rows in the same columns (by subject, if a mapping), or how many of the first rows are shown and not asked.
    `template`: OLMES's usual form, with the passage first where there is one.

    Raises SetupError, naming the row and the column, where a row is no question; see Task for what it refuses.
    """
    for given in (rows, shots):
        if isinstance(given, str | os.PathLike):
            raise SetupError(
                f"task {name!r}: {given} is no rows; read a file with file_rows(), a dataset on the hub with hub_rows()"
            )
    columns = _Columns(name, stem, choices, gold, id, passage, subject)
    if isinstance(shots, int):
        if isinstance(shots, bool) or shots < 0:
            raise SetupError(f"task {name!r}: shots takes a number of rows, 0 or more, or the rows; got {shots!r}")
        rest = iter(rows)
        shown: Any = columns.questions(islice(rest, shots))
        asked = columns.questions(rest, first=len(shown))
        if not asked:
            raise SetupError(
                f"task {name!r}: the first {shots} rows are shown as shots, and only {len(shown)} rows were given; "
                "give more rows or shots=[...]"
            )
    elif isinstance(shots, Mapping):
        shown = {key: columns.questions(group, what="shot") for key, group in shots.items()}
        asked = columns.questions(rows)
    else:
        shown, asked = columns.questions(shots, what="shot"), columns.questions(rows)
    if template is None:
        template = DEFAULT if passage is None else BOOLQ
    return Task(name, asked, shown, template, normalization, split)


def file_rows(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The rows of a file: .jsonl (an object a line) or .parquet.

    Raises DataError if it cannot be read, naming the line, and SetupError for another kind of file.
    """
    path = Path(path)
    try:
        match path.suffix:
            case ".jsonl" | ".ndjson":
                lines = path.read_text("utf-8").split("\n")
                return [_parsed(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
            case ".parquet":
                import pyarrow.parquet as pq

                # Not through pandas: lists stay lists, and a missing value stays None.
                table: list[dict[str, Any]] = pq.read_table(path).to_pylist()
                return table
    except (OSError, ValueError) as error:  # pyarrow's errors are both of these
        raise DataError(f"{path} cannot be read: {error}") from error
    raise SetupError(f"{path} is neither .jsonl nor .parquet; read it yourself and pass the rows, a dict each")


def hub_rows(dataset: str, config: str | None = None, *, split: str, revision: str | None = None) -> Iterable[Row]:
    """The rows of a dataset on the Hugging Face hub, "owner/name", read through `datasets`.

    Loading scripts are never executed (`datasets` has no means to, from 4.0 on). With HF_HUB_OFFLINE=1 only what is
    cached is read and no connection is opened. Raises DataError if the dataset cannot be had.
    """
    import datasets

    try:
        rows: Iterable[Row] = datasets.load_dataset(dataset, config, split=split, revision=revision)
    except Exception as error:  # datasets, huggingface_hub and the network each raise errors of their own
        offline = " (HF_HUB_OFFLINE is set: only what is cached can be read)" if datasets.config.HF_HUB_OFFLINE else ""
        cause = str(error).partition("\n")[0]
        place = f"{dataset}, {config}" if config else dataset
        raise DataError(f"the dataset {place} (split {split}) cannot be had{offline}: {cause}") from error
    return rows


class _Columns:
    """Reads questions from rows; knows the task and the row for its error messages."""

    def __init__(
        self,
        task: str,
        stem: Column,
        choices: Column | Sequence[str],
        gold: Column,
        id: Column | None,
        passage: Column | None,
        subject: Column | None,
    ) -> None:
        self._task = task
        self._choices, self._gold, self._id = choices, gold, id
        self._texts = {"stem": stem, "passage": passage, "subject": subject}
        self._where = ""

    def questions(self, rows: Iterable[Row], what: str = "row", first: int = 0) -> list[Question]:
        """`first`: number of the first row, from 0; `what`: what the rows are called in messages."""
        return [self._question(row, number, what) for number, row in enumerate(rows, first)]

    def _question(self, row: Row, number: int, what: str) -> Question:
        self._where = f"task {self._task!r}, {what} {number}"
        if not isinstance(row, Mapping):
            raise self._error(
                f"is a {type(row).__name__}, not a mapping of column to value (of a DataFrame, pass df.to_dict('records'))"
            )
        texts, labels = self._read_choices(row)
        gold = self._index(self._value(row, self._gold, "gold"), texts, labels)
        id = number if self._id is None else self._value(row, self._id, "id")
        try:
            return Question(str(id), choices=tuple(texts), gold=gold, **self._read_texts(row))
        except ValueError as error:
            raise self._error(str(error)) from None

    def _read_texts(self, row: Row) -> dict[str, str]:
        found = {part: self._value(row, column, part) for part, column in self._texts.items() if column is not None}
        for part, text in found.items():
            if not isinstance(text, str):
                raise self._error(f"{text!r} is no text", part, self._texts[part])
        return found

    def _read_choices(self, row: Row) -> tuple[list[str], list[str]]:
        """The choices' texts, and their labels where the row has its own."""
        column = self._choices
        labels: list[Any] = []
        if isinstance(column, str) or callable(column):
            found = self._value(row, column, "choices")
            if isinstance(found, Mapping) and {"text", "label"} <= set(found):
                texts, labels = list(found["text"]), list(found["label"])
            elif isinstance(found, Mapping):
                texts, labels = list(found.values()), list(found)
            elif isinstance(found, Iterable) and not isinstance(found, str):
                texts = list(found)
            else:
                raise self._error(f"{found!r} is neither a list of texts nor texts with labels", "choices", column)
        else:
            texts = [self._value(row, each, "choices") for each in column]
        for text in texts:
            if not isinstance(text, str):
                raise self._error(f"the choice {text!r} is no text", "choices", column)
        if labels and len(labels) != len(texts):
            raise self._error(f"{len(texts)} texts, but {len(labels)} labels", "choices", column)
        return texts, [str(label) for label in labels]

    def _index(self, gold: Any, texts: list[str], labels: list[str]) -> int:
        """The index of the right choice, from whatever names it. Where it can be read in two ways it is refused."""
        # ARC's rows may be labelled 1 to 4, so a row's own labels come before what a number means elsewhere.
        if labels.count(str(gold)) == 1 and not isinstance(gold, bool):
            return labels.index(str(gold))
        if hasattr(gold, "__index__") and not isinstance(gold, bool) and not any(map(str.isdigit, labels)):
            return operator.index(gold)
        if not isinstance(gold, str):
            raise self._error(f"{gold!r} is no index, label or text of a choice", "gold", self._gold)
        readings = {i for i, text in enumerate(texts) if text == gold}
        if not labels and len(gold) == 1 and gold in LABELS[: len(texts)]:
            readings.add(LABELS.index(gold))
        if len(readings) != 1:
            names = f"; the labels are {', '.join(labels)}" if labels else ""
            problem = "could be any of several choices" if readings else "is no label, letter or text of a choice"
            raise self._error(f"{gold!r} {problem}{names}; pass a function, gold=lambda row: ...", "gold", self._gold)
        return readings.pop()

    def _value(self, row: Row, column: Column, part: str) -> Any:
        try:
            return column(row) if callable(column) else row[column]
        except Exception as error:
            if callable(column):
                raise self._error(f"the function fails: {type(error).__name__}: {error}", part, column) from error
            raise self._error(f"is not there; the row has {', '.join(map(str, row))}", part, column) from None

    def _error(self, problem: str, part: str = "", column: Any = None) -> SetupError:
        if not part:
            return SetupError(f"{self._where}: {problem}")
        place = f"{part} (column {column!r})" if not callable(column) else part
        return SetupError(f"{self._where}, {place}: {problem}")


def _parsed(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"{path}, line {number} is no JSON: {error}") from None
    if not isinstance(row, dict):
        raise DataError(f"{path}, line {number} holds a {type(row).__name__}, not an object")
    return row
