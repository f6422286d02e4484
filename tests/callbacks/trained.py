"""One short training, three ways (Lightning, transformers, a loop by hand), with everything it left written down."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from parts import make_llama
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments, default_data_collator

from olmes_monitor import Monitor, OLMESCallback

MICRO_BATCHES = 5
"""With two to a window: two whole windows and a short one."""
BATCH = 4 * 12


class Frozen(nn.Sequential):
    """Stays in eval mode whatever a trainer says: its dropout would show if it did not."""

    def __init__(self):
        super().__init__(nn.Linear(32, 32), nn.Dropout(0.5))
        self.requires_grad_(False).eval()

    def train(self, mode=True):
        return super().train(False)


class Odd(nn.Module):
    """A model of one's own: dropout, a frozen part, a position table built in the first forward that needs it."""

    def __init__(self):
        super().__init__()
        self.lm, self.dropout, self.frozen = make_llama(attention_dropout=0.2), nn.Dropout(0.2), Frozen()
        self.table = None

    def forward(self, input_ids, labels=None):
        length = input_ids.shape[1]
        if self.table is None or len(self.table) < length:
            self.table = torch.arange(length)[:, None] / torch.arange(1, 33).cos()
        hidden = self.lm.model(input_ids=input_ids, use_cache=False).last_hidden_state
        hidden = self.frozen(hidden) + self.dropout(hidden) * self.table[:length].cos()
        logits = self.lm.lm_head(hidden)
        loss = None if labels is None else loss_of(logits, labels)
        return {"loss": loss, "logits": logits}


def loss_of(logits, ids):
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def make_model(kind: str) -> nn.Module:
    """odd: asked on the plain path. llama: on the packed one. Both recompute their layers' activations."""
    torch.manual_seed(1)
    model = Odd() if kind == "odd" else make_llama(attention_dropout=0.2)
    lm = model.lm if kind == "odd" else model
    lm.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


@dataclass
class Training:
    """What to train, and what is watched on the way."""

    folder: Path
    kind: str
    tokenizer: Any
    suite: Any = None
    """None: no monitor."""
    mode: str = "each step"
    """"raises": evaluations fail half way. "mid-window": one more is made by hand between two micro-batches of a window."""
    seen: dict[str, list] = field(default_factory=lambda: {"losses": [], "draws": [], "flags": [], "grads": []})
    model: nn.Module = None  # type: ignore[assignment]
    ema: AveragedModel = None  # type: ignore[assignment]
    optimizer: Any = None
    monitor: Monitor | None = None
    armed: int = -1
    """Forward calls that evaluations have made since the last micro-batch; -1 before the first."""

    def __post_init__(self):
        self.model = make_model(self.kind)
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
        self.model.register_forward_pre_hook(self._fail)

    @property
    def bf16(self) -> bool:
        return self.kind == "llama"

    @property
    def settings(self) -> dict:
        return {"every": BATCH, "suite": self.suite, "console": False, "batch_tokens": 256}

    def _fail(self, model, _):
        if self.mode == "raises" and not model.training and self.armed >= 0:
            self.armed += 1
            if self.armed > 1:
                raise RuntimeError("half way")

    def micro_batch(self, monitor: Monitor | None, number: int) -> None:
        """Called before each: random numbers that an evaluation must not have drawn, flags it must not have changed."""
        self.armed = 0
        self.seen["draws"].append((random.random(), np.random.rand(), torch.rand(1).item()))  # noqa: NPY002
        self.seen["flags"].append([module.training for module in self.model.modules()])
        if self.mode == "mid-window" and monitor is not None and number == 3:
            assert monitor.evaluate() is not None

    def window(self) -> None:
        """Called when gradients are whole, before the optimizer's step."""
        self.seen["grads"].append([None if p.grad is None else p.grad.clone() for p in self.model.parameters()])

    def left(self) -> dict[str, Any]:
        """Everything that training left."""
        lm = self.model.lm if self.kind == "odd" else self.model
        tokenizer = self.tokenizer
        return {
            **self.seen,
            "weights": self.model.state_dict(),
            "ema": self.ema.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "python": random.getstate(),
            "numpy": np.random.get_state()[1].tolist(),  # noqa: NPY002
            "torch": torch.get_rng_state(),
            "grad_enabled": torch.is_grad_enabled(),
            "autocast": torch.is_autocast_enabled("cpu"),
            "flags at the end": [module.training for module in self.model.modules()],
            "hooks": len(self.model._forward_pre_hooks),
            "config": lm.config.to_dict(),
            "attention": lm.config._attn_implementation,
            "tokenizer": tokenizer.backend_tokenizer.to_str(),
            "sides": (tokenizer.padding_side, tokenizer.truncation_side, tokenizer.special_tokens_map),
        }


def seed() -> None:
    random.seed(3), np.random.seed(4), torch.manual_seed(5)  # noqa: NPY002


def rows() -> list[dict]:
    ids = torch.randint(0, 300, (4 * MICRO_BATCHES, 12), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in ids]


def by_hand(training: Training) -> None:
    model = training.model
    optimizer = training.optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    seed()
    if training.suite is not None:
        training.monitor = Monitor(model, training.tokenizer, out=training.folder, **training.settings)
        training.monitor.start()
    for number, batch in enumerate(DataLoader(rows(), batch_size=4)):
        with torch.autocast("cpu", torch.bfloat16, enabled=training.bf16):
            training.micro_batch(training.monitor, number)
            loss = model(**batch)["loss"]
        training.seen["losses"].append(loss.item())
        loss.backward()
        if number % 2 == 1 or number == MICRO_BATCHES - 1:
            training.window()
            optimizer.step()
            optimizer.zero_grad()
            training.ema.update_parameters(model)
            if training.monitor is not None:
                training.monitor.step(tokens=2 * BATCH)


class Module(pl.LightningModule):
    def __init__(self, training: Training, callback):
        super().__init__()
        self.model, self.tokenizer = training.model, training.tokenizer
        self.training_, self.callback = [training], callback

    def training_step(self, batch, number):
        monitor = self.callback.monitor if self.callback is not None else None
        self.training_[0].micro_batch(monitor, number)
        loss = self.model(**batch)["loss"]
        self.training_[0].seen["losses"].append(loss.item())
        return loss

    def on_before_optimizer_step(self, optimizer):
        self.training_[0].window()

    def on_train_batch_end(self, *_):
        self.training_[0].ema.update_parameters(self.model)

    def configure_optimizers(self):
        self.training_[0].optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        return self.training_[0].optimizer


def with_lightning(training: Training) -> None:
    quiet = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "logger": False,
    }
    precision = "bf16-mixed" if training.bf16 else "32-true"
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", accumulate_grad_batches=2, precision=precision,
        default_root_dir=training.folder, **quiet,
    )  # fmt: skip
    callback = OLMESCallback(**training.settings) if training.suite is not None else None
    if callback is not None:
        trainer.callbacks.append(callback)
    seed()
    trainer.fit(Module(training, callback), DataLoader(rows(), batch_size=4))


class Average(TrainerCallback):
    def __init__(self, training: Training):
        self.training = training

    def on_pre_optimizer_step(self, *_, **kwargs):
        self.training.window()

    def on_step_end(self, *_, **kwargs):
        self.training.ema.update_parameters(self.training.model)


def with_transformers(training: Training) -> None:
    class Watched(Trainer):
        def training_step(self, model, inputs, *args, **kwargs):
            number = len(training.seen["losses"])
            model.train()  # as the step itself begins
            training.micro_batch(callback.monitor if callback is not None else None, number)
            loss = super().training_step(model, inputs, *args, **kwargs)
            training.seen["losses"].append(loss.item())
            return loss

    arguments = TrainingArguments(
        output_dir=str(training.folder), per_device_train_batch_size=4, num_train_epochs=1, learning_rate=0.01, seed=7,
        gradient_accumulation_steps=2, bf16=training.bf16, use_cpu=True, report_to="none", disable_tqdm=True,
        save_strategy="no", logging_steps=100,
    )  # fmt: skip
    trainer = Watched(training.model, arguments, default_data_collator, rows(), processing_class=training.tokenizer)
    callback = OLMESCallback(**training.settings) if training.suite is not None else None
    trainer.add_callback(Average(training))
    if callback is not None:
        trainer.add_callback(callback)
    seed()
    trainer.train()
    training.optimizer = trainer.optimizer


TRAINERS = {"by hand": by_hand, "lightning": with_lightning, "transformers": with_transformers}


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Where two nested structures differ, bit by bit."""
    if isinstance(one, torch.Tensor):
        same = isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
        return [] if same else [where]
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return [f"{where}: {one.keys() ^ other.keys()}"]
        return [found for key in one for found in differences(one[key], other[key], f"{where}.{key}")]
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return [f"{where}: {len(one)} and {len(other)} long"]
        return [
            found
            for i, pair in enumerate(zip(one, other, strict=True))
            for found in differences(*pair, f"{where}[{i}]")
        ]
    return [] if one == other and type(one) is type(other) else [f"{where}: {one!r} and {other!r}"]
