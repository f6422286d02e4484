"""The packed path: trunk keys and values reused, rows of many branches under an ancestor mask.

Only transformers models take a cache and a mask of one's own, and not all of them honour both (sliding windows, ALiBi,
state-space layers). Whether a given model does is not looked up but tried: see Scorer, which compares the two paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

from olmes_monitor.scoring.forward import Forward, forward_parameters, innermost, is_transformers, positions, unwrap
from olmes_monitor.scoring.pack import PackedRow
from olmes_monitor.scoring.pieces import in_pieces

KeysValues = list[tuple[Tensor, Tensor]]
"""One layer's keys and values each: (1, heads, tokens, head size)."""


class TrunkLayer(CacheLayerMixin):
    """Gives attention the trunk's keys and values in front of the row's own. The row's are kept only if asked."""

    is_compileable = False

    def __init__(self, trunk: tuple[Tensor, Tensor] | None, keep: bool) -> None:
        super().__init__()
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        if trunk is not None:
            self.keys, self.values = trunk
        self.is_initialized = True
        self._keep = keep

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: there is no buffer."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Trunk and row, one after the other; the trunk itself is never written."""
        if self.keys is not None and self.values is not None:
            key_states = torch.cat([self.keys, key_states], dim=-2)
            value_states = torch.cat([self.values, value_states], dim=-2)
        if self._keep:
            self.keys, self.values = key_states, value_states
        return key_states, value_states

    def get_seq_length(self, *args: Any) -> int:
        """Tokens of the trunk."""
        return 0 if self.keys is None else self.keys.shape[-2]

    def get_mask_sizes(self, query_length: Any, *args: Any) -> tuple[int, int]:
        """(keys, offset). Older transformers pass the positions of the queries in place of their number."""
        queries = query_length if isinstance(query_length, int) else query_length.shape[0]
        return self.get_seq_length() + queries, 0

    def get_max_length(self) -> int:
        """No maximum."""
        return -1

    get_max_cache_shape = get_max_length


class TrunkCache(Cache):
    """A TrunkLayer for each layer of the model."""

    def __init__(self, trunk: KeysValues | None, layers: int, keep: bool) -> None:
        super().__init__(layers=[TrunkLayer(None if trunk is None else trunk[i], keep) for i in range(layers)])

    def keys_values(self) -> KeysValues:
        """What a trunk's forward has left."""
        return [(layer.keys, layer.values) for layer in self.layers if layer.keys is not None]


def why_not_packed(model: nn.Module) -> str | None:
    """Why a model cannot even be tried on the packed path, in words; None if it can."""
    inner = unwrap(model)
    if not is_transformers(inner):
        return f"{type(inner).__name__} is not a model of transformers"
    parameters = forward_parameters(inner)
    missing = {"attention_mask", "position_ids", "use_cache", "logits_to_keep"} - parameters.keys()
    if not {"cache", "past_key_values"} & parameters.keys():
        missing.add("cache")
    if missing:
        return f"{type(inner).__name__}.forward takes no {', '.join(sorted(missing))}"
    return None


@contextmanager
def maskable_attention(model: nn.Module) -> Iterator[None]:
    """Within: an attention implementation that takes a mask of one's own. After: the user's, by the library's own switch."""
    inner = innermost(unwrap(model))
    before = inner.config._attn_implementation
    if before in ("sdpa", "eager"):
        yield
        return
    inner.set_attn_implementation("sdpa")
    try:
        if inner.config._attn_implementation != "sdpa":
            raise ValueError(f"its attention {before!r} takes no mask, and it cannot be switched to another")
        yield
    finally:
        inner.set_attn_implementation(before)


class PackedForward:
    """Runs packed rows through a transformers model, in the plan's order."""

    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        self.model = forward.model
        self._inner = innermost(self.model)
        parameters = forward_parameters(self.model)
        # `past_key_values` was renamed in transformers 5.24 and goes away.
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._layers = int(self._inner.config.get_text_config().num_hidden_layers)
        self._trunks: dict[int, KeysValues] = {}

    def run(self, rows: Sequence[PackedRow], index: int, device: torch.device) -> Tensor:
        """ln p of every target of rows[index]: (targets,), on the device. Makes no host synchronization."""
        row = rows[index]
        cache = TrunkCache(self._trunks.get(row.trunk), self._layers, row.is_trunk)
        mask = self._mask(row, device)
        with in_pieces(row, mask):
            found = self.forward.read(
                row.reads,
                np.arange(len(row.reads.position)),
                torch.from_numpy(row.ids).to(device, non_blocking=True),
                position_ids=torch.from_numpy(row.position[None]).to(device, non_blocking=True),
                attention_mask=mask,
                use_cache=True,
                logits_to_keep=positions(row.reads.position, device),
                **{self._cache_name: cache},
            )
        if row.is_trunk:
            self._trunks[index] = cache.keys_values()
        self._forget(rows, index)
        return found

    def clear(self) -> None:
        """Let go of every trunk."""
        self._trunks.clear()

    def _forget(self, rows: Sequence[PackedRow], index: int) -> None:
        """Let go of the trunks that no row after this one stands on: those not beneath the next row."""
        needed, at = set(), index + 1
        if at < len(rows):
            trunk = rows[at].trunk
            while trunk >= 0:
                needed.add(trunk)
                trunk = rows[trunk].trunk
        for trunk in self._trunks.keys() - needed:
            del self._trunks[trunk]

    def _mask(self, row: PackedRow, device: torch.device) -> Tensor:
        """(1, 1, nodes, trunk + nodes): what each node sees, the whole trunk, its ancestors and itself."""
        end = torch.from_numpy(row.end).to(device, non_blocking=True)
        node = torch.arange(len(row.end), device=device)
        own = (node[None, :] <= node[:, None]) & (node[:, None] < end[None, :])
        sees = torch.cat([own.new_ones(len(row.end), row.trunk_length), own], dim=1)[None, None]
        if self._inner.config._attn_implementation != "eager":
            return sees
        # Eager attention adds the mask to its scores: a boolean one would be added as 0 and 1, silently wrong.
        dtype = next(self._inner.parameters()).dtype
        return torch.zeros(sees.shape, dtype=dtype, device=device).masked_fill(~sees, torch.finfo(dtype).min)
