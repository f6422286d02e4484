"""Checkpoints of tiny real models, saved as trainers save them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from parts import make_llama


def save_folder(folder: Path, seed: int = 0, step: int | None = None, **config) -> Path:
    """A transformers folder; with `step` also a trainer's state."""
    make_llama(seed=seed, **config).save_pretrained(folder)
    if step is not None:
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "num_input_tokens_seen": 0}))
    return folder


def save_ckpt(path: Path, seed: int = 0, prefix: str = "model.", step: int = 2, **entries) -> Path:
    """What Lightning's trainer writes, as far as a scan reads it."""
    state = {prefix + name: tensor for name, tensor in make_llama(seed=seed).state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"state_dict": state, "global_step": step, "callbacks": {}, **entries}, path)
    return path


def same_weights(model, other) -> bool:
    """Whether two models have equal tensors under equal names."""
    mine, others = model.state_dict(), other.state_dict()
    return mine.keys() == others.keys() and all(torch.equal(mine[name], others[name]) for name in mine)
