"""From a batch to log-likelihoods, on any causal language model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from olmes_monitor.errors import SetupError
from olmes_monitor.scoring.plan import Batch, Reads

SLICE_ELEMENTS = 2**26
"""Logits turned into log-probabilities at once, in float32: 256 MiB, whatever the vocabulary."""


def unwrap(model: nn.Module) -> nn.Module:
    """The module to call: without torch.compile's wrapper and without DDP's or DataParallel's.

    A compiled wrapper would compile again for the evaluation's shapes; DDP's forward is a collective that no other rank
    may be making. Sharding wrappers (FSDP) stay: their forward is what gathers the weights.
    """
    while True:
        original = getattr(model, "_orig_mod", None)
        if isinstance(original, nn.Module):
            model = original
        elif isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        else:
            return model


def is_sharded(model: nn.Module) -> bool:
    """Whether a forward of this model is a collective: every rank must then make the same number of them."""
    from torch.distributed.tensor import DTensor

    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        return True
    # DeepSpeed ZeRO-3 marks the parameters it has partitioned.
    return any(isinstance(parameter, DTensor) or hasattr(parameter, "ds_id") for parameter in model.parameters())


NOT_DATA_PARALLEL = ("tp", "tensor", "cp", "context", "pp", "pipeline", "sp", "sequence")
"""How the dimensions of a device mesh begin whose ranks must be fed the same rows, or parts of them."""


def why_not_spread(model: nn.Module) -> str | None:
    """Why the ranks must not each score questions of their own through this model, in words; None if they may.

    In a tensor-, context- or pipeline-parallel group every rank must be fed the same rows: given different ones, the
    forward mixes them up without an error.
    """
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    sharded = [parameter for parameter in model.parameters() if isinstance(parameter, DTensor)]
    if sharded and not any(isinstance(module, FSDPModule) for module in model.modules()):
        return "its weights are split over ranks, but not by FSDP (tensor parallel)"
    names = {name for parameter in sharded for name in parameter.device_mesh.mesh_dim_names or ()}
    groups = sorted(name for name in names if name.lower().startswith(NOT_DATA_PARALLEL))
    return f"its device mesh has the dimensions {', '.join(groups)}" if groups else None


def device_of(model: nn.Module) -> torch.device:
    """Where the model takes its input: the device of its first parameter or buffer."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


def vocabulary_of(model: nn.Module) -> int | None:
    """Rows of the model's token embedding, where one can be found; ids from there on cannot be looked up."""
    find = getattr(model, "get_input_embeddings", None)
    if callable(find):
        try:
            embedding = find()
        except NotImplementedError:
            embedding = None
        if hasattr(embedding, "num_embeddings"):
            return int(embedding.num_embeddings)
    sizes = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)]
    return max(sizes, default=None)


def context_of(model: nn.Module) -> int | None:
    """Longest input the model's config declares, in tokens; None where it declares none."""
    config = getattr(model, "config", None)
    for name in ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx", "block_size", "seq_length"):
        value = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


class Forward:
    """The plain path: ids in, logits out, on anything that maps token ids to logits causally."""

    def __init__(self, model: nn.Module) -> None:
        self.model = unwrap(model)
        parameters = forward_parameters(self.model)
        self._by_name = "input_ids" in parameters
        self._kwargs = {"use_cache": False} if "use_cache" in parameters else {}
        # In transformers' own models this argument takes a 1-D index tensor; elsewhere its meaning is not known.
        self.keeps = "logits_to_keep" in parameters and is_transformers(self.model)

    def __call__(self, ids: Tensor, keep: Tensor | None = None) -> Tensor:
        """ids int64 (rows, length) → logits (rows, length, vocabulary) in the model's own dtype.

        `keep`: int64 (positions,); the result then has only these positions, in this order. Allowed where `self.keeps`.
        """
        kwargs = self._kwargs if keep is None else {**self._kwargs, "logits_to_keep": keep}
        return logits_of(self.model(input_ids=ids, **kwargs) if self._by_name else self.model(ids, **kwargs))

    def run(self, batch: Batch, device: torch.device) -> Tensor:
        """ln p of every target of a batch: (targets,), on the device. Makes no host synchronization."""
        ids = torch.from_numpy(batch.ids).to(device, non_blocking=True)
        if not self.keeps:
            return log_likelihoods(self(ids), batch.reads, batch.reads.position)
        # The LM head runs only where some row of the batch is read: full-vocabulary logits are what fills memory.
        kept, column = np.unique(batch.reads.position, return_inverse=True)
        return log_likelihoods(self(ids, torch.from_numpy(kept).to(device, non_blocking=True)), batch.reads, column)

    def check(self, ids: Tensor) -> None:
        """One small forward; raises SetupError where its result is not logits of shape (rows, length, vocabulary)."""
        try:
            logits = self(ids)
        except SetupError:
            raise
        except Exception as error:
            raise SetupError(
                f"{type(self.model).__name__} does not take token ids of shape {tuple(ids.shape)}: "
                f"{type(error).__name__}: {error}. Pass the language model itself (model=...)"
            ) from error
        if logits.ndim != 3 or logits.shape[:2] != ids.shape:
            raise SetupError(
                f"{type(self.model).__name__} returned logits of shape {tuple(logits.shape)} for ids of shape "
                f"{tuple(ids.shape)}; expected (rows, length, vocabulary). Pass the language model itself (model=...)"
            )


def log_likelihoods(logits: Tensor, reads: Reads, column: np.ndarray) -> Tensor:
    """ln p of every target: (targets,), on the logits' device, by a log-softmax in bounded slices.

    In float32, or float64 where the logits are. logits: (rows, columns, vocabulary), any float dtype. column: int64
    (reads,), where each read stands in a row.
    """

    def put(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array.astype(np.int64, copy=False)).to(logits.device, non_blocking=True)

    row, position, read, target = put(reads.row), put(column), put(reads.read), put(reads.target)
    step = max(1, SLICE_ELEMENTS // logits.shape[-1])
    dtype = torch.promote_types(logits.dtype, torch.float32)
    result = torch.empty(len(reads.target), dtype=dtype, device=logits.device)
    for first in range(0, len(reads.row), step):
        last = min(first + step, len(reads.row))
        mine = slice(*np.searchsorted(reads.read, [first, last]))
        chosen = logits[row[first:last], position[first:last]].to(dtype)
        own = read[mine] - first
        result[mine] = chosen[own, target[mine]] - chosen.logsumexp(-1)[own]
    return result


def forward_parameters(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """The arguments of a model's forward. Of its class: trainers replace the instance's by a wrapper of it."""
    return inspect.signature(type(_innermost(model)).forward).parameters


def is_transformers(model: nn.Module) -> bool:
    """Whether a model is one of transformers' own. (FSDP2 puts a class of its own in front of the model's.)"""
    classes = [base for base in type(_innermost(model)).__mro__ if base.__module__.split(".")[0] != "torch"]
    return classes[0].__module__.startswith("transformers.models.")


def _innermost(model: nn.Module) -> nn.Module:
    """The module whose forward signature counts, beneath sharding wrappers that take *args."""
    inner = getattr(model, "module", None)
    return _innermost(inner) if isinstance(inner, nn.Module) else model


def logits_of(output: Any) -> Tensor:
    """Logits from a tensor, an object or mapping with logits, or a tuple whose first tensor of three dimensions they are."""
    if isinstance(output, Tensor):
        return output
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(found, Tensor):
        return found
    if isinstance(output, tuple | list):
        for item in output:
            if isinstance(item, Tensor) and item.ndim == 3:
                return item
    raise SetupError(
        f"the model returned a {type(output).__name__} without logits; it must return a tensor (rows, length, "
        "vocabulary), a tuple that holds one, or an object with .logits"
    )
