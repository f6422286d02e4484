"""Whether a checkpoint's files are whole, and what its content is known by."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Iterable
from pathlib import Path

from olmes_monitor.checkpoints.checkpoint import Checkpoint, CheckpointError
from olmes_monitor.checkpoints.sharded import shards_folder, why_shards_incomplete
from olmes_monitor.checkpoints.weights import fingerprint, why_cut_off

VANISHED = "vanished"
"""How the reason of a checkpoint begins whose files are gone."""
INDEXES = (
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "adapter_model.safetensors.index.json",
)
SINGLES = ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin")
SHARD = re.compile(r"(.+)-\d{5}-of-(\d{5})\.(safetensors|bin)")
_SIDE_FILES = ("config.json", "adapter_config.json")
_TRAINER_FOLDER = re.compile(r"checkpoint-\d+")
_WRITTEN_BEFORE_STATE = ("optimizer.pt", "optimizer.bin", "scheduler.pt", "rng_state*.pth", "training_args.bin")
_FRESH, LOOK = 5.0, 0.2  # seconds: a file touched so lately is looked at twice, so long apart


def why_incomplete(checkpoint: Checkpoint) -> tuple[str, bool] | None:
    """(reason, whether waiting may mend it), or None if the files look whole.

    Cheap: only sizes, headers and indexes are read. Every shard an index names must be there, each file as long as its
    header says, the trainer's state readable; files written in the last seconds are looked at twice, and must not have
    grown. A checkpoint whose files are gone gets a reason that begins with VANISHED.
    """
    if checkpoint.kind == "hub":
        from olmes_monitor.checkpoints.hub import as_folder

        # What is not on this machine yet arrives whole: the download checks it.
        inner = as_folder(checkpoint, download=False)
        return None if inner is None else why_incomplete(inner)
    first = look_at([checkpoint])
    found = why_not_whole(checkpoint)
    if found is None and first:
        time.sleep(LOOK)
        growing = sorted(path.name for path in grown(first))
        return (f"{growing[0]} is being written", True) if growing else None
    return found


def why_not_whole(checkpoint: Checkpoint) -> tuple[str, bool] | None:
    """why_incomplete of one look."""
    try:
        reason = _why(checkpoint)
        return None if reason is None else (reason, True)
    except CheckpointError as error:
        # A pickled index that is refused stays refused.
        return (f"{VANISHED}: {error}" if error.vanished else str(error)), False
    except OSError as error:
        if Path(checkpoint.path).exists():
            return f"cannot be read: {error}", True
        return f"{VANISHED}: {checkpoint.path} was deleted", False


def look_at(checkpoints: Iterable[Checkpoint]) -> dict[Path, tuple[int, int]]:
    """{file of weights touched in the last seconds: its size and time}, for a second look with `grown`."""
    now, found = time.time(), {}
    for checkpoint in checkpoints:
        for file in checkpoint.files:
            # What is gone by now is told by whoever reads it.
            with contextlib.suppress(OSError):
                stat = file.stat()
                if abs(now - stat.st_mtime) < _FRESH:
                    found[file] = (stat.st_size, stat.st_mtime_ns)
    return found


def grown(first: dict[Path, tuple[int, int]]) -> set[Path]:
    """The files that were written to since the first look."""
    found = set()
    for file, seen in first.items():
        with contextlib.suppress(OSError):
            stat = file.stat()
            if (stat.st_size, stat.st_mtime_ns) != seen:
                found.add(file)
    return found


def content_key(checkpoint: Checkpoint) -> str:
    """Names, sizes, headers, checksums or samples of a checkpoint's weights and its config, as 16 hex digits.

    The same for two copies of one state, whatever their times; another for any two steps of a run.
    """
    found = hashlib.sha256()
    folder = Path(checkpoint.path)
    for path in checkpoint.files:
        # A lone file may bear any name (last.ckpt is a copy of another).
        found.update(path.name.encode() if folder.is_dir() else b"")
        found.update(path.read_bytes() if path.name == ".metadata" else fingerprint(path))
    for name in _SIDE_FILES:
        if (folder / name).is_file():
            found.update((folder / name).read_bytes())
    return found.hexdigest()[:16]


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The files of weights of a folder in transformers' or PEFT's format: the single one, or all shards of the index.

    Without an index the shards there are; empty if there is nothing. Raises ValueError for an index that cannot be read.
    """
    for name in INDEXES:
        if (folder / name).is_file():
            shards = json.loads((folder / name).read_text())["weight_map"].values()
            return tuple(folder / shard for shard in sorted(set(shards)))
    for name in SINGLES:
        if (folder / name).is_file():
            return (folder / name,)
    return tuple(sorted(path for path in folder.iterdir() if SHARD.fullmatch(path.name)))


def _why(checkpoint: Checkpoint) -> str | None:
    path = Path(checkpoint.path)
    path.stat()
    return _why_folder(checkpoint, path) if path.is_dir() else why_cut_off(path)


def _why_folder(checkpoint: Checkpoint, path: Path) -> str | None:
    if checkpoint.kind in ("dcp", "lightning_sharded"):
        reason = why_shards_incomplete(path)
        if reason is None and checkpoint.kind == "lightning_sharded":
            # Written last, so it tells that the shards are whole.
            reason = why_cut_off(path / "meta.pt") if (path / "meta.pt").is_file() else "its meta.pt is missing"
    else:
        reason = _why_weights(path)
        if checkpoint.kind == "peft" and not (path / "adapter_config.json").is_file():
            reason = reason or "its adapter_config.json is missing (it is written last)"
    return reason or _why_state(path)


def _why_weights(path: Path) -> str | None:
    try:
        files = weight_files(path)
    except (ValueError, KeyError, AttributeError):
        return "the index of its shards cannot be read"
    if not files:
        return "it holds no weights"
    indexed = any((path / name).is_file() for name in INDEXES)
    if not indexed and (shard := SHARD.fullmatch(files[0].name)):
        return f"the index of its {int(shard[2])} shards is missing ({len(files)} are there)"
    for file in files:
        if not file.is_file():
            return f"its shard {file.name} is missing"
        if (reason := why_cut_off(file)) is not None:
            return reason
    return None


def _why_state(path: Path) -> str | None:
    """transformers' trainer writes trainer_state.json last."""
    state = path / "trainer_state.json"
    if state.is_file():
        try:
            return None if isinstance(json.loads(state.read_text()), dict) else "its trainer_state.json is no object"
        except ValueError:
            return "its trainer_state.json cannot be read"
    started = any(any(path.glob(kind)) for kind in _WRITTEN_BEFORE_STATE)
    if _TRAINER_FOLDER.fullmatch(path.name) and started:
        return "its trainer_state.json is missing (it is written last)"
    return None


def shard_files(path: Path) -> tuple[Path, ...]:
    """The files of a folder of torch.distributed.checkpoint: its index first."""
    folder = shards_folder(path) or path
    return tuple(sorted(folder.glob(".metadata"))) + tuple(sorted(folder.glob("*.distcp")))
