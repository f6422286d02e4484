"""Loading a checkpoint: never wrongly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olmes_monitor.checkpoints.checkpoint import Checkpoint

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


def open_model(
    checkpoint: Checkpoint,
    *,
    config: str | Path | None = None,
    model_factory: str | Callable[[], nn.Module] | None = None,
    base: str | None = None,
    dtype: str = "auto",
    device: torch.device,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
) -> nn.Module:
    """The checkpoint's model with its weights, on `device`, in eval mode. Raises CheckpointError."""
    raise NotImplementedError


def read_state(checkpoint: Checkpoint, *, allow_pickle: bool = False) -> dict[str, Tensor]:
    """The checkpoint's tensors on the CPU, by the names they were saved under. Raises CheckpointError."""
    raise NotImplementedError


def load_state(model: nn.Module, state: dict[str, Tensor], checkpoint: Checkpoint) -> None:
    """Put `state` into a model of `open_model`, all of it or nothing. Raises CheckpointError."""
    raise NotImplementedError


def find_tokenizer(checkpoint: Checkpoint, name: str | None, trust_remote_code: bool = False) -> Any:
    """The tokenizer: `name`, else the checkpoint's, else its parent's. Raises CheckpointError."""
    raise NotImplementedError
