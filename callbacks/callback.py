"""OLMESCallback: one class for Lightning's Trainer and for transformers' Trainer."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback
from transformers.trainer_callback import ExportableState, TrainerCallback

from olmes_monitor.callbacks.lightning import LightningHooks
from olmes_monitor.callbacks.transformers import TransformersHooks


class OLMESCallback(LightningHooks, TransformersHooks, Callback, TrainerCallback, ExportableState):
    """Runs a Monitor inside a trainer.

    >>> trainer.callbacks.append(OLMESCallback(every="1B"))     # Lightning
    >>> trainer.add_callback(OLMESCallback(every="1B"))         # transformers

    It evaluates before the first optimizer step, whenever a multiple of `every` tokens is crossed, and at the end. The token
    count is what was fed to the model in training, padding included, over all ranks, one optimizer step at a time.

    The metrics of the last evaluation stand in Lightning's trainer.callback_metrics (ModelCheckpoint and EarlyStopping can
    monitor "olmes/score/average"), and in transformers' trainer.state.log_history; there metric_for_best_model can be one.
    """

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """The last evaluation. (The one hook whose name both trainers share.)"""
        if "model" in kwargs:  # transformers: (args, state, control, model=, …)
            self._end_train(args[0], args[1])
        else:  # Lightning: (trainer, pl_module)
            self._end_fit(args[0])
