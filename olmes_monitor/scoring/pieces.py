"""Attention over a packed row piece by piece, so that fewer of the pairs that the mask hides are computed.

A row holds many branches, and a token sees the trunk and its own branch only. A dense mask has the attention compute all
pairs all the same. Cut between branches, each piece of the row needs
the trunk's keys, those of the few ancestors that are open at its first node, and its own.

On the CPU only, where it was measured; an accelerator would pay for the many small kernels, and whether that is worth it
there is not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from olmes_monitor.scoring.pack import PackedRow

SHORTEST, LONGEST = 128, 256
"""Queries of a piece. Of five settings tried the one of the least time, but they differ by no more than the clock did."""
MOST_PIECES = 4
"""A row shorter than this many of the shortest pieces is cut as finely, whatever its trunk, so that the check of a model at
first use, whose rows are short, tries what an evaluation does."""
IGNORED = ("position_ids", "cache_position")
"""Tensors that models pass on to an attention which takes no notice of them."""


@dataclass(frozen=True)
class Piece:
    """Nodes of a row that attend together."""

    first: int
    last: int
    keys: np.ndarray
    """int64, ascending: the nodes of the row that some node of the piece sees. (The trunk all of them see.)"""


def cut(row: PackedRow) -> list[Piece]:
    """A row in pieces, each ending where the fewest branches are open."""
    nodes = len(row.end)
    shortest = max(1, min(SHORTEST, nodes // MOST_PIECES))
    longest = shortest * LONGEST // SHORTEST
    # Of the nodes before each place those whose subtree goes on beyond it. (A subtree that has ended lies before it whole.)
    still_open = np.arange(nodes + 1) - np.searchsorted(np.sort(row.end), np.arange(nodes + 1), side="right")
    pieces: list[Piece] = []
    first = 0
    while first < nodes:
        last = nodes
        if nodes - first > longest:
            places = np.arange(first + shortest, first + longest + 1)
            # Of equally good places the last: fewer calls.
            last = int(places[::-1][np.argmin(still_open[places][::-1])])
        keys = np.append(np.flatnonzero(row.end[:first] > first), np.arange(first, last))
        pieces.append(Piece(first, last, keys))
        first = last
    return pieces


@contextmanager
def in_pieces(row: PackedRow, mask: Tensor) -> Iterator[None]:
    """Within: the library's sdpa attention, given this mask, makes one call for each piece of the row.

    mask: bool (1, 1, nodes, trunk + nodes). Attention of another kind, with another mask or with tensors of its own
    (position biases) is left as it is. Whatever stood in the library's table is put back afterwards.
    """
    pieces = cut(row) if mask.device.type == "cpu" and mask.dtype == torch.bool else []
    if len(pieces) < 2:
        yield
        return
    trunk = np.arange(row.trunk_length)
    keys = [torch.from_numpy(np.append(trunk, row.trunk_length + piece.keys)) for piece in pieces]
    masks = [mask[:, :, p.first : p.last].index_select(3, seen) for p, seen in zip(pieces, keys, strict=True)]
    whole = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        others = [name for name, given in kwargs.items() if isinstance(given, Tensor) and name not in IGNORED]
        same = attention_mask is not None and attention_mask.data_ptr() == mask.data_ptr()
        if not same or others or (query.shape[2], key.shape[2]) != mask.shape[2:]:
            return whole(module, query, key, value, attention_mask, **kwargs)
        found = []
        for piece, seen, allowed in zip(pieces, keys, masks, strict=True):
            mine = query[:, :, piece.first : piece.last]
            result, _ = whole(module, mine, key.index_select(2, seen), value.index_select(2, seen), allowed, **kwargs)
            found.append(result)
        return torch.cat(found, dim=1), None

    ALL_ATTENTION_FUNCTIONS["sdpa"] = attend
    try:
        yield
    finally:
        del ALL_ATTENTION_FUNCTIONS["sdpa"]
        if ALL_ATTENTION_FUNCTIONS["sdpa"] is not whole:
            # The user's own, which stood in front of the library's.
            ALL_ATTENTION_FUNCTIONS["sdpa"] = whole
