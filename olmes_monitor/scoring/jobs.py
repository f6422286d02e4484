"""A suite as work: requests encoded, shared among the ranks, planned as forward calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from olmes_monitor.scoring.encode import Encoded, EncodedTask, Encoder
from olmes_monitor.scoring.pack import PackedRow, pack
from olmes_monitor.scoring.parallel import share
from olmes_monitor.scoring.plan import Batch, plan
from olmes_monitor.suite import Formulation, Suite, Task


@dataclass
class Job:
    """One task in one formulation."""

    task: Task
    formulation: Formulation
    encoded: EncodedTask
    own: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    """bool (requests + unconditional,): what this rank scores."""
    calls: list[Batch] | list[PackedRow] = field(default_factory=list)
    """This rank's forward calls. Their `request` counts the requests in `own` only."""

    @property
    def name(self) -> str:
        return f"{self.task.name} {self.formulation}"

    @property
    def requests(self) -> list[Encoded]:
        return [*self.encoded.requests, *self.encoded.unconditional]

    @property
    def question(self) -> np.ndarray:
        """int64 (requests + unconditional,): the question each request belongs to."""
        sizes = [len(question.choices) for question in self.task.questions]
        question = np.repeat(np.arange(len(sizes)), sizes)
        return np.concatenate([question, question]) if self.encoded.unconditional else question

    def plan(self, packed: bool, batch_tokens: int, max_length: int) -> None:
        """Plan this rank's forward calls."""
        requests = self.requests
        chosen = [requests[i] for i in np.flatnonzero(self.own)]
        self.calls = pack(chosen, batch_tokens) if packed else plan(chosen, batch_tokens, max_length)


def make_jobs(suite: Suite, formulations: Sequence[Formulation], encoder: Encoder) -> list[Job]:
    """All tasks in all formulations, encoded."""
    return [
        Job(task, formulation, encoder.encode_task(task, formulation))
        for task in suite.tasks.values()
        for formulation in formulations
    ]


def assign(jobs: Sequence[Job], rank: int, size: int) -> None:
    """Give this rank its questions: a run of them, in the suite's order, that costs what the other ranks' runs cost.

    Runs, because questions that stand together share their shots: a rank forwards few trunks. A question's requests stay
    on one rank. The same on every rank.
    """
    owners = share(np.concatenate([question_costs(job) for job in jobs]), size)
    first = 0
    for job in jobs:
        count = len(job.task.questions)
        job.own = (owners[first : first + count] == rank)[job.question]
        first += count


def question_costs(job: Job) -> np.ndarray:
    """float64 (questions,): about the tokens each question adds to what was forwarded for the one before it."""
    question, requests = job.question, job.requests
    costs = np.zeros(len(job.task.questions))
    previous = np.zeros(0, dtype=np.int32)
    for i in np.argsort(question, kind="stable"):
        ids = requests[i].ids
        n = min(len(ids), len(previous))
        differs = np.flatnonzero(ids[:n] != previous[:n])
        costs[question[i]] += len(ids) - (int(differs[0]) if len(differs) else n)
        previous = ids
    return costs
