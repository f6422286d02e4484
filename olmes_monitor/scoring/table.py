"""The choice-level table of an evaluation (columns: record.evaluation.SCORES_COLUMNS)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa

from olmes_monitor.suite import Task

LOG_LIKELIHOODS = ("cf", "mcf", "unconditional")


def describe_choices(task: Task) -> pa.Table:
    """What is known of a task's choices before any model is asked: every column but the log-likelihoods and tokens."""
    sizes = [len(question.choices) for question in task.questions]
    subjects = np.repeat([question.subject for question in task.questions], sizes)
    ids = np.repeat([question.id for question in task.questions], sizes)
    choice = np.concatenate([np.arange(size) for size in sizes])
    continuations = [
        request.continuation
        for question in task.questions
        for request in task.requests(question, "cf", 0)[: len(question.choices)]
    ]
    return pa.table(
        {
            "task": pa.array([task.name] * len(ids)).dictionary_encode(),
            "subject": pa.array(subjects.tolist(), pa.string()).dictionary_encode(),
            "question": pa.array(ids.tolist(), pa.string()),
            "index": pa.array(np.repeat(np.arange(len(sizes)), sizes), pa.int32()),
            "choice": pa.array(choice, pa.int8()),
            "gold": pa.array(choice == np.repeat([question.gold for question in task.questions], sizes)),
            "chars": pa.array([len(text) for text in continuations], pa.int32()),
            "bytes": pa.array([len(text.encode()) for text in continuations], pa.int32()),
        }
    )


def fill_in(choices: pa.Table, values: Mapping[str, np.ndarray], tokens: np.ndarray | None) -> pa.Table:
    """Add the log-likelihoods (float64 (choices,) by name) and the cf token counts.

    Those of LOG_LIKELIHOODS that are absent become null, and so does what is masked in an array.
    """
    for name in LOG_LIKELIHOODS:
        column = pa.array(values[name], pa.float64()) if name in values else pa.nulls(len(choices), pa.float64())
        choices = choices.append_column(name, column)
    counts = pa.nulls(len(choices), pa.int32()) if tokens is None else pa.array(tokens, pa.int32())
    choices = choices.append_column("tokens", counts)
    for name in [name for name in values if name not in LOG_LIKELIHOODS]:
        choices = choices.append_column(name, pa.array(values[name], pa.float64()))
    return choices


def join(tables: Iterable[pa.Table]) -> pa.Table:
    """One table of the tasks' tables; the columns of orders that a task does not have are null there."""
    return pa.concat_tables(tables, promote_options="default").unify_dictionaries()
