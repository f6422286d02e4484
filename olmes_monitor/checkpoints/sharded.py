"""Folders of torch.distributed.checkpoint, read in one process on the CPU, however many ranks wrote them."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olmes_monitor.checkpoints.checkpoint import CheckpointError
from olmes_monitor.checkpoints.weights import LEVELS, reading

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.checkpoint.metadata import Metadata

INSIDE = ("", "pytorch_model_fsdp_0")
"""Where in a checkpoint's folder the shards stand: in it, or (transformers and accelerate under FSDP) one deeper."""
_ADMITTED = {
    "torch.distributed.checkpoint.metadata": {
        "Metadata",
        "MetadataIndex",
        "TensorStorageMetadata",
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "TensorProperties",
        "StorageMeta",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "collections": {"OrderedDict"},
    "pathlib": {"PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"},
    "pathlib._local": {"PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"},
    "builtins": {"set"},
}


def shards_folder(path: Path) -> Path | None:
    """Where the shards are in a checkpoint's folder; None if there are none."""
    for inside in INSIDE:
        folder = path / inside
        if (folder / ".metadata").is_file() or any(folder.glob("*.distcp")):
            return folder
    return None


def why_shards_incomplete(path: Path) -> str | None:
    """Why a folder of shards is not whole: its index is missing, or a shard is missing or shorter than the index says."""
    folder = shards_folder(path)
    if folder is None or not (folder / ".metadata").is_file():
        return "its index .metadata is missing (it is written last)"
    ends: dict[str, int] = {}
    for entry in (read_metadata(folder).storage_data or {}).values():
        ends[entry.relative_path] = max(ends.get(entry.relative_path, 0), entry.offset + entry.length)
    for name, end in sorted(ends.items()):
        if not (folder / name).is_file():
            return f"its shard {name} is missing"
        if (size := (folder / name).stat().st_size) < end:
            return f"its shard {name} has {size:,} bytes, the index says {end:,}"
    return None


def read_shards(path: Path, allow_pickle: bool = False) -> dict[str, Tensor]:
    """The model's tensors, without the optimizer, by the names they had inside "model", "state_dict" and the like.

    Raises CheckpointError.
    """
    import torch
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    folder = shards_folder(path) or path
    with reading(path):
        metadata = read_metadata(folder, allow_pickle)
        names = _model_names(metadata)
        found: dict[str, Any] = {}
        for key in names:
            entry = metadata.state_dict_metadata[key]
            if isinstance(entry, TensorStorageMetadata):
                found[key] = torch.empty(entry.size, dtype=entry.properties.dtype)
        if not found:
            raise CheckpointError(
                f"{path} holds no model: its entries begin with {next(iter(names.values()), 'nothing')}"
            )

        class Reader(dcp.FileSystemReader):
            """The stock reader unpickles the index, whatever it holds."""

            def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
                return metadata

        # Reading in one process is what is meant here, in a job of many ranks too.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        dcp.load(found, storage_reader=Reader(folder), planner=planner, no_dist=True)
    return {names[key]: tensor for key, tensor in found.items()}


def read_metadata(folder: Path, allow_pickle: bool = False) -> Metadata:
    """The index of a folder of shards; of the pickle it is, only the index's own classes are admitted.

    Raises CheckpointError for any other class, unless `allow_pickle`.
    """
    with reading(folder), (folder / ".metadata").open("rb") as file:
        return pickle.load(file) if allow_pickle else _IndexUnpickler(file).load()


def _model_names(metadata: Metadata) -> dict[str, str]:
    """{key in the folder: name of the tensor in its model}; entries of an optimizer are left out.

    The planner's data has, for every key, the path of levels that led to it: ("app", "model", "layers.0.weight").
    """
    plan = metadata.planner_data if isinstance(metadata.planner_data, dict) else {}
    paths = {key: tuple(map(str, plan.get(key) or (key,))) for key in metadata.state_dict_metadata}
    paths = {key: path for key, path in paths.items() if not any(level.startswith("optim") for level in path)}
    modelled = {key: path for key, path in paths.items() if any(level in LEVELS for level in path[:-1])}
    names = {}
    for key, path in (modelled or paths).items():
        deepest = max((i for i, level in enumerate(path[:-1]) if level in LEVELS), default=-1)
        names[key] = ".".join(path[deepest + 1 :])
    return names


class _IndexUnpickler(pickle.Unpickler):
    """Admits the classes of torch.distributed.checkpoint's index and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "builtins" and name == "getattr":
            return _enum_member
        if name in _ADMITTED.get(module, ()) or (module == "torch" and _is_dtype(name)):
            return super().find_class(module, name)
        raise CheckpointError(
            f".metadata holds {module}.{name}, which could run code when it is read; if you trust it, pass --allow-pickle"
        )


def _is_dtype(name: str) -> bool:
    import torch

    return isinstance(getattr(torch, name, None), torch.dtype)


def _enum_member(of: Any, name: str) -> Any:
    """getattr, which older pickles of an enum's members call, for enums alone."""
    from enum import EnumMeta

    if not isinstance(of, EnumMeta):
        raise CheckpointError(f".metadata asks for the attribute {name} of {of!r}, which no index does")
    return of[name]
