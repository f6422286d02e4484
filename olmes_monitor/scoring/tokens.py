"""One view on every kind of tokenizer: text in, ids out, without the special tokens that it adds by itself."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from olmes_monitor.errors import SetupError
from olmes_monitor.scoring.seams import NONE, safe_before_space

_PROBE = "Question: Wie weit ist's?\n A. 12  km\n B. naïve — 3,5\n\nAnswer: A"
"""Digits, a contraction, two spaces, two newlines, characters of two and three bytes."""


class TextEncoder:
    """A private copy of a tokenizer: the user's object is neither changed nor kept.

    Takes a transformers tokenizer (fast or slow), a `tokenizers.Tokenizer`, a tiktoken encoding, or any object whose
    `encode(text)` returns ids. Raises SetupError for anything else, and for a tokenizer that cannot encode a plain text.
    """

    def __init__(self, tokenizer: Any) -> None:
        if isinstance(tokenizer, str) or not callable(getattr(tokenizer, "encode", None)):
            raise SetupError(
                f"tokenizer is a {type(tokenizer).__name__}, which has no encode(text); pass a transformers tokenizer, "
                "a tokenizers.Tokenizer or an object whose encode(text) returns token ids"
            )
        self._tokenizer = _private(tokenizer)
        self.bos_token_id: int | None = getattr(tokenizer, "bos_token_id", None)
        try:
            self._backend = _backend(self._tokenizer)
            self._around = ((), ()) if self._backend is not None else _around(self._tokenizer)
            plain, special = self.encode([_PROBE])[0], _with_specials(self._tokenizer, _PROBE)
        except SetupError:
            raise
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            raise SetupError(f"the tokenizer ({type(tokenizer).__name__}) cannot encode a text: {problem}") from error
        if not plain:
            raise SetupError(f"the tokenizer ({type(tokenizer).__name__}) gives a text no tokens")
        self.prefix = _before(plain, special)
        """Ids that the tokenizer itself puts before a text."""
        description = None if self._backend is None else _description(self._backend)
        self.safe = NONE if description is None else safe_before_space(description)
        """Characters after which a space is a seam (see `seams`); empty where nothing is proved."""
        self.identity = None if description is None else _identity(tokenizer, description)
        """A hash that two tokenizers share only if they give every text the same ids; None where that cannot be told."""
        self.characters = 0
        """Characters encoded so far: what encoding costs, without a clock."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of every text, without special tokens before or after it."""
        if not texts:
            return []
        self.characters = getattr(self, "characters", 0) + sum(map(len, texts))
        if self._backend is not None:
            return [found.ids for found in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]
        if _is_transformers(self._tokenizer):
            return _transformers_ids(self._tokenizer, list(texts))
        before, after = len(self._around[0]), len(self._around[1])
        encoded = [_plain_ids(self._tokenizer, text) for text in texts]
        return [ids[before : len(ids) - after] for ids in encoded]

    def first_token_at(self, text: str, position: int) -> int | None:
        """Index of the first token of a text that holds a character at `position` or after it; None if not known."""
        if self._backend is None:
            return None
        ends = [end for _, end in self._backend.encode(text, add_special_tokens=False).offsets]
        return next((i for i, end in enumerate(ends) if end > position), None)

    def pieces(self, text: str) -> list[tuple[int, str]]:
        """Ids of a text with the characters each stands for; a character of several tokens is put to the first.
        Where the tokenizer knows no offsets, what its decode() or the id itself says."""
        if self._backend is not None:
            found = self._backend.encode(text, add_special_tokens=False)
            # From end to end: some tokenizers leave the leading space out of a token's own span.
            ends = [0, *(end for _, end in found.offsets)]
            return [(id, text[a:b]) for id, a, b in zip(found.ids, ends, ends[1:], strict=False)]
        decode = getattr(self._tokenizer, "decode", str)
        return [(id, decode([id])) for id in self.encode([text])[0]]


def _private(tokenizer: Any) -> Any:
    try:
        return copy.deepcopy(tokenizer)
    except Exception as error:
        # Some objects cannot be copied (a lock, an open file, a pre-tokenizer written in Python). Using what has no
        # settings that encoding would write to is harmless; the others must not be touched.
        if hasattr(tokenizer, "encode_batch_fast") or _is_transformers(tokenizer):
            raise SetupError(
                f"the tokenizer ({type(tokenizer).__name__}) cannot be copied ({error}), and the one in use must not be "
                "changed; pass an object whose encode(text) returns ids"
            ) from error
        return tokenizer


def _backend(tokenizer: Any) -> Any | None:
    """The `tokenizers.Tokenizer` inside, if it gives the same ids as its owner; set to neither cut nor pad."""
    backend: Any = (
        tokenizer if hasattr(tokenizer, "encode_batch_fast") else getattr(tokenizer, "backend_tokenizer", None)
    )
    if not hasattr(backend, "encode_batch_fast"):
        return None
    backend.no_truncation()
    backend.no_padding()
    if backend is not tokenizer:
        own = backend.encode(_PROBE, add_special_tokens=False).ids
        if _transformers_ids(tokenizer, [_PROBE]) != [own]:
            return None  # a subclass that does something of its own to the text
    return backend


def _description(backend: Any) -> str | None:
    """tokenizer.json of a backend; None for one that is not told by it in full."""
    if getattr(backend.model, "dropout", None):
        return None  # no two encodings agree
    try:
        return str(backend.to_str())
    except Exception:  # a part written in Python has no description, so nothing can be proved of it
        return None


def _identity(tokenizer: Any, description: str) -> str:
    """Hex digits over a backend's description, its owner's class and BOS, and the library that encodes with it."""
    kind = f"{type(tokenizer).__module__}.{type(tokenizer).__qualname__}"
    parts = [kind, getattr(tokenizer, "bos_token_id", None), version("tokenizers"), description]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _is_transformers(tokenizer: Any) -> bool:
    return callable(tokenizer) and hasattr(tokenizer, "convert_ids_to_tokens")


def _transformers_ids(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    # verbose: a text longer than the tokenizer's model_max_length is our business, not a warning for the user.
    # truncation, padding: False also where the tokenizer was saved with other defaults.
    found: list[list[int]] = tokenizer(
        texts, add_special_tokens=False, return_attention_mask=False, truncation=False, padding=False, verbose=False
    )["input_ids"]
    return found


def _plain_ids(tokenizer: Any, text: str) -> list[int]:
    # tiktoken's encode() refuses texts that spell a special token; encode_ordinary() takes them as text.
    encode = getattr(tokenizer, "encode_ordinary", tokenizer.encode)
    ids = encode(text)
    return [int(id) for id in getattr(ids, "ids", ids)]


def _with_specials(tokenizer: Any, text: str) -> list[int]:
    """Ids of a text with whatever special tokens the tokenizer adds by itself."""
    if _is_transformers(tokenizer) or hasattr(tokenizer, "encode_batch_fast"):
        ids = tokenizer.encode(text)
        return list(getattr(ids, "ids", ids))
    return _plain_ids(tokenizer, text)


def _around(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that a plain object's encode() puts before and after every text: those of the empty text."""
    if _is_transformers(tokenizer):
        return (), ()
    added, some = _plain_ids(tokenizer, ""), _plain_ids(tokenizer, _PROBE)
    before = 0
    while before < len(added) and added[before] == some[before]:
        before += 1
    after = len(added) - before
    if after and some[-after:] != added[before:]:
        raise SetupError(
            f"the tokenizer ({type(tokenizer).__name__}) encodes an empty text as {added}, which is neither before nor "
            "after the ids of other texts; pass one that adds no special tokens"
        )
    return tuple(added[:before]), tuple(added[before:])


def _before(plain: list[int], special: list[int]) -> tuple[int, ...]:
    """What stands before the plain ids where special tokens are added; () where the two do not fit together."""
    for start in range(len(special) - len(plain) + 1):
        if special[start : start + len(plain)] == plain:
            return tuple(special[:start])
    return ()
