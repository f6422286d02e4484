"""What two ranks save together: run by test_load_formats in processes joined by gloo."""

from __future__ import annotations

from pathlib import Path

import torch
from parts import make_llama


def save_dcp(rank: int, folder: str, level: str) -> None:
    """A Llama sharded by FSDP2 after one AdamW step, saved with its optimizer by torch.distributed.checkpoint."""
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = _one_step(rank, make_llama(seed=1))
    weights, optimizer_state = get_state_dict(model, optimizer)
    saved = {
        "flat": weights,
        "model": {"model": weights, "optimizer": optimizer_state, "step": 3},
        "app": {"app": {"model": weights, "optim": optimizer_state}, "counter": torch.ones(2)},
    }[level]
    dcp.save(saved, checkpoint_id=folder)
    whole = {name: value.full_tensor() for name, value in weights.items()}
    if rank == 0:
        torch.save(whole, Path(folder).parent / "whole.pt")


def fit_lightning(rank: int, folder: str) -> None:
    """Lightning's ModelParallelStrategy over FSDP2, which saves a folder of shards with meta.pt."""
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.strategies import ModelParallelStrategy
    from torch.distributed.fsdp import fully_shard

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.lm = make_llama(seed=1)

        def configure_model(self):
            fully_shard(self.lm, mesh=self.device_mesh["data_parallel"])

        def training_step(self, batch, _):
            return self.lm(input_ids=batch["input_ids"], labels=batch["input_ids"]).loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    module = Module()
    trainer = pl.Trainer(
        max_steps=2,
        accelerator="cpu",
        devices=2,
        strategy=ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
        callbacks=[ModelCheckpoint(folder, every_n_train_steps=1, save_top_k=-1)],
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    rows = [{"input_ids": torch.arange(i, i + 9)} for i in range(8)]
    trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=2))
    whole = {name: value.full_tensor() for name, value in module.lm.state_dict().items()}
    if rank == 0:
        torch.save(whole, Path(folder) / "whole.pt")


def _one_step(rank: int, model):
    from torch.distributed.fsdp import fully_shard

    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    ids = torch.arange(rank, rank + 9)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    return model, optimizer
