"""A short training run of each trainer on as many ranks as torchrun starts; rank 0 leaves the record and the losses.

torchrun --nproc-per-node 2 train_on_two_ranks.py {lightning|lightning_fsdp2|lightning_tensor|transformers} FOLDER [fails|alone]

fails: the second evaluation raises on rank 1, deep inside a forward. alone: no callback.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from parts import make_llama, make_task, make_tokenizer

from olmes_monitor import OLMESCallback, Suite

SUITE = Suite("tiny", [make_task("boxes", 7), make_task("balls", 3, seed=1, normalization="pmi")])
ROWS = [torch.randint(0, 300, (10,), generator=torch.Generator().manual_seed(i)) for i in range(32)]


HOW = sys.argv[3] if len(sys.argv) > 3 else "whole"


def callbacks() -> list[OLMESCallback]:
    return [] if HOW == "alone" else [OLMESCallback(every=100, suite=SUITE, console=False)]


def make_model():
    model, trained = make_llama(), []

    def unlucky(module, _):
        trained.extend([1] * module.training)
        if HOW == "fails" and not module.training and len(trained) == 2 and torch.distributed.get_rank() == 1:
            trained.append(1)
            raise ValueError("no luck")

    model.model.layers[1].register_forward_pre_hook(unlucky)
    return model


def with_lightning(folder: Path, sharded: bool = False, tensor: bool = False) -> list[float]:
    import lightning.pytorch as pl
    from lightning.pytorch.strategies import ModelParallelStrategy
    from torch.distributed.fsdp import fully_shard

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.tokenizer, self.losses = make_model(), make_tokenizer(SUITE), []

        def configure_model(self):
            if tensor and not self.losses:
                split_over(self.model, self.device_mesh["tensor_parallel"])
            if sharded and not self.losses:
                mesh = self.device_mesh["data_parallel"]
                for layer in self.model.model.layers:
                    fully_shard(layer, mesh=mesh)
                fully_shard(self.model, mesh=mesh)

        def training_step(self, batch, _):
            loss = self.model(input_ids=batch["input_ids"], labels=batch["input_ids"]).loss
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    quiet = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "logger": False,
    }
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=2,
        strategy=ModelParallelStrategy(1 if tensor else 2, 2 if tensor else 1) if sharded or tensor else "ddp",
        default_root_dir=folder,
        use_distributed_sampler=True,
        **quiet,
    )
    trainer.callbacks.extend(callbacks())
    trainer.fit(module, torch.utils.data.DataLoader([{"input_ids": row} for row in ROWS], batch_size=4))
    return module.losses


def split_over(model, mesh) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()}
    for layer in model.model.layers:
        parallelize_module(layer.mlp, mesh, plan)


def with_transformers(folder: Path) -> list[float]:
    from transformers import Trainer, TrainingArguments, default_data_collator

    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=4, num_train_epochs=1, use_cpu=True, report_to="none",
        disable_tqdm=True, save_strategy="no", logging_steps=1, ddp_backend="gloo",
    )  # fmt: skip
    rows = [{"input_ids": row, "labels": row} for row in ROWS]
    trainer = Trainer(make_model(), arguments, default_data_collator, rows, processing_class=make_tokenizer(SUITE))
    for callback in callbacks():
        trainer.add_callback(callback)
    trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


KINDS = {
    "lightning": with_lightning,
    "lightning_fsdp2": lambda folder: with_lightning(folder, sharded=True),
    "lightning_tensor": lambda folder: with_lightning(folder, tensor=True),
    "transformers": with_transformers,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[2])
    losses = KINDS[sys.argv[1]](place)
    if torch.distributed.get_rank() == 0:
        (place / "losses.json").write_text(json.dumps(losses))
    # Neither trainer leaves its groups, and a model split by DTensors keeps them alive even then: gloo's threads may abort
    # the interpreter's last moments. All is written, so there are none.
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
