"""From a batch to log-likelihoods, on any causal language model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from olmes_monitor.errors import SetupError
from olmes_monitor.scoring.gathers import Gathers
from olmes_monitor.scoring.head import WHOLE_ELEMENTS, Head, log_likelihoods
from olmes_monitor.scoring.plan import Batch, Reads


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
        self._kwargs: dict[str, Any] = {"use_cache": False} if "use_cache" in parameters else {}
        # In transformers' own models this argument takes a 1-D index tensor; elsewhere its meaning is not known.
        self.keeps = "logits_to_keep" in parameters and is_transformers(self.model)
        self.gathers = Gathers(self.model)
        self.head: Head | None = None
        """The LM head, where it may be run in slices: see `path.choose_head`."""

    @property
    def max_reads(self) -> int | None:
        """Most positions to read in one call, so that their logits are bounded; None where slices bound them (or no plan
        can: a model that knows no `logits_to_keep` makes logits of every position)."""
        if self.head is not None or not self.keeps:
            return None
        return max(1, WHOLE_ELEMENTS // (vocabulary_of(self.model) or 1))

    def __call__(self, ids: Tensor, keep: Tensor | None = None) -> Tensor:
        """ids int64 (rows, length) → logits (rows, length, vocabulary) in the model's own dtype.

        `keep`: int64 (positions,); the result then has only these positions, in this order. Allowed where `self.keeps`.
        """
        return logits_of(self._call(ids, **self._kwargs, **({} if keep is None else {"logits_to_keep": keep})))

    def run(self, batch: Batch, device: torch.device) -> Tensor:
        """ln p of every target of a batch: (targets,), on the device. Makes no host synchronization."""
        ids, kwargs, column = (
            torch.from_numpy(batch.ids).to(device, non_blocking=True),
            dict(self._kwargs),
            batch.reads.position,
        )
        if self.keeps:
            # The LM head runs only where some row of the batch is read: full-vocabulary logits are what fills memory.
            kept, column = np.unique(column, return_inverse=True)
            kwargs["logits_to_keep"] = positions(kept, device)
        return self.read(batch.reads, column, ids, **kwargs)

    def read(self, reads: Reads, column: np.ndarray, ids: Tensor, **inputs: Any) -> Tensor:
        """One call of the model and ln p of its targets: (targets,).

        column: int64 (reads,), where each read stands among the positions that reach the head.
        """
        if self.head is None or not len(reads.row):
            return log_likelihoods(logits_of(self._call(ids, **inputs)), reads, column)
        with self.head.reading(reads, column) as found:
            self._call(ids, **inputs)
        if len(found) != 1:
            raise RuntimeError(f"the LM head ran {len(found)} times in one forward")
        return found[0]

    def _call(self, ids: Tensor, **inputs: Any) -> Any:
        return self.model(input_ids=ids, **inputs) if self._by_name else self.model(ids, **inputs)

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


def positions(places: np.ndarray, device: torch.device) -> Tensor:
    """int64 (places,) for logits_to_keep. At least one: what a model does with none is not known; it is then not read."""
    places = places if len(places) else np.zeros(1, dtype=np.int64)
    return torch.from_numpy(places.astype(np.int64, copy=False)).to(device, non_blocking=True)


def forward_parameters(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """The arguments of a model's forward. Of its class: trainers replace the instance's by a wrapper of it."""
    return inspect.signature(type(innermost(model)).forward).parameters


def is_transformers(model: nn.Module) -> bool:
    """Whether a model is one of transformers' own. (FSDP2 puts a class of its own in front of the model's.)"""
    classes = [base for base in type(innermost(model)).__mro__ if base.__module__.split(".")[0] != "torch"]
    return classes[0].__module__.startswith("transformers.models.")


def innermost(model: nn.Module) -> Any:
    """The module itself, beneath wrappers (FSDP1, DeepSpeed, a compiled module) whose own forward takes anything."""
    kinds = {parameter.kind for parameter in inspect.signature(type(model).forward).parameters.values()}
    for name in ("module", "_orig_mod"):
        inner = getattr(model, name, None)
        if isinstance(inner, nn.Module) and inspect.Parameter.VAR_POSITIONAL in kinds:
            return innermost(inner)
    return model


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
