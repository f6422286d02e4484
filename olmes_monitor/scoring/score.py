"""Score a model on a suite: encode once, forward, gather, summarize."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from olmes_monitor.errors import SetupError
from olmes_monitor.measure.summary import summarize
from olmes_monitor.record.evaluation import Evaluation, Point
from olmes_monitor.scoring.encode import MAX_LENGTH, Bos, Encoded, EncodedTask, Encoder
from olmes_monitor.scoring.forward import (
    Forward,
    context_of,
    device_of,
    is_sharded,
    log_likelihoods,
    unwrap,
    vocabulary_of,
)
from olmes_monitor.scoring.parallel import Ranks, share
from olmes_monitor.scoring.plan import Batch, plan
from olmes_monitor.scoring.preserve import preserved
from olmes_monitor.scoring.table import describe_choices, fill_in, join
from olmes_monitor.suite import FORMULATIONS, Formulation, Suite, Task, load_suite

BATCH_TOKENS = 8192
"""Tokens of one forward call by default: large enough to fill a GPU, small beside a training batch."""

Progress = Callable[[int, int, str], None]
"""Called with the tokens forwarded so far, the tokens in all and the place (task and formulation)."""


@dataclass
class Job:
    """One task in one formulation, as this rank scores it."""

    task: Task
    formulation: Formulation
    encoded: EncodedTask
    own: np.ndarray
    """bool (requests + unconditional,): what this rank scores."""
    batches: list[Batch]
    forwards: int
    """Forward calls that every rank makes: the largest number of batches that any rank has."""

    @property
    def name(self) -> str:
        return f"{self.task.name} {self.formulation}"

    @property
    def requests(self) -> list[Encoded]:
        return [*self.encoded.requests, *self.encoded.unconditional]


class Scorer:
    """A suite made ready for one model: requests encoded, shared among the ranks and planned, once for all evaluations.

    Every rank of a distributed job constructs it and calls `evaluate` together. Raises SetupError where the model, the
    tokenizer and the suite do not fit together.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        suite: Suite | str = "monitor",
        *,
        bos: Bos = "auto",
        max_length: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
        formulations: tuple[Formulation, ...] = FORMULATIONS,
        context: Callable[[], AbstractContextManager] = nullcontext,
    ) -> None:
        """
        `max_length`: longest prompt in tokens; by default the model's declared context, at most 2048.
        `batch_tokens`: tokens of one forward call. `context`: makes the context a forward runs in (autocast).
        """
        if not isinstance(model, nn.Module):
            raise SetupError(f"model is a {type(model).__name__}, not a torch.nn.Module")
        if isinstance(batch_tokens, bool) or not isinstance(batch_tokens, int) or batch_tokens < 1:
            raise SetupError(f"batch_tokens takes a positive int, got {batch_tokens!r}")
        if not formulations or set(formulations) - set(FORMULATIONS):
            raise SetupError(f"formulations takes some of {FORMULATIONS}, got {formulations!r}")
        self.model = unwrap(model)
        self.suite = load_suite(suite) if isinstance(suite, str) else suite
        self.context = context
        self.forward = Forward(self.model)
        self.device = device_of(self.model)
        self.ranks = Ranks.current(self.device)
        self.sharded = self.ranks.size > 1 and is_sharded(self.model)
        self.max_length = min(max_length or context_of(self.model) or MAX_LENGTH, MAX_LENGTH)
        self.encoder = Encoder(tokenizer, bos, self.max_length)
        self.formulations = formulations
        self.ranks.same_everywhere(self.suite.fingerprint, "the suite's fingerprint")
        self.jobs = [
            self._job(task, formulation, batch_tokens)
            for task in self.suite.tasks.values()
            for formulation in formulations
        ]
        self._choices = {task.name: describe_choices(task) for task in self.suite.tasks.values()}
        self._check_ids()
        self.tokens = sum(batch.tokens for job in self.jobs for batch in job.batches)
        self.settings = {
            "path": "plain",
            "bos": self.encoder.bos_id,
            "max_length": self.max_length,
            "batch_tokens": batch_tokens,
            "tokenizer": type(tokenizer).__name__,
            "first_ids": self.jobs[0].encoded.requests[0].ids[:8].tolist(),
        }

    @property
    def requests(self) -> int:
        """Log-likelihoods that an evaluation asks for, over all ranks."""
        return sum(len(job.own) for job in self.jobs)

    def check(self) -> None:
        """One tiny forward pass; raises SetupError where the model does not map token ids to logits."""
        ids = torch.from_numpy(self._filler()).to(self.device)
        with preserved(self.model), self.context():
            self.forward.check(ids)

    def evaluate(self, point: Point, progress: Progress | None = None) -> Evaluation:
        """Score the whole suite as the model stands. A collective: all ranks call it and get the same result.

        Raises EvaluationError on all ranks, with the first cause, where any rank fails.
        """
        started = time.perf_counter()
        parts: list[np.ndarray] = []
        done, forwards = 0, 0
        with preserved(self.model), self.context():
            for job in self.jobs:
                values, error = self._run(job, progress, done)
                self.ranks.agree(error, job.name)
                parts.append(values)
                done += sum(batch.tokens for batch in job.batches)
                forwards += job.forwards if self.sharded else len(job.batches)
            own = np.concatenate([job.own for job in self.jobs])
            values = self.ranks.gather(np.concatenate(parts), own)
            cost = {
                "seconds": time.perf_counter() - started,
                "requests": self.requests,
                "tokens": self.ranks.sum(self.tokens),
                "forwards": self.ranks.sum(forwards),
                "ranks": self.ranks.size,
            }
        scores = self._table(values)
        tasks, metrics, problems = summarize(scores, {t.name: t.normalization for t in self.suite.tasks.values()})
        for job in self.jobs:
            counts = {key: getattr(job.encoded, key) for key in ("spanning", "shots_dropped", "cut")}
            tasks.setdefault(job.task.name, {})[f"encoding_{job.formulation}"] = counts
        return Evaluation(
            point=point,
            suite=self.suite.name,
            fingerprint=self.suite.fingerprint,
            scores=scores,
            metrics=metrics,
            tasks=tasks,
            problems=problems,
            cost=cost,
            versions=versions(),
            settings={**self.settings, "dtype": str(next(self.model.parameters(), torch.empty(0)).dtype)},
        )

    def _job(self, task: Task, formulation: Formulation, batch_tokens: int) -> Job:
        encoded = self.encoder.encode_task(task, formulation)
        requests = [*encoded.requests, *encoded.unconditional]
        question = np.repeat(np.arange(len(task.questions)), [len(question.choices) for question in task.questions])
        question = np.concatenate([question, question]) if encoded.unconditional else question
        costs = np.bincount(question, weights=[len(request.ids) for request in requests])
        mine = np.zeros(len(task.questions), dtype=bool)
        mine[share(costs.tolist(), self.ranks.size)[self.ranks.rank]] = True
        own = mine[question]
        chosen = np.flatnonzero(own)
        batches = plan([requests[i] for i in chosen], batch_tokens, self.max_length)
        return Job(task, formulation, encoded, own, batches, self.ranks.max(len(batches)))

    def _run(self, job: Job, progress: Progress | None, done: int) -> tuple[np.ndarray, Exception | None]:
        """This rank's log-likelihoods of a job: float64 (requests,), zero where they are another rank's.
        `done`: tokens forwarded by the jobs before.

        An error is returned, not raised: the other ranks must hear of it. Through a sharded model a rank that fails, or
        has less work, sends filler rows instead, since the others wait for its part of each forward. (A failure deep inside
        a sharded forward leaves the ranks out of step all the same; the process group's timeout ends that.)
        """
        results: list[torch.Tensor] = []
        error: Exception | None = None
        for call in range(job.forwards if self.sharded else len(job.batches)):
            batch = job.batches[call] if error is None and call < len(job.batches) else None
            if batch is not None:
                try:
                    results.append(log_likelihoods(self.forward, batch, self.device))
                    done += batch.tokens
                except Exception as failure:
                    error = failure
            if self.sharded and (batch is None or error is not None):
                error = self._send_filler(error)
            if progress is not None:
                progress(done, self.tokens, job.name)
        values = np.zeros(len(job.own))
        if error is None and results:
            try:
                found = torch.cat(results).cpu().numpy().astype(np.float64)
            except Exception as failure:  # an asynchronous device error shows at the first synchronization
                return values, failure
            target_request = np.concatenate([batch.request for batch in job.batches])
            chosen = np.flatnonzero(job.own)
            values[chosen] = np.bincount(target_request, weights=found, minlength=len(chosen))
        return values, error

    def _send_filler(self, error: Exception | None) -> Exception | None:
        """A forward call whose result nobody needs. Returns the first error: the one before, or its own."""
        try:
            self.forward(torch.from_numpy(self._filler()).to(self.device))
        except Exception as failure:
            return error or failure
        return error

    def _filler(self) -> np.ndarray:
        """int64 (1, 4): ids any vocabulary has, for calls whose results nobody needs."""
        return np.zeros((1, min(4, self.max_length)), dtype=np.int64)

    def _check_ids(self) -> None:
        size = vocabulary_of(self.model)
        largest = max(int(request.ids.max()) for job in self.jobs for request in job.requests)
        if size is not None and largest >= size:
            raise SetupError(
                f"the tokenizer gives token id {largest}, but the model's embedding has {size} rows: this is not the "
                "tokenizer the model is trained with; pass the right one as tokenizer=..."
            )

    def _table(self, values: np.ndarray) -> pa.Table:
        """The gathered log-likelihoods (float64, job after job) as one table with a row per choice."""
        return join(fill_in(self._choices[name], columns, tokens) for name, columns, tokens in self._columns(values))

    def _columns(self, values: np.ndarray) -> Iterator[tuple[str, dict[str, np.ndarray], np.ndarray | None]]:
        """Per task: its name, its log-likelihoods by column (those asked for) and its cf token counts."""
        position = 0
        columns: dict[str, np.ndarray] = {}
        tokens = None
        for i, job in enumerate(self.jobs):
            count = len(job.encoded.requests)
            columns[job.formulation] = values[position : position + count]
            if job.encoded.unconditional:
                columns["unconditional"] = values[position + count : position + 2 * count]
            if job.formulation == "cf":
                tokens = np.array([len(request.ids) - request.start for request in job.encoded.requests])
            position += len(job.own)
            if i + 1 == len(self.jobs) or self.jobs[i + 1].task is not job.task:
                yield job.task.name, columns, tokens
                columns, tokens = {}, None


def score(
    model: nn.Module,
    tokenizer: Any,
    suite: Suite | str = "monitor",
    *,
    point: Point | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Evaluation:
    """Score a model on a suite, once. `settings` are those of Scorer. The model and the tokenizer stay as they are.

    >>> evaluation = score(model, tokenizer, "quick")
    >>> evaluation.metrics["olmes/cf/arc_easy"]

    Raises SetupError where they do not fit together, EvaluationError where the evaluation fails.
    """
    scorer = Scorer(model, tokenizer, suite, **settings)
    return scorer.evaluate(point or Point(tokens=0, time=time.time()), progress)


def versions() -> dict[str, str]:
    """Versions of the packages a number may depend on."""
    found = {}
    for name in ("olmes_monitor", "torch", "transformers", "lightning", "tokenizers", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
