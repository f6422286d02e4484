"""How many tokens a batch feeds to the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from olmes_monitor.errors import SetupError


def tokens_in(batch: Any) -> int:
    """Tokens in a batch: the elements of its input_ids, padding included.

    A batch is a mapping or an object with `input_ids` (or `tokens`, `input`, `inputs`, `x`), an integer tensor, or a tuple
    or list whose first integer tensor of at least two dimensions, (rows, length), holds the ids.

    Raises SetupError, naming what to pass instead, where no token ids are found.
    """
    ids = _ids(batch)
    if ids is None:
        raise SetupError(
            f"cannot count the tokens of a batch: {_described(batch)}. Pass count_tokens=<function of a batch> or "
            "tokens_per_step=<tokens of one optimizer step, all ranks together> to OLMESCallback"
        )
    return ids.numel()


def _ids(batch: Any) -> Tensor | None:
    # Without a name to go by, one dimension may as well be labels; ids are (rows, length).
    if _is_whole(batch) and batch.ndim >= 2:
        return batch
    for name in ("input_ids", "tokens", "inputs", "input", "x"):
        found = batch.get(name) if isinstance(batch, Mapping) else getattr(batch, name, None)
        if _is_whole(found):
            return found
    if isinstance(batch, tuple | list):
        return next((ids for ids in map(_ids, batch) if ids is not None), None)
    return None


def _is_whole(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.is_floating_point() and not value.is_complex()


def _described(batch: Any) -> str:
    if isinstance(batch, Tensor):
        return f"it is a {batch.dtype} tensor of shape {tuple(batch.shape)}"
    if isinstance(batch, Mapping):
        return f"it is a {type(batch).__name__} with the keys {', '.join(map(str, batch)) or '(none)'}"
    return f"it is a {type(batch).__name__}"


class TokenCounter:
    """A forward pre-hook that counts the tokens a model is trained on.

    transformers' callbacks never see a batch, and its own count is off by default and gathers whole batches when on. The
    hook sees every micro-batch that is really fed. It holds only two integers, so that a model with it can be copied.
    """

    def __init__(self) -> None:
        self.tokens = 0
        """Tokens since the last take()."""
        self.unread = 0
        """Training forwards since the last take() whose input held no token ids."""

    def __call__(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if not module.training:
            return
        ids = _ids(kwargs) if kwargs else None
        if ids is None:
            ids = _ids(args)
        if ids is None:
            self.unread += 1
        else:
            self.tokens += ids.numel()

    def take(self) -> int:
        """The tokens since the last call. Raises SetupError if some forward's input could not be read."""
        tokens, unread = self.tokens, self.unread
        self.tokens = self.unread = 0
        if unread:
            raise SetupError(
                "cannot count the tokens of a batch: the model was called without input_ids. Pass tokens_per_step=<tokens of "
                "one optimizer step, all ranks together> to OLMESCallback"
            )
        return tokens
