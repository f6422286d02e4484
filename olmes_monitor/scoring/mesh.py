"""How a model is split over the ranks: which of them must be fed the same rows, and which splits are refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

DATA = {"dp", "ddp", "fsdp", "hsdp", "data", "shard", "replicate", "world"}
TENSOR = {"tp", "tensor"}
REFUSED = {
    "cp": "context parallel", "context": "context parallel", "sp": "sequence parallel", "sequence": "sequence parallel",
    "ulysses": "sequence parallel", "pp": "pipeline parallel", "pipeline": "pipeline parallel",
    "pipe": "pipeline parallel", "ep": "expert parallel", "expert": "expert parallel",
}  # fmt: skip
"""Words in the name of a mesh dimension whose ranks each see a part of the rows, of the layers or of the experts."""
PIPELINES = ("PipelineModule", "PipelineEngine")
"""DeepSpeed's classes: their forward takes a stage's input, not token ids."""


def split(model: nn.Module) -> tuple[tuple[int, ...] | None, str | None]:
    """(group, reason): the ranks that must be fed the same rows as this one, itself included, ascending; None: it alone.

    reason: in words, why this model's ranks cannot score questions; None if they can. Ranks of a tensor-parallel group
    each hold a part of every layer: given different rows, their forwards mix them up without an error. Found are the
    meshes of the parameters that are DTensors and the mesh that transformers notes on a model.
    """
    pipeline = next((type(m).__name__ for m in model.modules() if type(m).__name__ in PIPELINES), None)
    if pipeline is not None:
        return None, f"{pipeline} splits its layers over ranks (pipeline parallel)"
    group: tuple[int, ...] | None = None
    sharded = is_fsdp2(model)
    for mesh, splits in _meshes(model):
        dims = []
        for dim, size in enumerate(mesh.shape):
            name = (mesh.mesh_dim_names or ("",) * mesh.ndim)[dim]
            kind = kind_of(name)
            if size == 1 or kind == "data":
                continue
            if kind is None and sharded and splits == 1:
                continue  # FSDP's own mesh, whatever its dimensions are called
            if kind is None and sharded:
                return None, f"what its device mesh's dimension {name!r} splits is not known (name it dp, fsdp or tp)"
            if kind not in (None, "tensor"):
                return None, f"its device mesh has a dimension {name!r} of {size} ranks ({kind})"
            dims.append(dim)
        found = _ranks_along(mesh, dims)
        if len(found) > 1 and group not in (None, found):
            return None, f"its parts are split over different groups of ranks ({group} and {found})"
        if len(found) > 1:
            group = found
    return group, None


def kind_of(name: str) -> str | None:
    """What a mesh dimension of this name splits: "data", "tensor", a refused kind in words, or None: it does not say."""
    words = set(re.split(r"[^a-z]+", name.lower()))
    refused = sorted(words & REFUSED.keys())
    if refused:
        return REFUSED[refused[0]]
    return "tensor" if words & TENSOR else "data" if words & DATA else None


def is_fsdp2(model: nn.Module) -> bool:
    """Whether `fully_shard` was applied to the model or a part of it."""
    from torch.distributed.fsdp import FSDPModule

    return any(isinstance(module, FSDPModule) for module in model.modules())


def is_sharded(model: nn.Module) -> bool:
    """Whether a forward of this model is a collective: every rank must then make the same number of them."""
    from torch.distributed.tensor import DTensor

    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        return True
    # DeepSpeed ZeRO-3 marks the parameters it has partitioned.
    if any(isinstance(parameter, DTensor) or hasattr(parameter, "ds_id") for parameter in model.parameters()):
        return True
    return any(size > 1 for mesh, _ in _meshes(model) for size in mesh.shape)


def _meshes(model: nn.Module) -> Iterator[tuple[Any, int]]:
    """(mesh, dimensions of it along which some parameter is split): each distinct mesh once."""
    from torch.distributed.tensor import DTensor, Shard

    splits: dict[Any, int] = {}
    for parameter in model.parameters():
        if isinstance(parameter, DTensor):
            # FSDP over tensor parallel shards with a class of its own, beside Shard.
            split = sum(isinstance(p, Shard) or "Shard" in type(p).__name__ for p in parameter.placements)
            splits[parameter.device_mesh] = max(split, splits.get(parameter.device_mesh, 0))
    noted = {id(m): m for m in (vars(module).get("_device_mesh") for module in model.modules()) if hasattr(m, "shape")}
    yield from splits.items()
    yield from ((mesh, 0) for mesh in noted.values())


def _ranks_along(mesh: Any, dims: list[int]) -> tuple[int, ...]:
    """The ranks of this rank's group along some dimensions of a mesh, ascending; empty if this rank is not in it."""
    here = mesh.get_coordinate()
    if here is None or not dims:
        return ()
    place = tuple(slice(None) if dim in dims else here[dim] for dim in range(mesh.ndim))
    ranks: torch.Tensor = mesh.mesh[place]
    return tuple(sorted(ranks.flatten().tolist()))
