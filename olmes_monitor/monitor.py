"""Monitor: schedule + suite + scoring + record, for any training loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import nn

from olmes_monitor.errors import EvaluationError, OLMESError, SetupError
from olmes_monitor.record.evaluation import Evaluation, Point
from olmes_monitor.record.files import plain, read_lines
from olmes_monitor.record.loggers import (
    Sink,
    alert_everywhere,
    finish_everywhere,
    log_everywhere,
    row_of,
    sinks_of,
    start_everywhere,
)
from olmes_monitor.record.store import LINES, Recorder, load_run
from olmes_monitor.record.verdicts import Hook, Verdicts, call_hook, verdict_row
from olmes_monitor.report.progress import show_progress
from olmes_monitor.report.terminal import crossover_line, evaluation_table, format_tokens
from olmes_monitor.schedule import Schedule
from olmes_monitor.scoring.parallel import Failure
from olmes_monitor.scoring.score import Scorer, versions
from olmes_monitor.suite import Suite, load_suite

logger = logging.getLogger("olmes_monitor")

WORTH_A_WARNING = 0.2
"""Share of the training compute beyond which a user should know what the evaluations cost."""


class Monitor:
    """Asks the model a suite's questions at set token intervals, keeps the answers and logs the curves.

    >>> with Monitor(model, tokenizer, every="1B", out="runs/x") as monitor:
    ...     for batch in data:
    ...         train_step(batch)
    ...         monitor.step(tokens=batch.numel())

    In a distributed job every rank makes the same calls; rank 0 alone writes and logs.

    Logged: olmes/{cf,mcf,score,gap}/<task> and /average, olmes/stderr/{cf,mcf,gap}/<task>, olmes/tokens, olmes/step,
    olmes/seconds (of the evaluation), olmes/overhead (its share of the wall time since the evaluation before).
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        *,
        every: int | float | str,
        suite: Suite | str = "monitor",
        tasks: Sequence[str] | str | None = None,
        limit: int | None = None,
        out: str | Path = ".",
        log: Sink | Iterable[Sink] = (),
        on_crossover: Hook | None = None,
        at_start: bool = True,
        at_end: bool = True,
        on_error: Literal["warn", "raise"] = "warn",
        console: bool = True,
        ranks_per_batch: int = 1,
        **scoring: Any,
    ) -> None:
        """
        `every`: tokens between two evaluations ("500M", "1B", 2.5e9, an int). `suite`: "monitor", "quick", "standard" or a
        Suite; `tasks` and `limit` choose among its tasks and cap the questions of each. `out`: the run's folder; the
        record goes to `out`/olmes. `log`: called with each evaluation's row (name → value), a live W&B run, or several of
        them (record/loggers.py says what else a sink may be told). `on_crossover`: called on rank 0 with a CrossoverEvent
        when a task's verdict becomes confirmed or is reverted.
        `on_error`: whether a failed evaluation is recorded and training goes on, or raises. `console`: print the tables.
        `ranks_per_batch`: how many ranks are fed one and the same batch, so that its tokens are counted once.
        `scoring`: bos, max_length, batch_tokens, path, formulations, permutations, context, as in Scorer.

        Raises SetupError where something does not fit, DataError where the questions cannot be had, RecordError where
        the folder cannot be written: on every rank, before training.
        """
        if on_error not in ("warn", "raise"):
            raise SetupError(f'on_error takes "warn" or "raise", got {on_error!r}')
        self.schedule = Schedule(every, at_start, at_end)  # type: ignore[arg-type]
        self.on_error = on_error
        self.ranks_per_batch = ranks_per_batch
        self.sinks: list[Sink] = sinks_of(log)
        self.on_crossover = on_crossover
        if isinstance(suite, str):
            suite = load_suite(suite, tasks=tasks, limit=limit)
        elif tasks is not None or limit is not None:
            raise SetupError("tasks and limit choose among a named suite's questions; build the Suite you want instead")
        self.scorer = Scorer(model, tokenizer, suite, **scoring)
        self._tokenizer = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        self.ranks = self.scorer.ranks
        self.main = self.ranks.rank == 0
        self.tokens = 0
        self.steps = 0
        self._evaluated: int | None = None
        self._since = time.monotonic()
        self._console = _console() if console and self.main else None
        self.out = Path(out)
        self._recorder = self._on_main(lambda: Recorder(self.out / "olmes"), "opening the record")
        self._verdicts = Verdicts(self.out / "olmes", suite.fingerprint)

    def __enter__(self) -> Monitor:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is None:
            self.finish()

    def start(self) -> Evaluation | None:
        """Say what an evaluation costs, and make the first one if this is the start of a run (0 tokens)."""
        self._check_fingerprint()
        self._say(self.describe())
        if self.main:
            self._open_sinks()
        if self.main and self.compute_share > WORTH_A_WARNING:
            logger.warning(
                "an evaluation costs %.0f %% of the training compute between two of them; a larger every, or suite='quick', "
                "costs less",
                100 * self.compute_share,
            )
        self._since = time.monotonic()
        return self.evaluate() if self.schedule.at_start and self.tokens == 0 else None

    def step(self, tokens: int, step: int | None = None) -> Evaluation | None:
        """Count one optimizer step, and evaluate if a boundary of the schedule was crossed.

        `tokens`: what this rank fed in this step; the ranks' numbers are added up. `step`: the trainer's own count of
        steps, if it has one. Returns the evaluation, if one was made and did not fail.
        """
        if tokens < 0:
            raise SetupError(f"step(tokens=...) takes the tokens of one optimizer step, got {tokens}")
        before = self.tokens
        self.tokens += self.ranks.sum(int(tokens)) // self.ranks_per_batch
        if self.tokens == 0:
            raise SetupError(
                "the first optimizer step was taken on an empty batch: no tokens were counted on any rank. If the batches are "
                "not empty, say how many tokens a step has (step(tokens=...); OLMESCallback(tokens_per_step=...))"
            )
        self.steps = self.steps + 1 if step is None else step
        return self.evaluate() if self.schedule.due(before, self.tokens) else None

    def finish(self) -> Evaluation | None:
        """Evaluate the end of training unless that point was evaluated, and say where the curves crossed."""
        last = self.evaluate() if self.schedule.at_end and self.tokens != self._evaluated else None
        self._say_crossings()
        if self.main and self._verdicts.run is not None:
            finish_everywhere(self.sinks, self._verdicts.run, self._verdicts.crossovers)
        return last

    def evaluate(self) -> Evaluation | None:
        """Evaluate now. Returns None if it failed and on_error is "warn"."""
        point = Point(tokens=self.tokens, step=self.steps, time=time.time())
        title = f"OLMES at {format_tokens(point.tokens)} tokens"
        self._evaluated = point.tokens
        started = time.monotonic()
        try:
            with show_progress(self._console, title) as progress:
                evaluation = self.scorer.evaluate(point, progress)
        except Exception as error:
            if self.on_error == "raise" and not isinstance(error, OLMESError):
                raise
            evaluation = self._failed(point, error)
        finished = time.monotonic()
        evaluation.cost["overhead"] = (finished - started) / max(finished - self._since, 1e-9)
        self._since = finished
        self._keep(evaluation)
        if evaluation.scores is None and self.on_error == "raise":
            raise EvaluationError(evaluation.problems["evaluation"])
        return evaluation if evaluation.scores is not None else None

    def state_dict(self) -> dict[str, int]:
        """What a checkpoint must hold for the token axis to go on after a resume."""
        return {
            "tokens": self.tokens,
            "step": self.steps,
            "evaluated": -1 if self._evaluated is None else self._evaluated,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Inverse of state_dict; called before `start`."""
        self.tokens, self.steps = int(state["tokens"]), int(state["step"])
        evaluated = int(state.get("evaluated", -1))
        self._evaluated = None if evaluated < 0 else evaluated

    @property
    def compute_share(self) -> float:
        """An evaluation's share of the training compute of one interval: forward tokens against forward and backward
        ones, a backward pass counted as two forward passes."""
        return self.scorer.tokens / (3 * self.schedule.every)

    def describe(self) -> str:
        """One line: what is asked, how often, and what it costs."""
        suite, scorer = self.scorer.suite, self.scorer
        questions = sum(len(task.questions) for task in suite.tasks.values())
        return (
            f"olmes_monitor: suite {suite.name} ({suite.fingerprint}): {len(suite.tasks)} tasks, {questions:,} questions, "
            f"{scorer.requests:,} requests, {format_tokens(scorer.tokens)} tokens forwarded ({scorer.path.name} path) by an "
            f"evaluation every {format_tokens(self.schedule.every)} tokens, {self.compute_share:.2%} of the training compute; "
            f"record in {self.out / 'olmes'}"
        )

    def _failed(self, point: Point, error: Exception) -> Evaluation:
        # An error that is not one of ours is a defect somewhere; its traceback is what helps to mend it.
        traceback = None if isinstance(error, OLMESError) else error
        reason = str(error) if isinstance(error, OLMESError) else f"{type(error).__name__}: {error}"
        logger.warning("the evaluation at %s tokens is missing: %s", f"{point.tokens:,}", reason, exc_info=traceback)
        suite = self.scorer.suite
        problems = {"evaluation": reason}
        return Evaluation(point, suite.name, suite.fingerprint, None, problems=problems, versions=versions())

    def _keep(self, evaluation: Evaluation) -> None:
        """Record, log and show; rank 0 does it. A record that cannot be written stops training only under "raise"."""
        try:
            self._on_main(lambda: self._recorder.write(evaluation), "recording the evaluation")
        except Exception as error:
            if self.on_error == "raise":
                raise
            logger.warning("the evaluation at %s tokens is not on disk: %s", f"{evaluation.point.tokens:,}", error)
        if self.main and evaluation.scores is not None:
            self._tell(evaluation)
        if self._console is not None:
            self._console.print(evaluation_table(evaluation))

    def _open_sinks(self) -> None:
        """Tell the trackers what is measured, and take up the verdicts of the part that a resumed run has behind it."""
        scorer, suite = self.scorer, self.scorer.suite
        config = {
            "suite": suite.name,
            "fingerprint": suite.fingerprint,
            "questions": {name: len(task.questions) for name, task in suite.tasks.items()},
            "every": self.schedule.every,
            "tokenizer": self._tokenizer,
            "settings": scorer.settings,
            "versions": versions(),
        }
        start_everywhere(self.sinks, plain(config), self.out / "olmes")
        try:
            self._verdicts.restore(self.tokens)
        except Exception as error:
            logger.warning("the verdicts so far could not be read, so news may be told again: %s", error)

    def _tell(self, evaluation: Evaluation) -> None:
        """The row, with the verdicts as they are now, to every tracker; a verdict that is news to whoever should know."""
        row, events = row_of(evaluation), []
        try:
            events = self._verdicts.update(evaluation.point)
        except Exception as error:
            logger.warning("no verdicts at %s tokens: %s: %s", row["olmes/tokens"], type(error).__name__, error)
        row |= verdict_row(self._verdicts.crossovers)
        log_everywhere(self.sinks, row, self._verdicts.run, self._verdicts.crossovers)
        for event in events:
            logger.info(event.text)
            self._say(event.text)
            alert_everywhere(self.sinks, event.title, event.text)
            call_hook(self.on_crossover, event)

    def _check_fingerprint(self) -> None:
        """A curve that goes on must go on with the same questions."""

        def check() -> None:
            record, suite = self.out / "olmes" / LINES, self.scorer.suite
            if self.tokens == 0 or not record.exists():
                return
            # The folder may hold an earlier run's suite beside this one's: only a curve begun with another is refused.
            held = {line["fingerprint"]: line["suite"] for line in read_lines(record)}
            if held and suite.fingerprint not in held:
                names = ", ".join(f"{name} ({fingerprint})" for fingerprint, name in held.items())
                raise SetupError(
                    f"{record} holds suite {names}, this run asks {suite.name} ({suite.fingerprint}); one curve has one "
                    "suite: ask the same, or give another out="
                )

        self._on_main(check, "checking the record")

    def _on_main(self, action: Callable[[], Any], what: str) -> Any:
        """Do something on rank 0; if it fails there, every rank raises the same error."""
        error: Exception | None = None
        result = None
        if self.main:
            try:
                result = action()
            except Exception as failure:
                error = failure
        if error is not None and self.ranks.size == 1:
            raise error
        self.ranks.agree(None if error is None else Failure(what, error))
        return result

    def _say_crossings(self) -> None:
        if self._console is None:
            return
        try:
            crossings = load_run(self.out, fingerprint=self.scorer.suite.fingerprint).crossovers()
        except (
            OLMESError
        ) as error:  # nothing was evaluated or could be written: no reason to end a training run with an error
            logger.warning("no crossings to tell: %s", error)
            return
        for task, crossover in crossings.items():
            self._console.print(crossover_line(task, crossover), highlight=False)

    def _say(self, line: str) -> None:
        if self._console is not None:
            self._console.print(line, highlight=False)


def _console() -> Any:
    from rich.console import Console

    return Console()
