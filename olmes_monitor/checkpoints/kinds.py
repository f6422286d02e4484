"""Of what kind a file or folder is, by the names in it."""

from __future__ import annotations

import re
from pathlib import Path

from olmes_monitor.checkpoints.checkpoint import Checkpoint, Kind
from olmes_monitor.checkpoints.complete import INDEXES, SHARD, SINGLES, shard_files, weight_files
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


def describe(path: Path, kind: Kind) -> Checkpoint:
    """A checkpoint of which only place, kind and files are known. Raises OSError if it vanished."""
    if kind in ("dcp", "lightning_sharded"):
        files = shard_files(path)
    elif path.is_file():
        files = (path,)
    else:
        try:
            files = weight_files(path)
        except (ValueError, KeyError, AttributeError):  # an index that cannot be read: why_incomplete says so
            files = ()
    return Checkpoint(path, kind, None, None, files=files)


def _kind_of_folder(path: Path) -> Kind | None:
    names = {entry.name for entry in path.iterdir()}
    if names & {"adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"}:
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
