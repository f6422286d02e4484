"""The LM head, run on slices of positions: a vocabulary of logits for a few hundred positions at a time, never for a call.

A hook on the head takes its input (the hidden states) while the model's own forward runs, reads the answers from it slice
by slice, and lets the model go on with one position. It is the model's own call, so wrappers that gather weights (FSDP)
need nothing of their own. It is right only where the head is the last thing the model does: logits that are scaled or
capped afterwards (Cohere, Gemma 2, Granite) would be missed. So it is tried once, see `why_not_sliced`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from olmes_monitor.scoring.plan import Reads

SLICE_ELEMENTS = 2**25
"""Logits turned into log-probabilities at once, in float32: 128 MiB, whatever the vocabulary."""
WHOLE_ELEMENTS = 2**26
"""Logits of one forward call where the head cannot be sliced: a plan then reads no more positions in a call."""


class Head:
    """A model's LM head; `module` maps (positions, width) to (positions, vocabulary)."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    @contextmanager
    def reading(self, reads: Reads, column: np.ndarray) -> Iterator[list[Tensor]]:
        """Within: one forward of the model. Afterwards the list holds ln p of every target, (targets,).

        column: int64 (reads,), where each read stands among the positions that reach the head.
        """
        found: list[Tensor] = []

        def read(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            hidden = args[0]
            # `forward`, not a call: wrappers' own hooks have run, for this forward, already.
            found.append(log_likelihoods(hidden, reads, column, module.forward, vocabulary_of(module)))
            return (hidden[:, :1], *args[1:])

        handle = self.module.register_forward_pre_hook(read)
        try:
            yield found
        finally:
            handle.remove()


def head_of(model: Any) -> Head | None:
    """The head that a transformers-like model names (beneath any wrapper), if it maps to a vocabulary."""
    find = getattr(model, "get_output_embeddings", None)
    try:
        module = find() if callable(find) else None
    except NotImplementedError:
        return None
    return Head(module) if isinstance(module, nn.Module) and vocabulary_of(module) else None


def vocabulary_of(module: nn.Module) -> int:
    """Rows of a head's weight, 0 if it has none. (ZeRO-3 keeps the shape beside a weight it has partitioned.)"""
    weight = getattr(module, "weight", None)
    shape = tuple(getattr(weight, "ds_shape", getattr(weight, "shape", ())))
    return int(shape[0]) if len(shape) == 2 else 0


@contextmanager
def replaced_logits(head: Head) -> Iterator[list[Tensor]]:
    """Within: the head answers with made-up logits as large as any, which the list holds afterwards."""
    made: list[Tensor] = []

    def answer(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        row = torch.linspace(-100, 100, output.shape[-1], device=output.device, dtype=torch.float32)
        made.append(row.to(output.dtype).expand(output.shape).contiguous())
        return made[-1]

    handle = head.module.register_forward_hook(answer)
    try:
        yield made
    finally:
        handle.remove()


def log_likelihoods(source: Tensor, reads: Reads, column: np.ndarray, head: Any = None, vocabulary: int = 0) -> Tensor:
    """ln p of every target: (targets,), on the source's device, by a log-softmax in bounded slices.

    In float32, or float64 where the logits are. source: logits (rows, columns, vocabulary), any float dtype; with `head`
    its input, hidden states (rows, columns, width). column: int64 (reads,), where each read stands in a row.
    """

    def put(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array.astype(np.int64, copy=False)).to(source.device, non_blocking=True)

    row, position, read, target = put(reads.row), put(column), put(reads.read), put(reads.target)
    step = max(1, SLICE_ELEMENTS // (vocabulary or source.shape[-1]))
    result: Tensor | None = None
    for first in range(0, len(reads.row), step):
        last = min(first + step, len(reads.row))
        mine = slice(*np.searchsorted(reads.read, [first, last]))
        chosen = source[row[first:last], position[first:last]]
        chosen = chosen if head is None else head(chosen)
        chosen = chosen.to(torch.promote_types(chosen.dtype, torch.float32))
        if result is None:
            result = torch.empty(len(reads.target), dtype=chosen.dtype, device=source.device)
        own = read[mine] - first
        result[mine] = chosen[own, target[mine]] - chosen.logsumexp(-1)[own]
    return torch.empty(0, device=source.device) if result is None else result
