"""From requests to token ids: joint encoding, at most one BOS, whole shots dropped where a prompt is too long.

The one policy: the ids of a request are those of its text, context and continuation encoded together. The continuation starts
at the first token that holds any of its characters. Where a token spans the boundary, that token is thus scored as a
part of the continuation (and the request is counted in `EncodedTask.spanning`); no request is ever left with no tokens.
Whitespace at the end of a context belongs to the continuation, as a tokenizer would attach it there.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from olmes_monitor.errors import SetupError
from olmes_monitor.suite import Formulation, Question, Request, Task

MAX_LENGTH = 2048
"""Longest prompt in tokens, OLMES §3 (arXiv 2406.08446)."""

Bos = Literal["auto"] | bool


class Encoded(NamedTuple):
    """One request as token ids."""

    ids: np.ndarray
    """int32 (tokens,): context and continuation."""
    start: int
    """Index of the continuation's first token; at least 1."""


@dataclass
class EncodedTask:
    """All requests of one task in one formulation."""

    requests: list[Encoded] = field(default_factory=list)
    """One per choice, question after question."""
    unconditional: list[Encoded] = field(default_factory=list)
    """One per choice as well, or empty where the task does not need them."""
    spanning: int = 0
    """Requests in which a token spans the boundary between context and continuation."""
    shots_dropped: int = 0
    """Questions asked with fewer shots because the prompt would not fit."""
    cut: int = 0
    """Questions cut on the left because even without shots the prompt would not fit."""


class Encoder:
    """Turns tasks into token ids, with a private copy of the tokenizer: the user's object is never touched.

    `tokenizer` is a transformers tokenizer, a `tokenizers.Tokenizer`, or any object whose `encode(text)` returns ids.
    `bos`: "auto" puts a BOS in front where the tokenizer itself puts one when it encodes a text; True always (the
    tokenizer must have one), False never. `max_length`: longest prompt the model takes, in tokens.
    """

    def __init__(self, tokenizer: Any, bos: Bos = "auto", max_length: int = MAX_LENGTH) -> None:
        if max_length < 2:
            raise SetupError(f"max_length is {max_length}; a prompt and an answer need at least 2 tokens")
        self.max_length = min(max_length, MAX_LENGTH)
        self._tokenizer = copy.deepcopy(tokenizer)
        _check_tokenizer(self._tokenizer)
        self.bos_id = self._find_bos(bos)
        self._prefix = [] if self.bos_id is None else [self.bos_id]

    def encode_task(self, task: Task, formulation: Formulation) -> EncodedTask:
        """Encode every question of a task. Raises SetupError where a continuation alone exceeds max_length."""
        result = EncodedTask()
        encoded: dict[int, list[Encoded]] = {}
        waiting = list(range(len(task.questions)))
        most = max((len(task.shots_of(question)) for question in task.questions), default=0)
        for shots in range(most, -1, -1):
            asked = [task.requests(task.questions[i], formulation, shots) for i in waiting]
            flat, spanning = self._encode([request for requests in asked for request in requests])
            position, too_long = 0, []
            for i, requests in zip(waiting, asked, strict=True):
                own = slice(position, position + len(requests))
                position = own.stop
                if shots and any(len(request.ids) - 1 > self.max_length for request in flat[own]):
                    too_long.append(i)
                    continue
                encoded[i] = flat[own]
                result.spanning += sum(spanning[own])
                result.shots_dropped += shots < len(task.shots_of(task.questions[i]))
            waiting = too_long
            if not waiting:
                break
        for i, question in enumerate(task.questions):
            self._append(result, encoded[i], question, f"{task.name} {formulation}")
        return result

    def _append(self, result: EncodedTask, encoded: list[Encoded], question: Question, where: str) -> None:
        """Put one question's requests in their places, cut to max_length."""
        fitting = [self._cut(request, where, question) for request in encoded]
        result.cut += any(a is not b for a, b in zip(fitting, encoded, strict=True))
        result.requests += fitting[: len(question.choices)]
        result.unconditional += fitting[len(question.choices) :]

    def _cut(self, request: Encoded, where: str, question: Question) -> Encoded:
        excess = len(request.ids) - 1 - self.max_length
        if excess <= 0:
            return request
        kept_prefix = len(self._prefix)
        if request.start - excess < kept_prefix + 1:
            raise SetupError(
                f"{where}, question {question.id!r}: the answer alone has {len(request.ids) - request.start} tokens, "
                f"the model takes {self.max_length}; leave the task out with tasks=[...]"
            )
        ids = np.concatenate([request.ids[:kept_prefix], request.ids[kept_prefix + excess :]])
        return Encoded(ids, request.start - excess)

    def _encode(self, requests: Sequence[Request]) -> tuple[list[Encoded], list[bool]]:
        """Encode requests; equal texts are encoded once. Returns the requests and whether a token spans the boundary."""
        contexts = [request.context.rstrip() for request in requests]
        wholes = [request.context + request.continuation for request in requests]
        ids = self._ids_of([*contexts, *wholes])
        encoded, spanning = [], []
        for request, context, whole in zip(requests, contexts, wholes, strict=True):
            start = _common_prefix(ids[context], ids[whole])
            joint = np.concatenate([np.asarray(self._prefix, dtype=np.int32), ids[whole]])
            if start == len(ids[whole]):
                raise SetupError(f"the tokenizer gives the continuation {request.continuation!r} no tokens of its own")
            if start + len(self._prefix) == 0:
                raise SetupError(
                    f"nothing stands before the continuation {request.continuation!r}, so its first token has no "
                    "probability; pass bos=True"
                )
            encoded.append(Encoded(joint, start + len(self._prefix)))
            spanning.append(start < len(ids[context]))
        return encoded, spanning

    def _ids_of(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        distinct = list(dict.fromkeys(texts))
        encoded = _encode_batch(self._tokenizer, distinct)
        # A text that itself begins with the BOS string must not lead to two of them.
        skip = [int(bool(self._prefix) and ids[:1] == self._prefix) for ids in encoded]
        return {text: np.asarray(ids[k:], dtype=np.int32) for text, ids, k in zip(distinct, encoded, skip, strict=True)}

    def _find_bos(self, bos: Bos) -> int | None:
        own = getattr(self._tokenizer, "bos_token_id", None)
        if bos is False:
            return None
        if bos is True:
            if own is None:
                raise SetupError("bos=True, but the tokenizer has no bos_token; set one on it or pass bos=False")
            return int(own)
        if bos != "auto":
            raise SetupError(f'bos takes "auto", True or False; got {bos!r}')
        plain, special = _encode_batch(self._tokenizer, ["a"])[0], _encode_special(self._tokenizer, "a")
        return special[0] if special[:1] != plain[:1] and special[1 : 1 + len(plain)] == plain else None


def _check_tokenizer(tokenizer: Any) -> None:
    if not callable(getattr(tokenizer, "encode", None)):
        raise SetupError(
            f"tokenizer is a {type(tokenizer).__name__}, which has no encode(text); pass a transformers tokenizer, a "
            "tokenizers.Tokenizer or an object whose encode(text) returns token ids"
        )


def _encode_batch(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Ids of every text, without special tokens."""
    if not texts:
        return []
    if hasattr(tokenizer, "encode_batch_fast"):  # tokenizers.Tokenizer
        return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    if callable(tokenizer) and hasattr(tokenizer, "convert_ids_to_tokens"):  # transformers
        # verbose: a text longer than the tokenizer's model_max_length is our business, not a warning for the user.
        return tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    return [list(tokenizer.encode(text)) for text in texts]


def _encode_special(tokenizer: Any, text: str) -> list[int]:
    """Ids of a text with whatever special tokens the tokenizer adds by itself."""
    ids = tokenizer.encode(text)
    return list(getattr(ids, "ids", ids))


def _common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """Number of leading elements that two arrays share."""
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n
