"""One file of tensors: whether it is whole, what it is known by, and its tensors; no pickled code is run unless asked."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olmes_monitor.checkpoints.checkpoint import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

LEVELS = ("state_dict", "model_state_dict", "model", "module")
"""Entries that hold the model in a file that holds more (trainers' names; "module" is DeepSpeed's)."""
_SAMPLES, _SAMPLE = 16, 4096
_BITS = re.compile(r"\d+")
_BLOCKED = re.compile(r"GLOBAL ([\w.]+)|Unsupported class ([\w.]+)")


def why_cut_off(path: Path) -> str | None:
    """Why a file of weights is not whole, from its size and header; None if it looks whole.

    safetensors: the header says where the last tensor ends. torch's zip files: the directory stands at the very end, so a
    file that was cut off has none. A torch file in the format before 1.6 does not tell.
    """
    size = path.stat().st_size
    if size == 0:
        return f"{path.name} is empty"
    if path.suffix == ".safetensors":
        try:
            header, start = _safetensors_header(path)
        except ValueError as error:
            return f"{path.name} {error}"
        end = start + max(
            (entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0
        )
        return None if size == end else f"{path.name} has {size:,} bytes, its header says {end:,}"
    with path.open("rb") as file:
        if file.read(2) != b"PK":
            return None if file.seek(0) or file.read(1) == b"\x80" else f"{path.name} is no file of torch's"
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except zipfile.BadZipFile:
        return f"{path.name} is cut off: it ends before its directory"
    return None if entries else f"{path.name} is empty"


def fingerprint(path: Path) -> bytes:
    """Changes if the file's content does: its size, its header, checksums or samples of its data; not its name or times.

    A zip file's directory has a checksum of every tensor, so two files that one state was saved to are known to be equal
    even where the rest of them (paths, scores) is not. Of other files 16 blocks of 4 KiB are read.
    """
    found = hashlib.sha256()
    if path.suffix != ".safetensors" and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if "/data/" in entry.filename]
        for line in sorted(
            f"{entry.filename.split('/data/', 1)[1]} {entry.file_size} {entry.CRC}" for entry in entries
        ):
            found.update(line.encode())
        return found.digest()
    size = path.stat().st_size
    found.update(str(size).encode())
    with path.open("rb") as file:
        if path.suffix == ".safetensors":
            found.update(file.read(8 + int.from_bytes(file.read(8), "little")))
        for i in range(_SAMPLES):
            file.seek(max(0, size - _SAMPLE) * i // (_SAMPLES - 1))
            found.update(file.read(_SAMPLE))
    return found.digest()


def read_tensors(path: Path, allow_pickle: bool = False) -> dict[str, Tensor]:
    """The tensors of one file, on the CPU, as memory of their own. Raises CheckpointError."""
    with reading(path):
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return {name: tensor.clone() for name, tensor in load_file(path).items()}
        return {name: tensor.clone() for name, tensor in model_level(load_torch(path, allow_pickle), path).items()}


def load_torch(path: Path, allow_pickle: bool = False) -> Any:
    """What torch.save put into a file, tensors still on disk where the format allows. Raises CheckpointError."""
    import torch

    mapped = zipfile.is_zipfile(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=not allow_pickle, mmap=mapped)
    except pickle.UnpicklingError as error:
        blocked = _BLOCKED.search(str(error))
        if blocked is None:
            raise
        name = blocked[1] or blocked[2]
        raise CheckpointError(
            f"{path} holds an object of {name}, which could run code when read; if you trust the file, pass --allow-pickle"
        ) from error


def model_level(loaded: Any, path: Path) -> dict[str, Tensor]:
    """The model's tensors in what a file held: itself or its "state_dict", "model", …; the optimizer is left behind.

    Raises CheckpointError if there are none.
    """
    from torch import Tensor, nn

    while True:
        if isinstance(loaded, nn.Module):  # only with allow_pickle
            loaded = loaded.state_dict()
        inner = [loaded[level] for level in LEVELS if level in loaded] if isinstance(loaded, Mapping) else []
        inner = [value for value in inner if isinstance(value, Mapping | nn.Module)]
        if not inner:
            break
        loaded = inner[0]
    found = {str(k): v for k, v in loaded.items() if isinstance(v, Tensor)} if isinstance(loaded, Mapping) else {}
    if not found:
        raise CheckpointError(f"{path} holds no model: no tensors at its top level or under {', '.join(LEVELS)}")
    if split := [name for name, tensor in found.items() if hasattr(tensor, "device_mesh")]:
        raise CheckpointError(f"{path} is one rank's part of a sharded model ({split[0]} and {len(split) - 1} more)")
    return {name: tensor.detach() for name, tensor in found.items()}


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn whatever a read raises into a CheckpointError of one line; `vanished` if the files are gone."""
    try:
        yield
    except CheckpointError:
        raise
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} vanished while it was read", vanished=True) from error
    except Exception as error:
        # Libraries name a missing file in their own ways.
        if not Path(path).exists():
            raise CheckpointError(f"{path} vanished while it was read", vanished=True) from error
        cause = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise CheckpointError(f"{path} cannot be read: {cause}") from error


def _safetensors_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header and where the data begins. Raises ValueError, which says what is wrong after the file's name."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or 8 + length > size:
            raise ValueError(f"is cut off or has a corrupt header ({size:,} bytes, a header of {length:,})")
        text = file.read(length)
    try:
        header = json.loads(text)
        for name, entry in header.items():
            if name != "__metadata__":
                _check_entry(name, entry)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError("has a corrupt header") from None
    return header, 8 + length


def _check_entry(name: str, entry: dict[str, Any]) -> None:
    """ValueError unless a tensor's bytes are its shape times its type's width."""
    begin, end = entry["data_offsets"]
    kind = _BITS.search(entry["dtype"])
    bits = 8 if kind is None else int(kind[0])  # BOOL
    elements = 1
    for length in entry["shape"]:
        elements *= length
    if (end - begin) * 8 != elements * bits:
        raise ValueError(name)
