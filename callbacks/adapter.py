"""What OLMESCallback does alike in both trainers: settings, state, the Monitor's life."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import nn

from olmes_monitor.callbacks.saving import SaveAt, SavePolicy
from olmes_monitor.callbacks.tokens import Count, Padding
from olmes_monitor.errors import SetupError, refuse_unknown, settings_of
from olmes_monitor.monitor import Monitor
from olmes_monitor.record.evaluation import Evaluation
from olmes_monitor.record.loggers import Sink, row_of, sinks_of
from olmes_monitor.record.verdicts import Hook
from olmes_monitor.refine import Refine, refiner_of
from olmes_monitor.schedule import Schedule, Tokens, parse_tokens
from olmes_monitor.scoring.score import Scorer
from olmes_monitor.suite import Suite
from olmes_monitor.telling import named

logger = logging.getLogger("olmes_monitor")

_made: list[weakref.ref[Adapter]] = []
"""The callbacks of this process, oldest first: see `adopt`."""


class Adapter:
    """A Monitor to be, and once a trainer has started, the Monitor."""

    def __init__(
        self,
        every: Tokens | None = "1B",
        *,
        at: Sequence[Tokens] = (),
        at_checkpoints: bool = False,
        refine: bool | Refine = False,
        suite: Suite | str = "monitor",
        tasks: Sequence[str] | str | None = None,
        limit: int | None = None,
        tokenizer: Any = None,
        model: nn.Module | Callable[[Any], nn.Module] | None = None,
        out: str | Path | None = None,
        log: Sink | Iterable[Sink] = (),
        artifact: bool = False,
        count: Count = "all",
        tokens_per_step: Tokens | None = None,
        count_tokens: Callable[[Any], int] | None = None,
        save_checkpoint: SaveAt = False,
        at_start: bool = True,
        at_end: bool = True,
        on_error: Literal["warn", "raise"] = "warn",
        console: bool = True,
        on_crossover: Hook | None = None,
        name: str = "",
        adopt: str = "",
        **scoring: Any,
    ) -> None:
        """
        `every`, `at`, `at_checkpoints`, `refine`, `suite`, `tasks`, `limit`, `log`, `at_start`, `at_end`, `on_error`,
        `console`, `on_crossover`, `name`, `scoring`: as in Monitor.
        `tokenizer`: found by itself as the trainer's processing_class (transformers) or as the attribute `tokenizer` of the
        LightningModule or datamodule. `model`: the language model, or a function from the LightningModule to it; found by
        itself where the module has one part with weights. `out`: the run's folder (default: the trainer's own, where a
        resumed run's record is taken up again); the record goes to `out`/olmes. `artifact`: put the record's files into the
        W&B run when training ends.
        `count`: "all" counts every token that is fed, "non_padding" leaves padding out. `tokens_per_step`: tokens of one
        optimizer step over all ranks, where they should not be counted; `count_tokens`: counts one batch of one rank
        (Lightning only).
        `save_checkpoint`: ask the trainer for a checkpoint at each evaluation (True), at those with the "best" average score
        so far, or where MCF overtakes CF on average ("crossover").
        `adopt`: not for you. transformers makes callbacks anew from a checkpoint's JSON if it is told to; made with this, a
        callback is the one you made, with all that JSON cannot hold.

        Raises SetupError for values that no trainer could make sense of; the rest is checked before the first step.
        """
        if adopt:
            self.__dict__ = _live(adopt).__dict__
            return
        known = settings_of(Adapter, Scorer, but=("adopt", "scoring"))
        refuse_unknown("OLMESCallback", scoring.keys() - {"ranks_per_batch"}, known)
        for setting, value in (("on_crossover", on_crossover), ("count_tokens", count_tokens)):
            if value is not None and not callable(value):
                raise SetupError(f"{setting} takes a function; got {value!r}")
        if model is not None and not callable(model):
            raise SetupError(
                f"model takes a torch.nn.Module, or a function from the LightningModule to it; got {model!r}"
            )
        # Refuses what it cannot read now.
        refiner_of(refine, Schedule(every, at_start, at_end, at, at_checkpoints))
        if count not in ("all", "non_padding"):
            raise SetupError(f'count takes "all" or "non_padding"; got {count!r}')
        if (count != "all") + (tokens_per_step is not None) + (count_tokens is not None) > 1:
            raise SetupError('pass one of count="non_padding", tokens_per_step and count_tokens, not two')
        self.tokens_per_step = None if tokens_per_step is None else parse_tokens(tokens_per_step, "tokens_per_step")
        self.count, self.count_tokens = count, count_tokens
        self.tokenizer, self.model, self.out = tokenizer, model, out
        self.sinks: list[Sink] = sinks_of(log)
        self.artifact = artifact
        self.name = name
        self.key = name or (suite if isinstance(suite, str) else suite.name)
        """What the state in a checkpoint goes by."""
        self.saving = SavePolicy(save_checkpoint)
        self.monitor: Monitor | None = None
        """The Monitor, once a trainer has started."""
        self.restored: dict[str, Any] | None = None
        """The state that a checkpoint held, until the Monitor takes it over."""
        self.latest: dict[str, float] = {}
        """The last evaluation's row, under the logged names; empty where it failed."""
        self._settings = {
            "every": every,
            "at": at,
            "at_checkpoints": at_checkpoints,
            "refine": refine,
            "suite": suite,
            "tasks": tasks,
            "limit": limit,
            "at_start": at_start,
            "at_end": at_end,
            "on_error": on_error,
            "console": console,
            "on_crossover": on_crossover,
            "name": name,
            **scoring,
        }
        _made.append(weakref.ref(self))

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds of this callback; JSON can hold it. Empty before training has started."""
        monitor = self.monitor
        if monitor is None:
            return {}
        return {**monitor.state_dict(), "out": str(monitor.out), "saving": self.saving.state_dict()}

    @property
    def _running(self) -> Monitor:
        if self.monitor is None:
            raise SetupError("the trainer has not started this callback; add it before fit() or train()")
        return self.monitor

    def _open(self, model: nn.Module, tokenizer: Any, out: str | Path, sink: Sink, step: int, **trainers: Any) -> None:
        """A fresh Monitor, at the restored token count if there is one. `step`: the trainer's. `trainers`: settings that
        the trainer decides."""
        state, self.restored = self.restored, None
        before = self.monitor
        if state is None and before is not None and before.steps == step > 0:
            state = self.state_dict()  # a trainer that goes on with what it has in memory
        self.monitor = monitor = Monitor(
            model, tokenizer, out=out, log=[sink, *self.sinks], **{**trainers, **self._settings}
        )
        self.padding = Padding.of(tokenizer)
        ways = {"tokens_per_step": self.tokens_per_step, "count_tokens": self.count_tokens}
        monitor.notes["count"] = next((way for way, set_ in ways.items() if set_ is not None), self.count)
        if state:
            monitor.load_state_dict(state)
            self.saving.load_state_dict(state.get("saving", {}))

    def _begin(self, step: int, seen: int = 0, planned: int | None = None) -> Evaluation | None:
        """Start the Monitor; where training goes on from a checkpoint that knows no token count, find or miss it aloud.

        `seen`: the trainer's own count of tokens, 0 if it has none. `planned`: its last step, None if it has none.
        """
        monitor = self._running
        monitor.planned_steps = planned
        if step > 0 and monitor.tokens == 0:
            known = self.tokens_per_step * step if self.tokens_per_step is not None else seen
            if known:
                monitor.load_state_dict({"tokens": known, "step": step})
            elif not monitor.go_on_at(step) and monitor.main:
                logger.warning(
                    "%d optimizer steps were taken before this callback was added, and their tokens are not known: the token "
                    "axis starts at 0 here. Pass tokens_per_step=<tokens of one optimizer step> for the true one",
                    step,
                )
        return self._took(monitor.start())

    def _step(self, counted: int, step: int) -> Evaluation | None:
        """One optimizer step: `counted` are this rank's tokens, unless tokens_per_step says what all ranks fed."""
        if self.tokens_per_step is not None:
            # The ranks' numbers are added up, so one rank brings them all.
            counted = self.tokens_per_step * self._running.ranks_per_batch if self._running.main else 0
        return self._took(self._running.step(counted, step))

    def _took(self, evaluation: Evaluation | None) -> Evaluation | None:
        if evaluation is not None:
            self.latest = named(row_of(evaluation), self.name)
        return evaluation

    def _measured(self, metric: str) -> float:
        """A logged metric of the model as it stands, evaluated now unless it was; NaN where that failed."""
        monitor = self._running
        if self.latest.get("olmes/tokens") != monitor.tokens:
            self.latest = {}
            self._took(monitor.evaluate())
        return self.latest.get(metric, math.nan)


def refuse_namesakes(callbacks: Iterable[Adapter]) -> None:
    """Raise SetupError unless the callbacks of one trainer have names of their own."""
    names = [callback.name for callback in callbacks]
    if len(set(names)) < len(names):
        shown = ", ".join(repr(name) for name in names)
        raise SetupError(
            f"{len(names)} OLMESCallbacks in one trainer have the names {shown}: their curves would mix. Give each "
            "a name of its own (OLMESCallback(name=...)), or add one callback once"
        )


def _live(key: str) -> Adapter:
    """The callback of this process that has the key; else the newest, so that none is lost to a changed setting."""
    found = [callback for callback in (ref() for ref in _made) if callback is not None]
    return next((callback for callback in reversed(found) if callback.key == key), found[-1])
