"""OLMESCallback in transformers' Trainer."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from olmes_monitor.callbacks.adapter import Adapter, refuse_namesakes
from olmes_monitor.callbacks.tokens import TokenCounter
from olmes_monitor.errors import SetupError
from olmes_monitor.record.evaluation import Evaluation
from olmes_monitor.record.loggers import WandbSink, live_wandb_run
from olmes_monitor.scoring.forward import device_of
from olmes_monitor.state import saved_states

logger = logging.getLogger("olmes_monitor")


class TransformersHooks(Adapter):
    """The hooks of transformers' TrainerCallback, and the state of its ExportableState.

    The order in one step: on_step_end (count, evaluate), the Trainer's own evaluation, on_evaluate, its checkpoint, on_save.
    """

    _hook: Any = None
    _counter: TokenCounter | None = None

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
        # The one object that all callbacks of a training get, and no other training: TrainerState is made anew each time.
        companions = vars(state).setdefault("olmes_callbacks", [])
        companions.append(weakref.ref(self))
        refuse_namesakes(callback for callback in (ref() for ref in companions) if callback is not None)
        self.restored = self._find_state(state) if state.global_step > 0 else None
        out = self.out if self.out is not None else args.output_dir
        sink = WandbSink(live_wandb_run, artifact=self.artifact)
        self._open(
            model,
            tokenizer,
            out,
            sink,
            state.global_step,
            context=precision_context(args, kwargs["model"]),
            ranks_per_batch=ranks_per_batch(args, kwargs["model"]),
        )
        self._unhook()
        self._counter = TokenCounter(self.count, self.padding, device_of(kwargs["model"]))
        if self.tokens_per_step is None:
            self._hook = kwargs["model"].register_forward_pre_hook(self._counter, with_kwargs=True)
        self._publish_history(state, self._begin(state.global_step, state.num_input_tokens_seen, state.max_steps))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """transformers calls this once per optimizer step, before it saves a checkpoint."""
        tokens = 0 if self._counter is None else self._counter.take()
        evaluations = [self._step(tokens, state.global_step)]
        if control.should_training_stop:
            # Here and not in on_train_end: a checkpoint of the last step knows it, and load_best_model_at_end comes after.
            evaluations.append(self._took(self._running.evaluate_end()))
        for evaluation in evaluations:
            self._publish_history(state, evaluation)
            if evaluation is not None and self.saving.wants(evaluation):
                control.should_save = True
        self._make_room(state)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The last evaluation, where training was stopped early."""
        if control.should_training_stop:
            self._publish_history(state, self._took(self._running.evaluate_end()))
        self._make_room(state)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """Where metric_for_best_model is one of ours: add it to what the Trainer has just measured, as it stands here."""
        wanted = (args.metric_for_best_model or "").removeprefix("eval_")
        own = f"olmes/{self.name}/" if self.name else "olmes/"
        if self.monitor is not None and self._counter is not None and metrics is not None and wanted.startswith(own):
            known = self.latest.get("olmes/tokens") == self.monitor.tokens
            metrics[f"eval_{wanted}"] = self._measured(wanted)
            if not known and self.latest:
                state.log_history.append({**self.latest, "epoch": state.epoch, "step": state.global_step})

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tell the evaluation of this step where its checkpoint is."""
        trial = [state.trial_name] if getattr(state, "trial_name", None) else []
        folder = Path(args.output_dir, *trial, f"checkpoint-{state.global_step}")
        self._publish_history(state, self._took(self._running.saved(folder if folder.is_dir() else None)))

    def state(self) -> dict[str, Any]:
        """What the Trainer writes into trainer_state.json: ExportableState's form. `adopt` finds the user's own callback
        again where the Trainer makes it anew (restore_callback_states_from_checkpoint)."""
        return {"args": {"adopt": self.key}, "attributes": {"restored": self.state_dict() or None}}

    def _find_state(self, state: Any) -> dict[str, Any] | None:
        """This callback's last saved state; else where training stood, from any other of its class."""
        found = saved_states(state.stateful_callbacks, type(self).__name__)
        own = [saved for key, saved in found if key == self.key]
        if own:
            return own[-1]
        return {name: found[-1][1][name] for name in ("tokens", "step")} if found else None

    def _make_room(self, state: Any) -> None:
        # The Trainer expects an entry to be there, replaces a lone one and adds to a list: an empty list makes every
        # checkpoint hold each callback's state once, also one that the resumed checkpoint did not have.
        state.stateful_callbacks[type(self).__name__] = []

    def _end_train(self, args: Any, state: Any) -> None:
        self._unhook()
        monitor = self._running
        swapped = args.load_best_model_at_end and state.best_model_checkpoint is not None
        if not swapped:
            self._publish_history(state, self._took(monitor.evaluate_end()))
        elif monitor.schedule.at_end and not monitor.evaluated_here and monitor.main:
            logger.warning(
                "no evaluation at the end of training: the Trainer has loaded %s", state.best_model_checkpoint
            )
        monitor.finish(evaluate=False)

    def _unhook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _publish_history(self, state: Any, evaluation: Evaluation | None) -> None:
        """Put the metrics into the Trainer's history, on every rank. Not by its log(): W&B has its row already."""
        if evaluation is not None:
            state.log_history.append({**self.latest, "epoch": state.epoch, "step": state.global_step})


def precision_context(args: Any, model: nn.Module) -> Callable[[], AbstractContextManager]:
    """Makes the autocast that training forwards run in, where accelerate has put one into the model's forward.

    (The packed path calls the model's parts, which that forward is not.)
    """
    if not hasattr(model, "_original_forward"):
        return nullcontext
    kind, dtype = device_of(model).type, torch.float16 if args.fp16 else torch.bfloat16
    return lambda: torch.autocast(kind, dtype)


def ranks_per_batch(args: Any, model: nn.Module) -> int:
    """How many ranks are fed one and the same batch: those of a tensor-parallel group."""
    config = getattr(args, "parallelism_config", None)
    sizes = (getattr(config, "tp_size", None), getattr(model, "tp_size", None))
    return max((size for size in sizes if isinstance(size, int)), default=1)
