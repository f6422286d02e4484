"""OLMESCallback in a Lightning Trainer. Nothing here imports Lightning: either of its packages will do."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from olmes_monitor.callbacks.adapter import Adapter, refuse_namesakes
from olmes_monitor.callbacks.tokens import tokens_in
from olmes_monitor.errors import SetupError
from olmes_monitor.record.evaluation import Evaluation
from olmes_monitor.record.loggers import LightningSink
from olmes_monitor.scoring.forward import unwrap


class LightningHooks(Adapter):
    """The hooks of Lightning's Callback."""

    _pending: int | Tensor = 0
    """Tokens of the micro-batches since the last optimizer step."""
    _last_step = 0
    _saved_at: int | None = None
    """The step at which a checkpoint was written that no evaluation knows of yet."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Take the first place among the callbacks (but for those that try batch sizes and learning rates).

        Checkpoints of a step must hold what was counted in it, and EarlyStopping see what was measured; and the last
        evaluation must come before a weight average is copied over the weights.
        """
        if stage != "fit":
            return
        refuse_namesakes(callback for callback in trainer.callbacks if isinstance(callback, Adapter))
        others = [callback for callback in trainer.callbacks if callback is not self]
        tuners = ("BatchSizeFinder", "LearningRateFinder")
        first = next((i for i, other in enumerate(others) if type(other).__name__ not in tuners), len(others))
        trainer.callbacks = [*others[:first], self, *others[first:]]

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Make everything ready; whatever does not fit is an error here, before the first step."""
        out = Path(self.out) if self.out is not None else run_folder(trainer)
        before = (self.restored or {}).get("out")
        if self.out is None and before is not None and (Path(before) / "olmes").is_dir():
            out = Path(before)  # loggers give a resumed run a folder of its own; the curve stays in one
        self._open(
            find_model(pl_module, self.model),
            find_tokenizer(trainer, pl_module, self.tokenizer),
            trainer.strategy.broadcast(out),
            LightningSink(trainer, artifact=self.artifact),
            trainer.global_step,
            context=precision_context(trainer),
            ranks_per_batch=ranks_per_batch(trainer),
        )
        self._running.stop = lambda: bool(getattr(trainer, "received_sigterm", False))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The first evaluation."""
        self._pending, self._last_step, self._saved_at = 0, trainer.global_step, None
        self._publish_metrics(trainer, self._begin(trainer.global_step, planned=planned_steps(trainer)))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Note a checkpoint that was saved since the last optimizer step."""
        self._publish_metrics(trainer, self._settle(trainer))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count the batch; once an optimizer step was taken, hand the count over."""
        if self.count_tokens is not None:
            self._pending += self.count_tokens(batch)
        elif self.tokens_per_step is None:
            self._pending = self._pending + tokens_in(batch, self.count, self.padding)
        # Under accumulation the hook runs for every micro-batch, while global_step stands still.
        if trainer.global_step > self._last_step:
            self._last_step = trainer.global_step
            tokens, self._pending = int(self._pending), 0
            self._publish_metrics(trainer, self._step(tokens, trainer.global_step))

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Remember that one is being written; its path is not known here, and its file not there yet."""
        self._saved_at = trainer.global_step

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Note the checkpoint that the end of training saved."""
        if stage == "fit" and self.monitor is not None:
            self._settle(trainer, last=True)

    @property
    def state_key(self) -> str:
        """What Lightning files the state under."""
        return f"{type(self).__name__}[{self.key}]"

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Where training stood, from any callback of this class (load_state_dict brings this one's own, if there is one)."""
        for key, state in checkpoint.get("callbacks", {}).items():
            if str(key).startswith(type(self).__name__) and "tokens" in state:
                self.restored = {name: state[name] for name in ("tokens", "step")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Lightning calls this on resume, before on_fit_start."""
        self.restored = state_dict or None

    def _end_fit(self, trainer: Any) -> None:
        self._publish_metrics(trainer, self._settle(trainer))
        self._publish_metrics(trainer, self._took(self._running.evaluate_end()))
        self._running.finish()

    def _publish_metrics(self, trainer: Any, evaluation: Evaluation | None) -> None:
        """Put the metrics where ModelCheckpoint and EarlyStopping look, on every rank; save a checkpoint if one is due."""
        if evaluation is None:
            return
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in self.latest.items()})
        if self.saving.wants(evaluation):
            point = evaluation.point
            path = self._running.out / "checkpoints" / f"olmes-step={point.step}-tokens={point.tokens}.ckpt"
            trainer.save_checkpoint(path)
            self._saved_at = None
            self._running.saved(path)

    def _settle(self, trainer: Any, last: bool = False) -> Evaluation | None:
        """Tell the Monitor of a checkpoint written since the last optimizer step. `last`: it is too late to evaluate."""
        step, self._saved_at = self._saved_at, None
        if step is None or step != self._running.steps:
            return None
        path = saved_path(trainer, step)
        if last:
            if path is not None and self._running.evaluated_here:
                self._running.saved(path)
            return None
        return self._took(self._running.saved(path))


def find_model(module: nn.Module, model: nn.Module | Callable[[Any], nn.Module] | None) -> nn.Module:
    """The language model of a LightningModule: as the user says, else its only child with weights, else itself.

    Raises SetupError where there are several candidates.
    """
    if isinstance(model, nn.Module):
        return model
    if model is not None:
        found = model(module)
        if not isinstance(found, nn.Module):
            raise SetupError(f"model= returned a {type(found).__name__}, not a torch.nn.Module")
        return found
    children = {name: child for name, child in module.named_children() if any(True for _ in child.parameters())}
    pretrained = {name: child for name, child in children.items() if _is_pretrained(unwrap(child))}
    candidates = pretrained or children
    if len(candidates) == 1:
        return next(iter(candidates.values()))
    if "model" in candidates:
        return candidates["model"]
    if any("forward" in vars(base) for base in type(module).__mro__ if not _is_lightning(base)):
        return module
    names = ", ".join(candidates) or "none"
    raise SetupError(
        f"cannot tell which part of {type(module).__name__} is the language model (parts with weights: {names}); pass "
        "OLMESCallback(model=lambda module: module.<the part>)"
    )


def find_tokenizer(trainer: Any, module: nn.Module, tokenizer: Any) -> Any:
    """The tokenizer: as the user says, else an attribute of the LightningModule or the datamodule.

    Raises SetupError where there is none.
    """
    if tokenizer is not None:
        return tokenizer
    for holder in (module, getattr(trainer, "datamodule", None)):
        for name in ("tokenizer", "processing_class"):
            # vars-free lookup: LightningModule.__getattr__ raises AttributeError for what is not there.
            found = getattr(holder, name, None)
            if found is not None:
                return found
    raise SetupError(
        f"no tokenizer: neither {type(module).__name__} nor its datamodule has an attribute `tokenizer`; pass "
        "OLMESCallback(tokenizer=...)"
    )


def run_folder(trainer: Any) -> Path:
    """The run's folder: the loggers' own, or default_root_dir. A collective in distributed runs (log_dir is broadcast)."""
    return Path(trainer.log_dir or trainer.default_root_dir)


def saved_path(trainer: Any, step: int) -> str | None:
    """Where a ModelCheckpoint has saved at a step; None if none tells. (A path given to trainer.save_checkpoint by hand
    is nowhere to be found.)"""
    for callback in trainer.checkpoint_callbacks:
        path = getattr(callback, "_last_checkpoint_saved", "")
        if path and getattr(callback, "_last_global_step_saved", None) == step:
            return str(path)
    return None


def ranks_per_batch(trainer: Any) -> int:
    """How many ranks the strategy feeds one and the same batch: those of a tensor-parallel group."""
    sampler = getattr(trainer.strategy, "distributed_sampler_kwargs", None) or {}
    return max(1, trainer.world_size // sampler.get("num_replicas", trainer.world_size))


def planned_steps(trainer: Any) -> int | None:
    """The optimizer step at which training ends; None where it has no end. Only once the data is set up.

    (trainer.estimated_stepping_batches raises where the accumulation changes on the way.)
    """
    ends = [trainer.max_steps] if trainer.max_steps > 0 else []
    if (trainer.max_epochs or -1) > 0 and trainer.num_training_batches < math.inf:
        ends.append(math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches) * trainer.max_epochs)
    return min(ends, default=None)


def precision_context(trainer: Any) -> Callable[[], AbstractContextManager]:
    """Makes the context (autocast, default dtype) that training forwards run in."""
    return trainer.precision_plugin.forward_context


def _is_pretrained(module: nn.Module) -> bool:
    return any(base.__name__ == "PreTrainedModel" for base in type(module).__mro__)


def _is_lightning(base: type) -> bool:
    return base.__module__.split(".")[0] in ("lightning", "pytorch_lightning", "torch", "lightning_fabric", "builtins")
