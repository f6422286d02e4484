"""Saved tensors put into a model: every name accounted for, or an error and the model untouched."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from olmes_monitor.checkpoints.checkpoint import CheckpointError

logger = logging.getLogger("olmes_monitor")

WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Names that torch.compile, FSDP and activation checkpointing put between two others; no model has them of its own."""
_SHOWN = 3
_APART = "_olmes_monitor_apart"
"""Of a model: {name: the name it is tied to}, of those that have values of their own just now."""


@dataclass(frozen=True)
class Slot:
    """One tensor of a model that a checkpoint must fill, under all its names."""

    tensor: Tensor
    """The parameter, or the persistent buffer."""
    names: tuple[str, ...]
    """More than one where weights are tied; the first is the model's own order's first."""


def slots_of(model: nn.Module) -> list[Slot]:
    """Every parameter and persistent buffer of a model once, with all its names. Tied tensors are one object; those that
    `fill` keeps apart for now count as tied."""
    found: dict[int, tuple[Tensor, list[str]]] = {}
    # A module's extra state is no tensor.
    tensors = {name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}
    apart = getattr(model, _APART, {})
    for name in tensors:
        tensor = tensors[apart.get(name, name)]
        found.setdefault(id(tensor), (tensor, []))[1].append(name)
    return [Slot(tensor, tuple(names)) for tensor, names in found.values()]


def strip_prefix(state: dict[str, Tensor], slots: list[Slot], place: Any) -> dict[str, Tensor]:
    """The state by the model's names: wrappers taken out of the names, then the one prefix that makes them match.

    `module._orig_mod.model.` in any order, a LightningModule's `lm.`; a prefix of the model's own (`model.` of a Llama)
    stays, since without it nothing matches. Raises CheckpointError if two prefixes fit equally well (student and teacher),
    or if two names become one.
    """
    plain = {name: ".".join(part for part in name.split(".") if part not in WRAPPERS) for name in state}
    if len(set(plain.values())) < len(plain):
        raise CheckpointError(f"{place}: two of its names become one without {', '.join(WRAPPERS)}")
    renamed = {plain[name]: tensor for name, tensor in state.items()}
    # A prefix counts a tied tensor once, under whichever name.
    own = {name: i for i, slot in enumerate(slots) for name in slot.names}
    pairs = {(prefix, own[rest]) for name in renamed for prefix, rest in splits(name) if rest in own}
    fits = Counter(prefix for prefix, _ in pairs)
    if not fits:
        return renamed
    best = max(fits.values())
    prefixes = [prefix for prefix, count in fits.items() if count == best]
    if len(prefixes) > 1:
        if best < len(slots):
            # Nothing fits as a whole; the shortest gives the plainest list of what is missing.
            prefixes = [min(prefixes, key=len)]
        else:
            names = " and ".join(repr(prefix) for prefix in sorted(prefixes))
            raise CheckpointError(
                f"{place} holds the model more than once, under {names}; --model-factory package.module:function can make "
                "a module that has all of them and answers with the right one"
            )
    return {
        (name.removeprefix(prefixes[0]) if name.startswith(prefixes[0]) else name): tensor
        for name, tensor in renamed.items()
    }


def misfits(state: dict[str, Tensor], slots: list[Slot]) -> str | None:
    """What keeps a state from being this model's weights, in words; None if all fits.

    Each slot needs a saved tensor of its shape and kind under one of its names at least, and each saved name a slot.
    """
    known = {name: slot for slot in slots for name in slot.names}
    missing = [slot.names[0] for slot in slots if not any(name in state for name in slot.names)]
    unexpected = sorted(set(state) - set(known))
    wrong = [
        f"{name} is {_shape(tensor)} and not {_shape(known[name].tensor)}"
        for name, tensor in state.items()
        if name in known and tensor.shape != known[name].tensor.shape
    ]
    if wrong and any(0 in tensor.shape for name, tensor in state.items() if name in known):
        wrong.append("an empty shape is a rank's part of a sharded run, saved without gathering")
    kinds = [
        f"{name} is {tensor.dtype} and not {known[name].tensor.dtype}"
        for name, tensor in state.items()
        if name in known and tensor.is_floating_point() != known[name].tensor.is_floating_point()
    ]
    parts = [
        _listed("missing", missing),
        _listed("unexpected", unexpected),
        _listed("of another shape", wrong),
        _listed("of another type", kinds),
    ]
    return "; ".join(part for part in parts if part) or None


@torch.no_grad()
def fill(model: nn.Module, slots: list[Slot], state: dict[str, Tensor], as_saved: bool) -> None:
    """Copy a state that fits (`misfits` is None) into the model, in place; with `as_saved` in the dtypes it was saved in.

    Names of one tied tensor that were saved with different values each get their own, with a warning, until the next state.
    """
    for name, first in getattr(model, _APART, {}).items():
        _put(model, name, model.get_parameter(first))
    apart: dict[str, str] = {}
    for slot in slots:
        name = next(name for name in slot.names if name in state)
        tensor = state[name]
        if as_saved and slot.tensor.dtype != tensor.dtype and tensor.is_floating_point():
            slot.tensor.data = slot.tensor.data.to(tensor.dtype)
        slot.tensor.copy_(tensor)
        for other in slot.names:
            if other not in state or torch.equal(tensor, state[other]):
                continue
            logger.warning(
                "%s and %s are tied in the model but saved with different values; each keeps its own", name, other
            )
            value = state[other].to(slot.tensor.device, slot.tensor.dtype, copy=True)
            _put(model, other, nn.Parameter(value, requires_grad=False))
            apart[other] = slot.names[0]
    object.__setattr__(model, _APART, apart)


def _put(model: nn.Module, name: str, parameter: nn.Parameter) -> None:
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, parameter)


def splits(name: str) -> Iterator[tuple[str, str]]:
    """Every way to cut a dotted name in two: ("", "a.b"), ("a.", "b")."""
    yield "", name
    for i, letter in enumerate(name):
        if letter == ".":
            yield name[: i + 1], name[i + 1 :]


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a scalar"


def _listed(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)} {what}: {', '.join(names[:_SHOWN])}{more}"
