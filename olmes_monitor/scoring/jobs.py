"""A suite as work: requests encoded, shared among the ranks, planned as forward calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from olmes_monitor.scoring.cache import cached_rows
from olmes_monitor.scoring.cyclic import Order, Permutations, make_orders
from olmes_monitor.scoring.encode import Encoded, EncodedTask, Encoder
from olmes_monitor.scoring.pack import PackedRow, pack
from olmes_monitor.scoring.parallel import share
from olmes_monitor.scoring.plan import Batch, plan, shared_with_previous
from olmes_monitor.suite import Formulation, Suite, Task


@dataclass
class Job:
    """One task in one formulation."""

    task: Task
    formulation: Formulation
    encoded: EncodedTask
    orders: list[Order] = field(default_factory=list)
    """The further orders of the choices. In this job and not jobs of their own: they share the shots and each stem."""
    own: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    """bool (requests,): what this rank scores."""
    calls: list[Batch] | list[PackedRow] = field(default_factory=list)
    """This rank's forward calls. Their `request` counts the requests in `asked` only."""
    asked: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    """bool (requests,): what `calls` score: `own`, or what was left of it when an evaluation ran out of memory."""

    @property
    def name(self) -> str:
        return f"{self.task.name} {self.formulation}"

    @property
    def requests(self) -> list[Encoded]:
        """Those of the official order, the unconditional ones, then order after order."""
        shifted = [request for order in self.orders for request in order.encoded.requests]
        return [*self.encoded.requests, *self.encoded.unconditional, *shifted]

    @property
    def question(self) -> np.ndarray:
        """int64 (requests,): the question each request belongs to."""
        sizes = [len(question.choices) for question in self.task.questions]
        question = np.repeat(np.arange(len(sizes)), sizes)
        unconditional = [question] if self.encoded.unconditional else []
        return np.concatenate([question, *unconditional, *(question[order.choice] for order in self.orders)])

    def columns(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """From this job's log-likelihoods, float64 (requests,), to columns of the table, float64 (choices,) each.

        Masked where the column's order does not exist.
        """
        choices = len(self.encoded.requests)
        columns: dict[str, np.ndarray] = {self.formulation: values[:choices]}
        if self.encoded.unconditional:
            columns["unconditional"] = values[choices : 2 * choices]
        end = choices + len(self.encoded.unconditional)
        for order in self.orders:
            start, end = end, end + len(order.choice)
            columns[order.column] = np.ma.masked_all(choices, dtype=np.float64)
            columns[order.column][order.choice] = values[start:end]
        return columns

    def plan(
        self,
        packed: bool,
        batch_tokens: int,
        max_length: int,
        max_reads: int | None = None,
        pending: np.ndarray | None = None,
    ) -> None:
        """Plan this rank's forward calls. `pending`: bool (requests,), of its own requests those still to score."""
        self.asked = self.own if pending is None else pending

        def chosen() -> list[Encoded]:
            requests = self.requests
            return [requests[i] for i in np.flatnonzero(self.asked)]

        if packed:
            # The key is that of the official order's ids alone. What is left of an evaluation is never asked again.
            key = None if self.orders or pending is not None else self.encoded.key
            if key is not None and max_reads is not None:
                key = f"{key} {max_reads}"
            self.calls = cached_rows(key, self.asked, batch_tokens, lambda: pack(chosen(), batch_tokens, max_reads))
        else:
            self.calls = plan(chosen(), batch_tokens, max_length, max_reads)

    def place(self, call: Batch | PackedRow) -> str:
        """Where a failure in a call happened: the job and the first questions that the call reads."""
        question = self.question[np.flatnonzero(self.asked)[call.reads.request]]
        ids = [self.task.questions[i].id for i in dict.fromkeys(question.tolist())]
        if not ids:
            return f"{self.name} (the shots)"
        more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
        return f"{self.name} (question{'s' * (len(ids) > 1)} {', '.join(map(str, ids[:3]))}{more})"


def make_jobs(
    suite: Suite, formulations: Sequence[Formulation], encoder: Encoder, permutations: Permutations = "none"
) -> list[Job]:
    """All tasks in all formulations, encoded; with "cyclic" MCF in all cyclic orders of the choices."""

    def orders(task: Task, formulation: Formulation) -> list[Order]:
        return make_orders(task, encoder) if (formulation, permutations) == ("mcf", "cyclic") else []

    return [
        Job(task, formulation, encoder.encode_task(task, formulation), orders(task, formulation))
        for task in suite.tasks.values()
        for formulation in formulations
    ]


def assign(jobs: Sequence[Job], rank: int, size: int) -> None:
    """Give this rank its questions: a run of them, in the suite's order, that costs what the other ranks' runs cost.

    Runs, because questions that stand together share their shots: a rank forwards few trunks. A question's requests stay
    on one rank. The same on every rank.
    """
    # A rank alone has nothing to share: what each question costs need not be found out.
    costs = [question_costs(job) if size > 1 else np.zeros(len(job.task.questions)) for job in jobs]
    owners = share(np.concatenate(costs), size)
    first = 0
    for job in jobs:
        count = len(job.task.questions)
        job.own = (owners[first : first + count] == rank)[job.question]
        first += count


def question_costs(job: Job) -> np.ndarray:
    """float64 (questions,): about the tokens each question adds to what was forwarded for the one before it."""
    question, requests = job.question, job.requests
    # Unconditional requests share nothing with the others, only with each other.
    apart = np.zeros(len(requests), dtype=bool)
    apart[len(job.encoded.requests) :][: len(job.encoded.unconditional)] = True
    order = np.lexsort([question, apart])
    ids = [requests[i].ids for i in order]
    added = np.array([len(each) for each in ids]) - shared_with_previous(ids)
    return np.bincount(question[order], weights=added, minlength=len(job.task.questions))
