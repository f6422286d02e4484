"""Of what kind a file or folder is, by the names in it."""

from __future__ import annotations

import re
from pathlib import Path

from olmes_monitor.checkpoints.checkpoint import Kind
from olmes_monitor.checkpoints.complete import INDEXES, SHARD, SINGLES
from olmes_monitor.checkpoints.sharded import shards_folder

TRAINER_FOLDER = re.compile(r"checkpoint-\d+")
UNFINISHED = re.compile(r"^(tmp[-_.]|\.)|\.tmp$|\.partial$|\.incomplete$", re.I)
"""Names of what is still being written, or is hidden: never looked into."""
_STATE_ENDINGS = (".pt", ".pth", ".bin", ".safetensors")
_NOT_A_MODEL = re.compile(
    r"(optimizer|optim|scheduler|scaler|rng_state|training_args|trainer_state|meta|dataloader|sampler|random_states|"
    r"adapter_model|ema_optim|events|zero_pp_rank|bf16_zero_pp_rank|mp_rank)([-_.].*)?",
    re.I,
)


def kind_of(path: Path) -> Kind | None:
    """The kind of checkpoint at `path`; None if it is none (a folder of checkpoints, an optimizer's file, …)."""
    if path.is_dir():
        return _kind_of_folder(path)
    if path.suffix == ".ckpt":
        return "lightning"
    if path.suffix in _STATE_ENDINGS and not _NOT_A_MODEL.fullmatch(path.name):
        # A shard belongs to its folder; so does a file that a folder's kind is known by.
        belongs = path.name in SINGLES or SHARD.fullmatch(path.name)
        return None if belongs else "state_dict"
    return None


def is_hub_folder(path: Path) -> bool:
    """Whether a folder is laid out as the hub's cache: refs/<revision> hold commits, snapshots/<commit> the files."""
    return (path / "refs").is_dir() and (path / "snapshots").is_dir()


def _kind_of_folder(path: Path) -> Kind | None:
    names = {entry.name for entry in path.iterdir()}
    if "adapter_config.json" in names:
        return "peft"
    if names.intersection((*INDEXES, *SINGLES)) or any(map(SHARD.fullmatch, names)):
        return "transformers"
    if shards_folder(path) is not None or ("meta.pt" in names and path.suffix == ".ckpt"):
        return "lightning_sharded" if "meta.pt" in names or path.suffix == ".ckpt" else "dcp"
    if path.suffix == ".ckpt" and not names:
        return "lightning_sharded"
    # A trainer's folder is a checkpoint before anything is in it, unless others stand in it.
    if TRAINER_FOLDER.fullmatch(path.name) and not any(kind_of(inner) for inner in path.iterdir()):
        return "transformers"
    return None
