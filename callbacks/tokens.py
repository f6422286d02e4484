"""How many tokens a batch feeds to the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from olmes_monitor.errors import SetupError

Count = Literal["all", "non_padding"]
"""all: every token that is fed. non_padding: those that are not padding."""

NAMES = ("input_ids", "tokens", "inputs", "input", "x")
"""What a batch's token ids are called."""


class Padding(NamedTuple):
    """What a tokenizer pads with."""

    id: int | None = None
    """Its token id; None where the tokenizer has none, so that nothing can be padding."""
    ambiguous: bool = False
    """Whether that id is also a BOS or EOS, so that ids alone do not tell padding from text."""

    @classmethod
    def of(cls, tokenizer: Any) -> Padding:
        pad = getattr(tokenizer, "pad_token_id", None)
        others = (getattr(tokenizer, name, None) for name in ("eos_token_id", "bos_token_id"))
        return cls(pad, pad is not None and pad in others)


class Read(NamedTuple):
    """What was found in a batch."""

    ids: Tensor
    mask: Tensor | None = None
    """Its attention mask, where it has one."""
    packed: bool = False
    """Whether several texts share a row (position_ids say where each begins), and no padding is needed."""


def tokens_in(batch: Any, count: Count = "all", padding: Padding | None = None) -> int | Tensor:
    """Tokens in a batch: the elements of its input_ids, with count="all"; a 0-d tensor where they must be counted.

    A batch is a mapping or an object with `input_ids` (or `tokens`, `input`, `inputs`, `x`), an integer tensor, or a tuple
    or list whose first integer tensor of at least two dimensions, (rows, length), holds the ids. Padding is what the
    batch's attention_mask, of the ids' shape, says; without one, what equals the tokenizer's pad id (`padding`), but no
    token of a packed row.

    Raises SetupError, naming what to pass instead, where no token ids are found, or padding cannot be told from text.
    """
    read = _read(batch)
    if read is None:
        raise SetupError(
            f"cannot count the tokens of a batch: {_described(batch)}. Pass count_tokens=<function of a batch> or "
            "tokens_per_step=<tokens of one optimizer step, all ranks together> to OLMESCallback"
        )
    if count == "non_padding" and _cannot_tell(read, padding or Padding()):
        raise SetupError(CANNOT_TELL)
    return _count(read, count, padding or Padding())


CANNOT_TELL = (
    "cannot tell padding from text: the batch has no attention_mask, and the tokenizer pads with its EOS or BOS. Count with "
    'count="all", put attention_mask into the batch, or pass tokens_per_step='
)


def _count(read: Read, count: Count, padding: Padding) -> int | Tensor:
    if count == "all":
        return read.ids.numel()
    if read.mask is not None and read.mask.shape == read.ids.shape:
        return (read.mask != 0).sum()
    if read.packed or padding.id is None:
        return read.ids.numel()
    return (read.ids != padding.id).sum()


def _cannot_tell(read: Read, padding: Padding) -> bool:
    masked = read.mask is not None and read.mask.shape == read.ids.shape
    return padding.ambiguous and not masked and not read.packed


def _read(batch: Any) -> Read | None:
    # Without a name to go by, one dimension may as well be labels; ids are (rows, length).
    if _is_whole(batch) and batch.ndim >= 2:
        return Read(batch)
    get = batch.get if isinstance(batch, Mapping) else lambda name: getattr(batch, name, None)
    for name in NAMES:
        found = get(name)
        if _is_whole(found):
            mask = get("attention_mask")
            return Read(found, mask if isinstance(mask, Tensor) else None, get("position_ids") is not None)
    if isinstance(batch, tuple | list):
        return next((read for read in map(_read, batch) if read is not None), None)
    return None


def _is_whole(value: Any) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and not value.is_floating_point() and not value.is_complex()


def _described(batch: Any) -> str:
    if isinstance(batch, Tensor):
        return f"it is a {batch.dtype} tensor of shape {tuple(batch.shape)}"
    if isinstance(batch, Mapping):
        return f"it is a {type(batch).__name__} with the keys {', '.join(map(str, batch)) or '(none)'}"
    return f"it is a {type(batch).__name__}"


UNREAD = (
    "cannot count the tokens of a batch: the model was called without input_ids. Pass tokens_per_step=<tokens of one "
    "optimizer step, all ranks together> to OLMESCallback"
)


class TokenCounter:
    """A forward pre-hook that counts the tokens a model is trained on.

    transformers' callbacks never see a batch, and its own count is off by default and gathers whole batches when on. The
    hook sees every micro-batch that is really fed. It holds only numbers, so that a model with it can be copied.

    Within a compiled model the hook is compiled too. There it adds to a tensor and touches nothing else: a Python number
    that changes would be guarded, and the training's graphs compiled again.
    """

    def __init__(
        self, count: Count = "all", padding: Padding | None = None, device: torch.device | None = None
    ) -> None:
        """`device`: where the model is."""
        self.count, self.padding = count, padding or Padding()
        self.tokens: int | Tensor = 0
        """Tokens since the last take(), of forwards that were not compiled."""
        self.compiled = torch.zeros((), dtype=torch.int64, device=device)
        """Likewise, of those that were."""
        self.problem = ""
        """Why some input since the last take() could not be counted."""

    def __call__(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if not module.training:
            return
        read = (_read(kwargs) if kwargs else None) or _read(args)
        if read is None:
            self.problem = UNREAD
        elif self.count == "non_padding" and _cannot_tell(read, self.padding):
            self.problem = CANNOT_TELL
        elif torch.compiler.is_compiling():
            self.compiled.add_(_count(read, self.count, self.padding))
        else:
            self.tokens = self.tokens + _count(read, self.count, self.padding)

    def take(self) -> int:
        """The tokens since the last call. Raises SetupError if some forward's input could not be counted."""
        tokens, problem = int(self.tokens) + int(self.compiled), self.problem
        self.tokens, self.problem = 0, ""
        self.compiled.zero_()
        if problem:
            raise SetupError(problem)
        return tokens
