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


def auto_batch_tokens(model: nn.Module, device: torch.device, path: str, bounded_logits: bool) -> int:
    """Tokens of one forward call, a power of two, from the model's size and the device's free memory (asked, not probed).

    `bounded_logits`: whether slices or the plan bound the logits of a call; else each token may have a row of them.
    """
    if device.type != "cuda":
        return ON_CPU[path]
    free, _ = torch.cuda.mem_get_info(device)
    # What the caching allocator holds but does not use is free to us as well.
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return largest_budget(SHARE * free, bytes_per_token(model, bounded_logits))


def bytes_per_token(model: nn.Module, bounded_logits: bool) -> int:
    """About what a token takes at the peak of a forward: activations, masks, and unless they are bounded logits in the
    model's dtype and in float32."""
    vocabulary = 0 if bounded_logits else vocabulary_of(model) or 50_000
    # ZeRO-3 keeps the shape beside a parameter it has partitioned.
    shapes = [tuple(getattr(p, "ds_shape", p.shape)) for p in model.parameters()]
    width = max((shape[-1] for shape in shapes if len(shape) == 2), default=1024)
    size = next((p.element_size() for p in model.parameters()), 4)
    masks = 2 * LARGEST * size
    return vocabulary * (size + 4) + 20 * width * size + masks


def largest_budget(memory: float, per_token: int) -> int:
    """The largest power of two between SMALLEST and LARGEST whose tokens fit into `memory` bytes."""
    budget = LARGEST
    while budget > SMALLEST and budget * per_token > memory:
        budget //= 2
    return budget
