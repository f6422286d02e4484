"""The forward calls of one evaluation: made in step with the other ranks, gone on with in smaller ones where memory ran out.

Results are kept call by call. At a few agreements the ranks tell each other whether all is well; a failure on one of them
ends the evaluation on all there. Where it was memory, every rank keeps the requests that its finished calls have answered
in full, plans the others anew for half the tokens, and goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from olmes_monitor.errors import EvaluationError
from olmes_monitor.scoring.jobs import Job
from olmes_monitor.scoring.pack import PackedRow
from olmes_monitor.scoring.parallel import Failure, Ranks
from olmes_monitor.scoring.path import Path
from olmes_monitor.scoring.plan import Batch, Reads

logger = logging.getLogger("olmes_monitor")

AGREEMENTS = 8
"""How often in an evaluation the ranks tell each other whether all is well."""
SMALLEST_BUDGET = 64
"""Tokens of a forward call below which an evaluation that runs out of memory is given up."""

Progress = Callable[[int, int, str], None]
"""Called with the tokens forwarded so far, the tokens in all and the place (task and formulation)."""


@dataclass
class Work:
    """What the ranks do together: the jobs' calls through one path, planned for a number of tokens in a call."""

    jobs: list[Job]
    path: Path
    ranks: Ranks
    sharded: bool
    """Whether a forward is a collective, so that every rank must make the same number of them."""
    device: torch.device
    max_length: int
    batch_tokens: int = 0
    """Tokens of one forward call."""
    calls: list[tuple[int, int]] = field(default_factory=list)
    """This rank's: (job, call of the job)."""
    most_calls: int = 0
    """Those of the rank that has the most."""
    tokens: int = 0
    """Forwarded in one evaluation, over all ranks."""
    forwards: int = 0

    def plan(self, batch_tokens: int, pending: list[np.ndarray] | None = None) -> None:
        """Plan every job for a budget, and count what the plan costs over all ranks. A collective.

        pending: per job bool (requests,), those still to score; by default all.
        """
        self.batch_tokens = batch_tokens
        for j, job in enumerate(self.jobs):
            left = None if pending is None else pending[j]
            packed = self.path.name == "packed"
            job.plan(packed, batch_tokens, self.max_length, self.path.forward.max_reads, left)
        self.calls = [(j, i) for j, job in enumerate(self.jobs) for i in range(len(job.calls))]
        self.most_calls = self.ranks.max(len(self.calls))
        fillers = (self.most_calls - len(self.calls)) if self.sharded else 0
        own = sum(call.tokens for job in self.jobs for call in job.calls)
        self.tokens = self.ranks.total(own + fillers * filler(self.max_length).tokens)
        self.forwards = self.ranks.total(len(self.calls) + fillers)


@dataclass
class Spent:
    """What an evaluation cost."""

    tokens: int = 0
    """Forwarded over all ranks, those of calls that failed for want of memory included."""
    forwards: int = 0
    retries: int = 0
    """How often memory ran out."""


class Rounds:
    """One evaluation's calls, within the state that forwards are made in."""

    def __init__(self, work: Work, progress: Progress | None) -> None:
        self.work, self.progress = work, progress
        self.spent = Spent()
        self._values = [np.zeros(len(job.own)) for job in work.jobs]
        self._pending = [job.own.copy() for job in work.jobs]
        self._tokens = self._forwards = 0

    def run(self) -> tuple[np.ndarray, Spent]:
        """(float64 (requests of all jobs,), the same on every rank; what it cost). A collective.

        Raises EvaluationError on all ranks, with the first cause, where any rank fails for another reason than memory, or
        runs out of memory in the smallest calls.
        """
        work = self.work
        while True:
            results: list[torch.Tensor] = []
            try:
                self._round(results)
                break
            except EvaluationError as error:
                if work.path.forward.gathers.modules and not work.ranks.lost:
                    # A forward that broke half way leaves FSDP's bookkeeping in the middle; a whole one puts it in order.
                    self._fill(filler(work.max_length), None)
                if not error.out_of_memory or work.batch_tokens < 2 * SMALLEST_BUDGET:
                    raise
                logger.warning("%s; going on with batch_tokens=%d", error, work.batch_tokens // 2)
            self._go_on(results)
        values = work.ranks.gather(np.concatenate(self._values), np.concatenate([job.own for job in work.jobs]))
        if self.spent.retries:
            self.spent.tokens, self.spent.forwards = work.ranks.total(self._tokens), work.ranks.total(self._forwards)
            work.plan(work.batch_tokens)
        else:
            self.spent.tokens, self.spent.forwards = work.tokens, work.forwards
        return values, self.spent

    def _round(self, results: list[torch.Tensor]) -> None:
        """Make all planned calls; `results` gets one tensor for each that did not fail."""
        work = self.work
        failure: Failure | None = None
        # All ranks go through the same numbers, so that they meet at the agreements.
        stops = set(np.linspace(0, work.most_calls, AGREEMENTS + 1).astype(int)[1:].tolist())
        for number in range(work.most_calls):
            has_call = number < len(work.calls)
            if has_call and failure is None:
                failure = self._call(number, results)
            elif work.sharded:
                # The other ranks of a sharded model wait for this rank's part of their forwards.
                shape = self._planned(number) if has_call else filler(work.max_length)
                failure = self._fill(shape, failure)
                self._count(shape)
            if number + 1 in stops or (failure is not None and failure.lost):
                work.ranks.agree(failure)
        work.ranks.agree(self._keep(results))

    def _call(self, number: int, results: list[torch.Tensor]) -> Failure | None:
        work = self.work
        j, i = work.calls[number]
        job = work.jobs[j]
        self._count(job.calls[i])
        failure = self._try(job.place(job.calls[i]), lambda: results.append(work.path.run(job.calls, i, work.device)))
        if failure is not None:
            if work.sharded and not work.path.forward.gathers.completes and not failure.lost:
                # What FSDP2 gathers was made up for; elsewhere a filler stands for the whole call.
                failure = self._fill(job.calls[i], failure)
        elif self.progress is not None:
            done = min(self._tokens * work.ranks.parts, work.tokens)
            failure = self._try("showing progress", lambda: self.progress(done, work.tokens, job.name))  # type: ignore[misc]
        return failure

    def _go_on(self, results: list[torch.Tensor]) -> None:
        """Keep what finished calls have answered in full and plan the rest for half the tokens. A collective."""
        work = self.work
        work.ranks.agree(self._keep(results))
        work.path.clear()
        results.clear()
        if work.device.type != "cpu":
            torch.get_device_module(work.device).empty_cache()
        self.spent.retries += 1
        work.plan(work.batch_tokens // 2, self._pending)

    def _keep(self, results: list[torch.Tensor]) -> Failure | None:
        """Take the log-likelihoods over to the host, those of requests that no call is left to make for."""
        if not results:
            return None
        try:
            found = torch.cat(results).cpu().numpy().astype(np.float64)
        except Exception as error:  # a device's errors show at the first synchronization
            return Failure("the last forward calls", error)
        first = 0
        for j, job in enumerate(self.work.jobs):
            reads = [job.calls[i].reads.request for k, i in self.work.calls[: len(results)] if k == j]
            left = [job.calls[i].reads.request for k, i in self.work.calls[len(results) :] if k == j]
            none = [np.zeros(0, dtype=np.int64)]
            request, left_over = np.concatenate(none + reads), np.concatenate(none + left)
            asked = np.flatnonzero(job.asked)
            sums = np.bincount(request, weights=found[first : first + len(request)], minlength=len(asked))
            first += len(request)
            # A request may be read in several calls (its continuation begins in the trunk): it is answered after the last.
            answered = np.isin(np.arange(len(asked)), request) & ~np.isin(np.arange(len(asked)), left_over)
            self._values[j][asked[answered]] = sums[answered]
            self._pending[j][asked[answered]] = False
        return None

    def _try(self, where: str, action: Callable[[], None]) -> Failure | None:
        try:
            action()
        except Exception as error:
            failure = Failure(where, error)
            if failure.out_of_memory:
                # Its frames hold the tensors of the broken forward.
                error.with_traceback(None)
                error.__context__ = error.__cause__ = None
            return failure
        return None

    def _fill(self, call: Batch | PackedRow, failure: Failure | None) -> Failure | None:
        """A call whose result nobody needs. Returns the first failure: the one before, or its own."""
        filled = self._try("a filler row", lambda: self.work.path.fill(call, self.work.device))
        if failure is not None and filled is not None and filled.lost:
            return replace(failure, alone=True)
        return failure or filled

    def _planned(self, number: int) -> Batch | PackedRow:
        j, i = self.work.calls[number]
        return self.work.jobs[j].calls[i]

    def _count(self, call: Batch | PackedRow) -> None:
        self._tokens += call.tokens
        self._forwards += 1


def filler(max_length: int) -> Batch:
    """A row of ids that any vocabulary has, for a forward whose result nobody needs."""
    none = np.zeros(0, dtype=np.int64)
    return Batch(np.zeros((1, min(4, max_length)), dtype=np.int64), Reads(none, none, none, none, none))
