"""How many tokens a forward call gets: enough to keep the device busy, little enough to fit beside a training run."""

from __future__ import annotations

import torch
from torch import nn

from olmes_monitor.scoring.forward import vocabulary_of

ON_CPU = {"packed": 512, "plain": 2048}
"""Measured: a packed row's dense mask costs nodes x (nodes + trunk), which a CPU feels beyond 512."""
SMALLEST, LARGEST = 256, 4096
SHARE = 0.1
"""Share of the device's free memory that one forward call may take."""


def auto_batch_tokens(model: nn.Module, device: torch.device, path: str) -> int:
    """Tokens of one forward call, a power of two, from the model's size and the device's free memory (asked, not probed)."""
    if device.type != "cuda":
        return ON_CPU[path]
    free, _ = torch.cuda.mem_get_info(device)
    # What the caching allocator holds but does not use is free to us as well.
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return largest_budget(SHARE * free, bytes_per_token(model))


def bytes_per_token(model: nn.Module) -> int:
    """About what a token takes at the peak of a forward: logits in the model's dtype and in float32, activations, masks."""
    vocabulary = vocabulary_of(model) or 50_000
    width = max((p.shape[-1] for p in model.parameters() if p.ndim == 2), default=1024)
    size = next((p.element_size() for p in model.parameters()), 4)
    masks = 2 * LARGEST * size
    return vocabulary * (size + 4) + 20 * width * size + masks


def largest_budget(memory: float, per_token: int) -> int:
    """The largest power of two between SMALLEST and LARGEST whose tokens fit into `memory` bytes."""
    budget = LARGEST
    while budget > SMALLEST and budget * per_token > memory:
        budget //= 2
    return budget
