"""Monitor: schedule + suite + scoring + record, for any training loop."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import nn

from olmes_monitor.costs import advise, config_of, describe, warn_of_cost, warn_of_step
from olmes_monitor.errors import EvaluationError, OLMESError, SetupError, refuse_unknown, settings_of
from olmes_monitor.record.evaluation import Evaluation, Point
from olmes_monitor.record.files import read_lines
from olmes_monitor.record.loggers import Sink, sinks_of
from olmes_monitor.record.store import LINES, Recorder
from olmes_monitor.record.verdicts import Hook
from olmes_monitor.refine import Refine
from olmes_monitor.report.progress import show_progress
from olmes_monitor.report.terminal import format_tokens
from olmes_monitor.schedule import Schedule, Tokens
from olmes_monitor.scoring.parallel import Failure
from olmes_monitor.scoring.score import Scorer, versions
from olmes_monitor.state import attempts, check_suite, last_evaluated, tokens_at
from olmes_monitor.suite import Suite, load_suite
from olmes_monitor.telling import Teller
from olmes_monitor.zoom import make_zoom

logger = logging.getLogger("olmes_monitor")

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
TAKEN = {"cf", "mcf", "score", "gap", "stderr", "crossover", "tokens", "step", "seconds", "overhead", "chart", "latest"}
"""What stands behind olmes/ in a logged name already."""


class Monitor:
    """Asks the model a suite's questions at set token intervals, keeps the answers and logs the curves.

    >>> with Monitor(model, tokenizer, every="1B", out="runs/x") as monitor:
    ...     for batch in data:
    ...         train_step(batch)
    ...         monitor.step(tokens=batch.numel())

    In a distributed job every rank makes the same calls; rank 0 alone writes and logs.

    Logged: olmes/{cf,mcf,score,gap}/<task> and /average, olmes/stderr/{cf,mcf,gap}/<task>, olmes/tokens, olmes/step,
    olmes/seconds (of the evaluation), olmes/overhead (its share of the wall time since the evaluation before; not of the
    first). With a `name`, all but the two axes olmes/tokens and olmes/step are olmes/<name>/….
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        *,
        every: Tokens | None,
        at: Sequence[Tokens] = (),
        at_checkpoints: bool = False,
        refine: bool | Refine = False,
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
        name: str = "",
        **scoring: Any,
    ) -> None:
        """
        `every`: tokens between two evaluations ("500M", "1B", 2.5e9, an int), "geometric:100M,1.2" for points each 1.2 times
        as far as the one before, or None. `at`: token counts at which to evaluate besides. `at_checkpoints`: evaluate
        whenever a checkpoint is saved (`saved` says so). `refine`: evaluate more closely where MCF is about to overtake CF,
        up to 30 % more often and down to every/8, or as Refine(floor="100M", cap=0.3) says. `suite`: "monitor", "quick",
        "standard" or a Suite; `tasks` and `limit` choose among its tasks and cap the questions of each. `out`: the run's
        folder; the record goes to `out`/olmes. `log`: called with each evaluation's row (name → value), a live W&B run, or
        several of them (record/loggers.py says what else a sink may be told). `on_crossover`: called on rank 0 with a
        CrossoverEvent when a task's verdict becomes confirmed or is reverted.
        `on_error`: whether a failed evaluation is recorded and training goes on, or raises. `console`: print the tables.
        `ranks_per_batch`: how many ranks are fed one and the same batch, so that its tokens are counted once.
        `name`: goes into the logged names, where several monitors watch one run.
        `scoring`: bos, max_length, batch_tokens, path, formulations, permutations, context, as in Scorer.

        Raises SetupError where something does not fit, DataError where the questions cannot be had, RecordError where
        the folder cannot be written: on every rank, before training.
        """
        refuse_unknown("Monitor", scoring, settings_of(Monitor, Scorer, but=("scoring",)))
        if on_crossover is not None and not callable(on_crossover):
            raise SetupError(f"on_crossover takes a function; got {on_crossover!r}")
        if on_error not in ("warn", "raise"):
            raise SetupError(f'on_error takes "warn" or "raise", got {on_error!r}')
        if name and (not NAME.fullmatch(name) or name in TAKEN):
            raise SetupError(
                f"name takes letters, digits, _ and -, and none of {', '.join(sorted(TAKEN))}; got {name!r}"
            )
        self.schedule = Schedule(every, at_start, at_end, at, at_checkpoints)
        self.name = name
        self.on_error = on_error
        self.ranks_per_batch = ranks_per_batch
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
        self.planned_steps: int | None = None
        """Optimizer steps at the end of training, if known: `refine` may then spend all it has at an early crossing."""
        self.stop: Callable[[], bool] = lambda: False
        """Asked after each forward call; once it says yes on any rank, all leave the evaluation, which a resumed run makes up
        for. Lightning's trainer sets it: pre-empted, it has seconds to save."""
        self.attempt = 1
        """Which start of the training process this is, as far as the record knows."""
        self.notes: dict[str, Any] = {"count": "given"}
        """What the record's settings say besides: how tokens were counted."""
        self._evaluated: int | None = None
        self._written: str | None = None
        self._checkpoint: tuple[int, str] | None = None
        self._fed = 0
        self._began = 0
        self._since = time.monotonic()
        self._console = _console() if console and self.main else None
        self.out = Path(out)
        self._recorder = self._on_main(lambda: Recorder(self.out / "olmes"), "opening the record")
        self._zoom = make_zoom(refine, self.schedule, self.scorer, self.out / "olmes")
        sinks = sinks_of(log)
        self._teller = (
            Teller(sinks, self.out, suite.fingerprint, name, on_crossover, self._console) if self.main else None
        )

    def __enter__(self) -> Monitor:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is None:
            self.finish()

    def start(self) -> Evaluation | None:
        """Say what an evaluation costs, and make the first one: of a run that starts at 0 tokens, or of one that goes on
        where a point is owed (it was killed while it evaluated, or was never watched so far)."""
        self._look_back()
        if self._teller is not None:
            for line in (self.describe(), *advise(self.scorer)):
                self._teller.say(line)
            config = config_of(self.scorer, self.schedule, refine=self._zoom is not None, tokenizer=self._tokenizer)
            self._teller.start(config | {"settings": self.scorer.settings | self.notes}, self.tokens)
            warn_of_cost(self.scorer, self.schedule)
        if self._zoom is not None and self.tokens > 0:
            self._zoom.begin(self.tokens, self._evaluated, self.planned_steps)
        self._since = time.monotonic()
        if self.tokens == 0:
            return self.evaluate() if self.schedule.at_start else None
        owed = self.schedule.at_checkpoints or self._due(self._evaluated or 0, self.tokens)
        return self.evaluate() if owed and not self.evaluated_here else None

    def step(self, tokens: int, step: int | None = None) -> Evaluation | None:
        """Count one optimizer step, and evaluate if a boundary of the schedule was crossed.

        `tokens`: what this rank fed in this step; the ranks' numbers are added up. `step`: the trainer's own count of
        steps, if it has one. Returns the evaluation, if one was made and did not fail.
        """
        if tokens < 0:
            raise SetupError(f"step(tokens=...) takes the tokens of one optimizer step, got {tokens}")
        before = self.tokens
        fed = self.ranks.sum(int(tokens)) // self.ranks_per_batch
        self.tokens += fed
        if self.tokens == 0:
            raise SetupError(
                "the first optimizer step was taken on an empty batch: no tokens were counted on any rank. If the batches are "
                "not empty, say how many tokens a step has (step(tokens=...); OLMESCallback(tokens_per_step=...))"
            )
        self.steps = self.steps + 1 if step is None else step
        if self.main and not self._fed:
            warn_of_step(fed, self.schedule)
        self._fed += fed
        return self.evaluate() if self._due(before, self.tokens) else None

    def saved(self, checkpoint: str | Path | None) -> Evaluation | None:
        """Say, on every rank, that a checkpoint of the model as it stands was saved: its point's evaluation names it.

        With at_checkpoints, evaluates unless that was done at this very point. `checkpoint` is None if only this is known.
        """
        self._checkpoint = None if checkpoint is None else (self.tokens, str(checkpoint))
        if not self.evaluated_here:
            return self.evaluate() if self.schedule.at_checkpoints else None
        name = self._written
        if name is not None and checkpoint is not None:
            self._try_on_main(lambda: self._recorder.amend(name, str(checkpoint)), f"the checkpoint {checkpoint}")
        return None

    @property
    def evaluated_here(self) -> bool:
        """Whether the last evaluation was made where training stands, be it in an earlier attempt."""
        return self._evaluated == self.tokens

    def finish(self, evaluate: bool = True) -> Evaluation | None:
        """Evaluate the end of training unless that point was evaluated, and say where the curves crossed."""
        last = self.evaluate_end() if evaluate else None
        if self._teller is not None:
            self._teller.finish()
        return last

    def evaluate_end(self) -> Evaluation | None:
        """The schedule's last evaluation, unless this very point was evaluated."""
        return self.evaluate() if self.schedule.at_end and not self.evaluated_here else None

    def evaluate(self) -> Evaluation | None:
        """Evaluate now. Returns None if it failed and on_error is "warn"."""
        tokens, checkpoint = self._checkpoint or (None, None)
        here = checkpoint if tokens == self.tokens else None
        point = Point(tokens=self.tokens, step=self.steps, time=time.time(), checkpoint=here)
        title = f"OLMES at {format_tokens(point.tokens)} tokens"
        before, self._evaluated = self._evaluated, point.tokens
        started = time.monotonic()
        try:
            with show_progress(self._console, title, self.stop) as progress:
                evaluation = self.scorer.evaluate(point, progress)
        except Exception as error:
            if not self.ranks.lost and self.ranks.max(int(self.stop())):
                logger.warning("the evaluation at %s tokens was left: training is to stop", f"{point.tokens:,}")
                self._evaluated = before
                return None
            if self.on_error == "raise" and not isinstance(error, OLMESError):
                raise
            evaluation = self._failed(point, error)
        finished = time.monotonic()
        evaluation.attempt, evaluation.since = self.attempt, self._began
        evaluation.settings |= self.notes
        if self._fed:  # the share of nothing but itself is no share
            evaluation.cost["overhead"] = (finished - started) / max(finished - self._since, 1e-9)
        self._since = finished
        self._keep(evaluation)
        # Without the other ranks training cannot go on either: better ended in words than in its next collective.
        if evaluation.scores is None and (self.on_error == "raise" or self.ranks.lost):
            raise EvaluationError(evaluation.problems["evaluation"])
        if self._zoom is not None:
            self._zoom.observe(evaluation, self._teller.crossovers if self._teller else {}, self.planned_steps)
        return evaluation if evaluation.scores is not None else None

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold for the token axis to go on after a resume; JSON can hold it."""
        state: dict[str, Any] = {
            "tokens": self.tokens,
            "step": self.steps,
            "evaluated": -1 if self._evaluated is None else self._evaluated,
        }
        if self._zoom is not None and self.main:
            state["refine"] = self._zoom.refiner.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of state_dict; called before `start`."""
        self.tokens, self.steps = int(state["tokens"]), int(state["step"])
        evaluated = int(state.get("evaluated", -1))
        self._evaluated = None if evaluated < 0 else evaluated
        if self._zoom is not None and "refine" in state:
            self._zoom.refiner.load_state_dict(state["refine"])

    def go_on_at(self, step: int) -> bool:
        """For a run that goes on at an optimizer step without a saved state: find its tokens in the record. A collective,
        called before `start`. False if the record does not tell."""

        def look() -> tuple[int, bool] | None:
            return tokens_at(self._lines(), self.scorer.suite.fingerprint, step)

        found = self._on_main(look, "looking for the tokens in the record")
        tokens = self.ranks.sum(found[0] if found else 0)
        if tokens == 0:
            return False
        self.tokens, self.steps = tokens, step
        if self.main and found and not found[1]:
            logger.warning(
                "training goes on at step %d without a saved token count; from the record it is about %s tokens",
                step,
                f"{tokens:,}",
            )
            self.notes["tokens"] = "estimated from the record"
        return True

    def describe(self) -> str:
        """One line: what is asked, how often, and what it costs."""
        refiner = None if self._zoom is None else self._zoom.refiner
        return describe(self.scorer, self.schedule, self.out / "olmes", refiner)

    def _due(self, before: int, after: int) -> bool:
        return self.schedule.due(before, after) or (self._zoom is not None and before < self._zoom.due <= after)

    def _failed(self, point: Point, error: Exception) -> Evaluation:
        # An error that is not one of ours is a defect somewhere; its traceback is what helps to mend it.
        traceback = None if isinstance(error, OLMESError) else error
        reason = str(error) if isinstance(error, OLMESError) else f"{type(error).__name__}: {error}"
        logger.warning("the evaluation at %s tokens is missing: %s", f"{point.tokens:,}", reason, exc_info=traceback)
        suite = self.scorer.suite
        problems = {"evaluation": reason}
        return Evaluation(point, suite.name, suite.fingerprint, None, problems=problems, versions=versions())

    def _keep(self, evaluation: Evaluation) -> None:
        """Record, log and show; rank 0 does it."""
        what = f"the evaluation at {evaluation.point.tokens:,} tokens"
        self._written = self._try_on_main(lambda: self._recorder.write(evaluation), what)
        if self._teller is not None:
            self._teller.evaluated(evaluation)

    def _lines(self) -> list[dict[str, Any]]:
        record = self.out / "olmes" / LINES
        return read_lines(record) if record.exists() else []

    def _look_back(self) -> None:
        """What the record knows of this run's earlier attempts: that they asked the same, how many, up to which point."""
        self._began = self.tokens

        def look() -> tuple[int, int]:
            lines, suite = self._lines(), self.scorer.suite
            if self.tokens > 0:
                check_suite(lines, suite, self.out / "olmes" / LINES)
            last = last_evaluated(lines, suite.fingerprint, self.tokens)
            return attempts(lines, suite.fingerprint), -1 if last is None else last

        before, last = self._on_main(look, "checking the record") or (0, 0)
        self.attempt, last = 1 + self.ranks.sum(before), self.ranks.sum(last)
        # The record may know of an evaluation that the checkpoint does not: the one of the checkpoint's own point.
        if self.tokens > 0 and last >= 0:
            self._evaluated = max(last, self._evaluated or 0)

    def _try_on_main(self, action: Callable[[], Any], what: str) -> Any:
        """Write on rank 0. A record that cannot be written stops training only under "raise"."""
        try:
            return self._on_main(action, "recording " + what)
        except Exception as error:
            if self.on_error == "raise":
                raise
            logger.warning("%s is not on disk: %s", what, error)
            return None

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


def _console() -> Any:
    from rich.console import Console

    return Console()
