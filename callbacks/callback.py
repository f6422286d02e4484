"""OLMESCallback: one class for Lightning's Trainer and for transformers' Trainer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import Callback
from torch import nn
from transformers.trainer_callback import TrainerCallback

from olmes_monitor.callbacks import lightning as pl
from olmes_monitor.callbacks.tokens import TokenCounter, tokens_in
from olmes_monitor.errors import SetupError
from olmes_monitor.monitor import Monitor
from olmes_monitor.record.loggers import LightningSink, Sink, WandbSink, live_wandb_run, sinks_of
from olmes_monitor.record.verdicts import Hook
from olmes_monitor.schedule import parse_tokens
from olmes_monitor.suite import Suite

logger = logging.getLogger("olmes_monitor")

SAVED_AS = "olmes_monitor"
"""The entry of trainer_state.json that holds a callback's state. Not the class's name: under
restore_callback_states_from_checkpoint the Trainer would make a new callback from it and lose the user's own."""


class OLMESCallback(Callback, TrainerCallback):
    """Runs a Monitor inside a trainer.

    >>> trainer.callbacks.append(OLMESCallback(every="1B"))     # Lightning
    >>> trainer.add_callback(OLMESCallback(every="1B"))         # transformers

    It evaluates before the first optimizer step, whenever a multiple of `every` tokens is crossed, and at the end. The token
    count is what was fed to the model in training, padding included, over all ranks, one optimizer step at a time.
    """

    def __init__(
        self,
        every: int | float | str = "1B",
        *,
        suite: Suite | str = "monitor",
        tasks: Sequence[str] | str | None = None,
        limit: int | None = None,
        tokenizer: Any = None,
        model: nn.Module | Callable[[Any], nn.Module] | None = None,
        out: str | Path | None = None,
        log: Sink | Iterable[Sink] = (),
        artifact: bool = False,
        tokens_per_step: int | str | None = None,
        count_tokens: Callable[[Any], int] | None = None,
        at_start: bool = True,
        at_end: bool = True,
        on_error: Literal["warn", "raise"] = "warn",
        console: bool = True,
        on_crossover: Hook | None = None,
        **scoring: Any,
    ) -> None:
        """
        `every`, `suite`, `tasks`, `limit`, `log`, `at_start`, `at_end`, `on_error`, `console`, `on_crossover`,
        `scoring`: as in Monitor.
        `tokenizer`: found by itself as the trainer's processing_class (transformers) or as the attribute `tokenizer` of the
        LightningModule or datamodule. `model`: the language model, or a function from the LightningModule to it; found by
        itself where the module has one part with weights. `out`: the run's folder (default: the trainer's own); the
        record goes to `out`/olmes. `tokens_per_step`: tokens of one optimizer step over all ranks, where they should not
        be counted; `count_tokens`: counts one batch of one rank (Lightning only). `artifact`: put the record's files into the
        W&B run when training ends.

        Raises SetupError for values that no trainer could make sense of; the rest is checked before the first step.
        """
        self.every = parse_tokens(every)
        if tokens_per_step is not None and count_tokens is not None:
            raise SetupError("pass tokens_per_step or count_tokens, not both")
        self.tokens_per_step = None if tokens_per_step is None else parse_tokens(tokens_per_step, "tokens_per_step")
        self.count_tokens = count_tokens
        self.tokenizer, self.model, self.out = tokenizer, model, out
        self.sinks: list[Sink] = sinks_of(log)
        self.artifact = artifact
        self.monitor: Monitor | None = None
        """The Monitor, once a trainer has started."""
        self._settings = {
            "suite": suite,
            "tasks": tasks,
            "limit": limit,
            "at_start": at_start,
            "at_end": at_end,
            "on_error": on_error,
            "console": console,
            "on_crossover": on_crossover,
            **scoring,
        }
        self._restored: dict[str, int] | None = None
        self._pending = 0
        self._last_step = 0
        self._counter = TokenCounter()
        self._hook: Any = None

    # Lightning

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Make everything ready; whatever does not fit is an error here, before the first step."""
        out = self.out if self.out is not None else pl.run_folder(trainer)
        self._open(
            pl.find_model(pl_module, self.model),
            pl.find_tokenizer(trainer, pl_module, self.tokenizer),
            out,
            LightningSink(trainer, artifact=self.artifact),
            context=pl.precision_context(trainer),
            ranks_per_batch=pl.ranks_per_batch(trainer),
        )

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The first evaluation."""
        self._pending, self._last_step = 0, trainer.global_step
        self._begin(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count the batch; once an optimizer step was taken, hand the count over."""
        if self.tokens_per_step is None:
            self._pending += (self.count_tokens or tokens_in)(batch)
        # Under accumulation the hook runs for every micro-batch, while global_step stands still.
        if trainer.global_step > self._last_step:
            self._last_step = trainer.global_step
            tokens, self._pending = self._pending, 0
            self._step(tokens, trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        """Lightning puts this into its checkpoints."""
        return {} if self.monitor is None else dict(self.monitor.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Lightning calls this on resume, before on_fit_start."""
        self._restored = state_dict or None

    # transformers

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Make everything ready, hook the token counter to the model, and make the first evaluation."""
        model = kwargs["model"] if self.model is None or not isinstance(self.model, nn.Module) else self.model
        tokenizer = self.tokenizer if self.tokenizer is not None else kwargs.get("processing_class")
        # A processor (text and images) carries its tokenizer.
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        if tokenizer is None:
            raise SetupError(
                "no tokenizer: the Trainer has no processing_class; pass it there, or OLMESCallback(tokenizer=...)"
            )
        self._restored = state.stateful_callbacks.get(SAVED_AS) if state.global_step > 0 else None
        out = self.out if self.out is not None else args.output_dir
        self._open(model, tokenizer, out, WandbSink(live_wandb_run, artifact=self.artifact))
        if self._hook is not None:
            self._hook.remove()
        self._counter = TokenCounter()
        if self.tokens_per_step is None:
            self._hook = kwargs["model"].register_forward_pre_hook(self._counter, with_kwargs=True)
        self._begin(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """transformers calls this once per optimizer step, before it saves a checkpoint."""
        self._step(self._counter.take(), state.global_step)
        state.stateful_callbacks[SAVED_AS] = self.state_dict()

    # both

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """The last evaluation. (The one hook whose name both trainers share; neither's arguments are needed.)"""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._running.finish()

    @property
    def _running(self) -> Monitor:
        if self.monitor is None:
            raise SetupError("the trainer has not started this callback; add it before fit() or train()")
        return self.monitor

    def _open(self, model: nn.Module, tokenizer: Any, out: str | Path, sink: Sink, **trainers: Any) -> None:
        """A fresh Monitor, at the restored token count if there is one. `trainers`: settings that the trainer decides."""
        settings = {**trainers, **self._settings}
        self.monitor = Monitor(model, tokenizer, every=self.every, out=out, log=[sink, *self.sinks], **settings)
        if self._restored is not None:
            self.monitor.load_state_dict(self._restored)
            self._restored = None

    def _begin(self, step: int) -> None:
        """Start the Monitor; where training goes on from a checkpoint that knows no token count, find or miss it aloud."""
        monitor = self._running
        if step > 0 and monitor.tokens == 0:
            if self.tokens_per_step is not None:
                monitor.load_state_dict({"tokens": self.tokens_per_step * step, "step": step})
            elif monitor.main:
                logger.warning(
                    "%d optimizer steps were taken before this callback was added, and their tokens are not known: the token "
                    "axis starts at 0 here. Pass tokens_per_step=<tokens of one optimizer step> for the true one",
                    step,
                )
        monitor.start()

    def _step(self, counted: int, step: int) -> None:
        """One optimizer step: `counted` are this rank's tokens, unless tokens_per_step says what all ranks fed."""
        if self.tokens_per_step is not None:
            # The ranks' numbers are added up, so one rank brings them all.
            counted = self.tokens_per_step * self._running.ranks_per_batch if self._running.main else 0
        self._running.step(counted, step)
