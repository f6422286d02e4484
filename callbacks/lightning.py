"""What OLMESCallback needs from a Lightning Trainer. Nothing here imports Lightning: either of its packages will do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from torch import nn

from olmes_monitor.errors import SetupError
from olmes_monitor.scoring.forward import unwrap


def find_model(module: nn.Module, model: nn.Module | Callable[[Any], nn.Module] | None) -> nn.Module:
    """The language model of a LightningModule: as the user says, else its only child with weights, else itself.

    Raises SetupError where there are several candidates.
    """
    if isinstance(model, nn.Module):
        return model
    if model is not None:
        found = model(module)
        if not isinstance(found, nn.Module):
            raise SetupError(f"model= returned a {type(found).__name__}, not a torch.nn.Module")
        return found
    children = {name: child for name, child in module.named_children() if any(True for _ in child.parameters())}
    pretrained = {name: child for name, child in children.items() if _is_pretrained(unwrap(child))}
    candidates = pretrained or children
    if len(candidates) == 1:
        return next(iter(candidates.values()))
    if "model" in candidates:
        return candidates["model"]
    if any("forward" in vars(base) for base in type(module).__mro__ if not _is_lightning(base)):
        return module
    names = ", ".join(candidates) or "none"
    raise SetupError(
        f"cannot tell which part of {type(module).__name__} is the language model (parts with weights: {names}); pass "
        "OLMESCallback(model=lambda module: module.<the part>)"
    )


def find_tokenizer(trainer: Any, module: nn.Module, tokenizer: Any) -> Any:
    """The tokenizer: as the user says, else an attribute of the LightningModule or the datamodule.

    Raises SetupError where there is none.
    """
    if tokenizer is not None:
        return tokenizer
    for holder in (module, getattr(trainer, "datamodule", None)):
        for name in ("tokenizer", "processing_class"):
            # vars-free lookup: LightningModule.__getattr__ raises AttributeError for what is not there.
            found = getattr(holder, name, None)
            if found is not None:
                return found
    raise SetupError(
        f"no tokenizer: neither {type(module).__name__} nor its datamodule has an attribute `tokenizer`; pass "
        "OLMESCallback(tokenizer=...)"
    )


def run_folder(trainer: Any) -> Path:
    """The run's folder: the loggers' own, or default_root_dir. A collective in distributed runs (log_dir is broadcast)."""
    return Path(trainer.log_dir or trainer.default_root_dir)


def ranks_per_batch(trainer: Any) -> int:
    """How many ranks the strategy feeds one and the same batch: those of a tensor-parallel group."""
    sampler = getattr(trainer.strategy, "distributed_sampler_kwargs", None) or {}
    return max(1, trainer.world_size // sampler.get("num_replicas", trainer.world_size))


def precision_context(trainer: Any) -> Callable[[], AbstractContextManager]:
    """Makes the context (autocast, default dtype) that training forwards run in."""
    return trainer.precision_plugin.forward_context


def _is_pretrained(module: nn.Module) -> bool:
    return any(base.__name__ == "PreTrainedModel" for base in type(module).__mro__)


def _is_lightning(base: type) -> bool:
    return base.__module__.split(".")[0] in ("lightning", "pytorch_lightning", "torch", "lightning_fabric", "builtins")
