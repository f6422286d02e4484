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

from olmes_monitor.errors import SetupError
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
    unwrap,
    vocabulary_of,
)
from olmes_monitor.scoring.jobs import Job, assign, make_jobs
from olmes_monitor.scoring.mesh import is_sharded, split
from olmes_monitor.scoring.parallel import Ranks
from olmes_monitor.scoring.path import Choice, choose_path
from olmes_monitor.scoring.preserve import preserved
from olmes_monitor.scoring.rounds import Progress, Rounds, Work, filler
from olmes_monitor.scoring.table import describe_choices, fill_in, join
from olmes_monitor.suite import FORMULATIONS, Formulation, Suite, load_suite

logger = logging.getLogger("olmes_monitor")


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
        ranks: Ranks | None = None,
    ) -> None:
        """
        `max_length`: longest prompt in tokens; by default the model's declared context, at most 2048.
        `batch_tokens`: tokens of one forward call; by default chosen from the model's size and the device's free memory.
        `path`: "packed" (each distinct token forwarded once), "plain" (each distinct prompt), or "auto": packed where a
        sample of questions gives the same numbers both ways. `permutations`: "cyclic" asks MCF in every cyclic order of
        the choices too, for the debiased accuracy and its spread. `context`: makes the context a forward runs in
        (autocast). `ranks`: who scores together; by default all ranks of the process group, if there is one. `Ranks()`:
        this rank alone.
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
        self.device = device_of(self.model)
        self.ranks = Ranks.current(self.device) if ranks is None else ranks
        with self.ranks.together("reading the suite"):
            self.suite = load_suite(suite) if isinstance(suite, str) else suite
            group = self._group()
        self.ranks.same_everywhere(self.suite.fingerprint, "the suite's fingerprint")
        self.ranks = self.ranks.grouped(group)
        declared = context_of(self.model) if max_length is None else max_length
        self.max_length = min(MAX_LENGTH if declared is None else declared, MAX_LENGTH)
        with self.ranks.together("encoding the suite"):
            encoder = CachedEncoder(tokenizer, bos, self.max_length)
            self.jobs = make_jobs(self.suite, formulations, encoder, permutations)
            self._check_ids()
            assign(self.jobs, self.ranks.part, self.ranks.parts)
        self._first = np.concatenate([[0], np.cumsum([len(job.own) for job in self.jobs])])
        self._choices = {task.name: describe_choices(task) for task in self.suite.tasks.values()}
        sharded = self.ranks.size > 1 and is_sharded(self.model)
        with preserved(self.model), self.context():
            with self.ranks.together("the first forward"):
                Forward(self.model).check(torch.from_numpy(filler(self.max_length).ids).to(self.device))
            self.path = choose_path(path, self.model, self.jobs, self.ranks, self.device, self.max_length)
        self.path.forward.gathers.completes &= self.ranks.copies == 1
        self.work = Work(self.jobs, self.path, self.ranks, sharded, self.device, self.max_length)
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
            bounded = self.path.forward.head is not None or self.path.forward.keeps
            batch_tokens = -self.ranks.max(-auto_batch_tokens(self.model, self.device, self.path.name, bounded))
        self.work.plan(batch_tokens)

    @property
    def requests(self) -> int:
        """Log-likelihoods that an evaluation asks for, over all ranks."""
        return int(self._first[-1])

    @property
    def tokens(self) -> int:
        """Tokens that an evaluation forwards, over all ranks, padding and fillers included."""
        return self.work.tokens

    @property
    def batch_tokens(self) -> int:
        """Tokens of one forward call, as they stand: memory that ran out has halved them."""
        return self.work.batch_tokens

    def evaluate(self, point: Point, progress: Progress | None = None) -> Evaluation:
        """Score the whole suite as the model stands. A collective: all ranks call it and get the same result.

        Raises EvaluationError on all ranks, with the first cause, where any rank fails. Where one runs out of device
        memory, all go on with half the tokens in a forward call from where they are, and remember.
        """
        started = time.perf_counter()
        with self._ready():
            values, spent = Rounds(self.work, progress).run()
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
            "tokens": spent.tokens,
            "forwards": spent.forwards,
            "ranks": self.ranks.size,
            "oom_retries": spent.retries,
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
            settings={**self.settings, "batch_tokens": self.work.batch_tokens},
        )

    def _shortened(self, job: Job) -> list[str]:
        """In words, how many prompts of a job were too long for the model."""
        asked, limit = len(job.task.questions), f"prompts are longer than the {self.max_length} tokens the model takes"
        dropped = f"{job.encoded.shots_dropped} of {asked} {job.formulation} questions with fewer shots: {limit}"
        cut = f"{job.encoded.cut} of {asked} {job.formulation} questions cut on the left: even without shots {limit}"
        return [dropped] * bool(job.encoded.shots_dropped) + [cut] * bool(job.encoded.cut)

    @contextmanager
    def _ready(self) -> Iterator[None]:
        """The state of model and process in which forwards are made; afterwards all is as before, and nothing is held."""
        with ExitStack() as stack:
            stack.enter_context(preserved(self.model))
            stack.enter_context(self.context())
            stack.enter_context(self.path.forward.gathers.followed())
            stack.enter_context(self.path.attention())
            stack.callback(self.path.clear)
            yield

    def _group(self) -> tuple[int, ...] | None:
        """The ranks that must be fed the same rows as this one; None: it alone."""
        group, reason = split(self.model) if self.ranks.size > 1 else (None, None)
        if reason is not None:
            raise SetupError(
                f"{type(self.model).__name__} cannot be evaluated in this job: {reason}, and only data-parallel ranks (DDP, "
                "FSDP) and tensor-parallel groups are supported. Train without the monitor and score the saved checkpoints"
            )
        return group

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
