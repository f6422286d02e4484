"""Score a model on a suite: encode once, forward, gather, summarize."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from olmes_monitor.errors import EvaluationError, SetupError
from olmes_monitor.measure.summary import summarize
from olmes_monitor.record.evaluation import Evaluation, Point
from olmes_monitor.scoring.budget import auto_batch_tokens
from olmes_monitor.scoring.cache import CachedEncoder
from olmes_monitor.scoring.cyclic import PERMUTATIONS, Permutations
from olmes_monitor.scoring.encode import MAX_LENGTH, Bos, EncodedTask, shape_of
from olmes_monitor.scoring.forward import (
    Forward,
    context_of,
    device_of,
    is_sharded,
    unwrap,
    vocabulary_of,
    why_not_spread,
)
from olmes_monitor.scoring.jobs import Job, assign, make_jobs
from olmes_monitor.scoring.parallel import Failure, Ranks
from olmes_monitor.scoring.path import Choice, choose_path
from olmes_monitor.scoring.preserve import preserved
from olmes_monitor.scoring.table import describe_choices, fill_in, join
from olmes_monitor.suite import FORMULATIONS, Formulation, Suite, load_suite

logger = logging.getLogger("olmes_monitor")

AGREEMENTS = 8
"""How often in an evaluation the ranks tell each other whether all is well."""
SMALLEST_BUDGET = 64
"""Tokens of a forward call below which an evaluation that runs out of memory is given up."""

Progress = Callable[[int, int, str], None]
"""Called with the tokens forwarded so far, the tokens in all and the place (task and formulation)."""


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
        batch_tokens: int | Literal["auto"] = "auto",
        path: Choice = "auto",
        formulations: tuple[Formulation, ...] = FORMULATIONS,
        permutations: Permutations = "none",
        context: Callable[[], AbstractContextManager] = nullcontext,
    ) -> None:
        """
        `max_length`: longest prompt in tokens; by default the model's declared context, at most 2048.
        `batch_tokens`: tokens of one forward call; by default chosen from the model's size and the device's free memory.
        `path`: "packed" (each distinct token forwarded once), "plain" (each distinct prompt), or "auto": packed where a
        sample of questions gives the same numbers both ways. `permutations`: "cyclic" asks MCF in every cyclic order of
        the choices too, for the debiased accuracy and its spread. `context`: makes the context a forward runs in
        (autocast).
        """
        if not isinstance(model, nn.Module):
            raise SetupError(f"model is a {type(model).__name__}, not a torch.nn.Module")
        if batch_tokens != "auto" and (type(batch_tokens) is not int or batch_tokens < 1):
            raise SetupError(f'batch_tokens takes a positive int or "auto", got {batch_tokens!r}')
        if path not in ("auto", "packed", "plain"):
            raise SetupError(f'path takes "auto", "packed" or "plain", got {path!r}')
        if not formulations or set(formulations) - set(FORMULATIONS):
            raise SetupError(f"formulations takes some of {FORMULATIONS}, got {formulations!r}")
        if permutations not in PERMUTATIONS:
            raise SetupError(f'permutations takes "none" or "cyclic", got {permutations!r}')
        if permutations == "cyclic" and "mcf" not in formulations:
            raise SetupError('permutations="cyclic" asks MCF in more orders, but formulations leaves "mcf" out')
        self.model, self.context = unwrap(model), context
        self.suite = load_suite(suite) if isinstance(suite, str) else suite
        self.device = device_of(self.model)
        self.ranks = Ranks.current(self.device)
        self.sharded = self.ranks.size > 1 and is_sharded(self.model)
        if self.ranks.size > 1 and (reason := why_not_spread(self.model)):
            raise SetupError(
                f"{type(self.model).__name__} cannot be evaluated in this job: {reason}, and only data-parallel ranks "
                "(DDP, FSDP) are supported so far. Train without the monitor and score the saved checkpoints"
            )
        self.max_length = min(max_length or context_of(self.model) or MAX_LENGTH, MAX_LENGTH)
        encoder = CachedEncoder(tokenizer, bos, self.max_length)
        self.ranks.same_everywhere(self.suite.fingerprint, "the suite's fingerprint")
        self.jobs = make_jobs(self.suite, formulations, encoder, permutations)
        self._check_ids()
        assign(self.jobs, self.ranks.rank, self.ranks.size)
        self._first = np.concatenate([[0], np.cumsum([len(job.own) for job in self.jobs])])
        self._choices = {task.name: describe_choices(task) for task in self.suite.tasks.values()}
        with preserved(self.model), self.context():
            Forward(self.model).check(torch.from_numpy(self._filler()).to(self.device))
            self.path = choose_path(path, self.model, self.jobs, self.ranks, self.device, self.max_length)
        self.settings = {
            "path": self.path.name,
            "path_reason": self.path.reason,
            "permutations": permutations,
            "bos": encoder.bos_id,
            "max_length": self.max_length,
            "tokenizer": type(tokenizer).__name__,
            "first_ids": self.jobs[0].encoded.requests[0].ids[:8].tolist(),
            "dtype": str(next(self.model.parameters(), torch.empty(0)).dtype),
        }
        if batch_tokens == "auto":
            # The smallest of the ranks' choices, for all.
            batch_tokens = -self.ranks.max(-auto_batch_tokens(self.model, self.device, self.path.name))
        self._plan(batch_tokens)

    @property
    def requests(self) -> int:
        """Log-likelihoods that an evaluation asks for, over all ranks."""
        return int(self._first[-1])

    def evaluate(self, point: Point, progress: Progress | None = None) -> Evaluation:
        """Score the whole suite as the model stands. A collective: all ranks call it and get the same result.

        Raises EvaluationError on all ranks, with the first cause, where any rank fails. Where one runs out of device
        memory, all try again with half the tokens in a forward call, and remember.
        """
        started = time.perf_counter()
        while True:
            try:
                values = self._log_likelihoods(progress)
                break
            except EvaluationError as error:
                if not error.out_of_memory or self.batch_tokens < 2 * SMALLEST_BUDGET:
                    raise
                logger.warning("%s; trying again with batch_tokens=%d", error, self.batch_tokens // 2)
            self._plan(self.batch_tokens // 2)
        scores = join(fill_in(self._choices[name], columns, tokens) for name, columns, tokens in self._columns(values))
        tasks, metrics, problems = summarize(scores, {t.name: t.normalization for t in self.suite.tasks.values()})
        for job in self.jobs:
            facts = tasks.setdefault(job.task.name, {})
            facts[f"encoding_{job.formulation}"] = _counts([job.encoded])
            facts.setdefault("warnings", []).extend(self._shortened(job))
            if job.orders:
                facts["encoding_cyclic"] = _counts([order.encoded for order in job.orders])
        cost = {
            "seconds": time.perf_counter() - started,
            "requests": self.requests,
            "tokens": self.tokens,
            "forwards": self.forwards,
            "ranks": self.ranks.size,
        }
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
            settings=dict(self.settings),
        )

    def _shortened(self, job: Job) -> list[str]:
        """In words, how many prompts of a job were too long for the model."""
        asked, limit = len(job.task.questions), f"prompts are longer than the {self.max_length} tokens the model takes"
        dropped = f"{job.encoded.shots_dropped} of {asked} {job.formulation} questions with fewer shots: {limit}"
        cut = f"{job.encoded.cut} of {asked} {job.formulation} questions cut on the left: even without shots {limit}"
        return [dropped] * bool(job.encoded.shots_dropped) + [cut] * bool(job.encoded.cut)

    def _plan(self, batch_tokens: int) -> None:
        """Plan every job for a budget, and count what the plan costs over all ranks."""
        self.batch_tokens = self.settings["batch_tokens"] = batch_tokens
        for job in self.jobs:
            job.plan(self.path.name == "packed", batch_tokens, self.max_length)
        self._calls = [(j, i) for j, job in enumerate(self.jobs) for i in range(len(job.calls))]
        self._most_calls = self.ranks.max(len(self._calls))
        fillers = (self._most_calls - len(self._calls)) if self.sharded else 0
        own = sum(call.tokens for job in self.jobs for call in job.calls)
        self.tokens = self.ranks.sum(own + fillers * self._filler().size)
        self.forwards = self.ranks.sum(len(self._calls) + fillers)

    def _log_likelihoods(self, progress: Progress | None) -> np.ndarray:
        """float64 (requests of all jobs,), the same on every rank."""
        results: list[torch.Tensor] = []
        failure: Failure | None = None
        done = 0
        with self._ready():
            # All ranks go through the same numbers, so that they meet at the agreements.
            stops = set(np.linspace(0, self._most_calls, AGREEMENTS + 1).astype(int)[1:].tolist())
            for number in range(self._most_calls):
                if failure is None and number < len(self._calls):
                    j, i = self._calls[number]
                    try:
                        results.append(self.path.run(self.jobs[j].calls, i, self.device))
                    except Exception as error:
                        failure = Failure(self.jobs[j].name, error)
                    done += self.jobs[j].calls[i].tokens
                    if progress is not None:
                        progress(done * self.ranks.size, self.tokens, self.jobs[j].name)
                if self.sharded and (failure is not None or number >= len(self._calls)):
                    failure = self._send_filler(failure)
                if number + 1 in stops:
                    self.ranks.agree(failure)
            values, failure = self._collect(results)
            self.ranks.agree(failure)
        return self.ranks.gather(values, np.concatenate([job.own for job in self.jobs]))

    @contextmanager
    def _ready(self) -> Iterator[None]:
        """The state of model and process in which forwards are made; afterwards all is as before, and nothing is held."""
        with ExitStack() as stack:
            stack.enter_context(preserved(self.model))
            stack.enter_context(self.context())
            stack.enter_context(self.path.attention())
            stack.callback(self.path.clear)
            yield

    def _collect(self, results: list[torch.Tensor]) -> tuple[np.ndarray, Failure | None]:
        """This rank's log-likelihoods: float64 (requests of all jobs,), zero where they are another rank's."""
        values = np.zeros(self.requests)
        if not results:
            return values, None
        try:
            found = torch.cat(results).cpu().numpy().astype(np.float64)
        except Exception as error:  # a device's errors show at the first synchronization
            return values, Failure("the last forward calls", error)
        own = [self._first[j] + np.flatnonzero(job.own) for j, job in enumerate(self.jobs)]
        request = np.concatenate([own[j][self.jobs[j].calls[i].reads.request] for j, i in self._calls])
        return np.bincount(request, weights=found, minlength=self.requests), None

    def _send_filler(self, failure: Failure | None) -> Failure | None:
        """A forward call whose result nobody needs, but the other ranks of a sharded model wait for this rank's part of.

        Returns the first failure: the one before, or its own. (A failure deep inside a sharded forward leaves the ranks
        out of step all the same; the process group's timeout ends that.)
        """
        try:
            self.path.forward(torch.from_numpy(self._filler()).to(self.device))
        except Exception as error:
            return failure or Failure("a filler row", error)
        return failure

    def _filler(self) -> np.ndarray:
        """int64 (1, 4): ids any vocabulary has."""
        return np.zeros((1, min(4, self.max_length)), dtype=np.int64)

    def _check_ids(self) -> None:
        size = vocabulary_of(self.model)
        asked = [tasks for job in self.jobs for tasks in (job.encoded, *(order.encoded for order in job.orders))]
        largest = max(shape_of(some).largest for task in asked for some in (task.requests, task.unconditional) if some)
        if size is not None and largest >= size:
            raise SetupError(
                f"the tokenizer gives token id {largest}, but the model's embedding has {size} rows: this is not the "
                "tokenizer the model is trained with; pass the right one as tokenizer=..."
            )

    def _columns(self, values: np.ndarray) -> Iterator[tuple[str, dict[str, np.ndarray], np.ndarray | None]]:
        """Per task: its name, its log-likelihoods by column (those asked for) and its cf token counts."""
        columns: dict[str, np.ndarray] = {}
        tokens = None
        for j, job in enumerate(self.jobs):
            columns |= job.columns(values[self._first[j] : self._first[j + 1]])
            if job.formulation == "cf":
                shape = shape_of(job.encoded.requests)
                tokens = shape.length - shape.start
            if j + 1 == len(self.jobs) or self.jobs[j + 1].task is not job.task:
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


def _counts(encoded: Sequence[EncodedTask]) -> dict[str, int]:
    """How many questions did not fit and how many requests have a token across the boundary, in all."""
    return {key: sum(getattr(task, key) for task in encoded) for key in ("spanning", "shots_dropped", "cut")}


def versions() -> dict[str, str]:
    """Versions of the packages a number may depend on."""
    found = {}
    for name in ("olmes_monitor", "torch", "transformers", "lightning", "tokenizers", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
