"""From requests to token ids: joint encoding, at most one BOS, whole shots dropped where a prompt is too long.

The one policy: the ids of a request are those of its text, context and continuation encoded together. The continuation
starts at the first token that holds any of its characters. Where a token spans the boundary, that token is thus scored as
a part of the continuation (and the request is counted in `EncodedTask.spanning`); no request is ever left with no tokens.
Whitespace at the end of a context belongs to the continuation, as a tokenizer would attach it there.

Texts are encoded piece by piece where the pieces' ids are proved to be the whole's (see `seams`), else whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from olmes_monitor.errors import SetupError
from olmes_monitor.scoring.seams import NONE, last_seam
from olmes_monitor.scoring.tokens import TextEncoder
from olmes_monitor.suite import Formulation, Question, Request, Task
from olmes_monitor.suite.templates import SHOT_SEPARATOR

MAX_LENGTH = 2048
"""Longest prompt in tokens, OLMES §3 (arXiv 2406.08446)."""

Bos = Literal["auto"] | bool


class Encoded(NamedTuple):
    """One request as token ids."""

    ids: np.ndarray
    """int32 (tokens,): context and continuation."""
    start: int
    """Index of the continuation's first token; at least 1."""


class Shape(NamedTuple):
    """What many uses of requests need to know of them, without their ids."""

    length: np.ndarray
    """int64 (requests,): tokens, context and continuation."""
    start: np.ndarray
    """int64 (requests,): index of the continuation's first token."""
    largest: int
    """The largest token id."""


def shape_of(requests: Sequence[Encoded]) -> Shape:
    """The shape of at least one request."""
    if (known := getattr(requests, "shape", None)) is not None:  # those from disk know it and are not made yet
        return known
    length = np.array([len(request.ids) for request in requests], dtype=np.int64)
    start = np.array([request.start for request in requests], dtype=np.int64)
    return Shape(length, start, max(int(request.ids.max()) for request in requests))


@dataclass
class EncodedTask:
    """All requests of one task in one formulation."""

    requests: Sequence[Encoded] = field(default_factory=list)
    """One per choice, question after question."""
    unconditional: Sequence[Encoded] = field(default_factory=list)
    """One per choice as well, or empty where the task does not need them."""
    spanning: int = 0
    """Requests in which a token spans the boundary between context and continuation."""
    shots_dropped: int = 0
    """Questions asked with fewer shots because the prompt would not fit."""
    cut: int = 0
    """Questions cut on the left because even without shots the prompt would not fit."""
    key: str | None = None
    """What the ids are known by on disk: equal keys mean equal ids. None where that cannot be told."""


class _Text(NamedTuple):
    """A request's text, cut at seams."""

    head: tuple[str, ...]
    """Pieces that end at or before the continuation, which other requests may share."""
    context: str
    """What is left of the context."""
    rest: str
    """What is left of the context, and the continuation."""


class Encoder:
    """Turns tasks into token ids, with a private copy of the tokenizer: the user's object is never touched.

    `tokenizer` is a transformers tokenizer, a `tokenizers.Tokenizer`, or any object whose `encode(text)` returns ids.
    `bos`: "auto" puts in front what the tokenizer itself puts there when it encodes a text; True always a BOS (the
    tokenizer must have one), False never. `max_length`: longest prompt the model takes, in tokens.

    Raises SetupError for an object that is no tokenizer, for a BOS that is not there, for a max_length below 2.
    """

    def __init__(self, tokenizer: Any, bos: Bos = "auto", max_length: int = MAX_LENGTH) -> None:
        if max_length < 2:
            raise SetupError(f"max_length is {max_length}; a prompt and an answer need at least 2 tokens")
        self.max_length = min(max_length, MAX_LENGTH)
        self._texts = TextEncoder(tokenizer)
        self._prefix = np.asarray(_prefix(self._texts, bos), dtype=np.int32)
        self._safe = self._texts.safe

    @property
    def bos_id(self) -> int | None:
        """The first token of every prompt, where one is put there."""
        return int(self._prefix[0]) if len(self._prefix) else None

    @property
    def identity(self) -> str | None:
        """A text that two encoders share only if they give every task the same ids; None where that cannot be told."""
        texts = self._texts.identity
        return None if texts is None else f"{texts} {self._prefix.tolist()} {self.max_length}"

    @property
    def characters(self) -> int:
        """Characters given to the tokenizer so far."""
        return self._texts.characters

    def encode_task(self, task: Task, formulation: Formulation) -> EncodedTask:
        """Encode every question of a task.

        Raises SetupError where a continuation has no tokens of its own, nothing before it, or alone exceeds max_length.
        """
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
        scored: list[Encoded] = []
        unconditional: list[Encoded] = []
        for i, question in enumerate(task.questions):
            fitting = [self._cut(request, f"{task.name} {formulation}", question) for request in encoded[i]]
            result.cut += any(a is not b for a, b in zip(fitting, encoded[i], strict=True))
            scored += fitting[: len(question.choices)]
            unconditional += fitting[len(question.choices) :]
        result.requests, result.unconditional = scored, unconditional
        return result

    def _cut(self, request: Encoded, where: str, question: Question) -> Encoded:
        excess = len(request.ids) - 1 - self.max_length
        if excess <= 0:
            return request
        kept = len(self._prefix)
        if request.start - excess < kept + 1:
            raise SetupError(
                f"{where}, question {question.id!r}: the answer alone has {len(request.ids) - request.start} tokens, "
                f"the model takes {self.max_length}; leave the task out with tasks=[...]"
            )
        ids = np.concatenate([request.ids[:kept], request.ids[kept + excess :]])
        return Encoded(ids, request.start - excess)

    def _encode(self, requests: Sequence[Request]) -> tuple[list[Encoded], list[bool]]:
        """Encode requests; equal pieces of text are encoded once. Returns the requests and whether a token spans each
        one's boundary."""
        texts = _split(requests, self._safe)
        if self._safe and requests and not self._agrees(requests[0], texts[0]):
            # The proof rests on how `tokenizers` works; if a version works otherwise, this is where it shows.
            self._safe = NONE
            texts = _split(requests, NONE)
        ids = self._ids_of([piece for text in texts for piece in (*text.head, text.context, text.rest)])
        heads: dict[tuple[str, ...], np.ndarray] = {}
        encoded, spanning = [], []
        for request, text in zip(requests, texts, strict=True):
            if text.head not in heads:
                # int32 also where there is nothing: the prefix alone may be empty.
                heads[text.head] = np.concatenate([self._prefix, *(ids[piece] for piece in text.head)])
            start, spans = self._start(text, ids[text.context], ids[text.rest])
            encoded.append(self._joined(request, heads[text.head], ids[text.rest], start))
            spanning.append(spans)
        return encoded, spanning

    def _start(self, text: _Text, context: np.ndarray, rest: np.ndarray) -> tuple[int, bool]:
        """Where in `rest` the continuation starts, and whether that token holds characters of the context too."""
        shared = _common_prefix(context, rest)
        if shared == len(context):
            return shared, False
        start = self._texts.first_token_at(text.rest, len(text.context))
        # Without offsets: from the first token that the continuation has changed.
        return (shared if start is None else start), True

    def _joined(self, request: Request, head: np.ndarray, rest: np.ndarray, start: int) -> Encoded:
        if start >= len(rest):
            raise SetupError(f"the tokenizer gives the continuation {request.continuation!r} no tokens of its own")
        ids, start = np.concatenate([head, rest]), start + len(head)
        added = len(self._prefix)
        if added and np.array_equal(ids[added : 2 * added], self._prefix) and start >= 2 * added:
            # A text that itself begins with the BOS string must not lead to two of them.
            ids, start = ids[added:], start - added
        if start == 0:
            raise SetupError(
                f"nothing stands before the continuation {request.continuation!r}, so its first token has no "
                "probability; pass bos=True"
            )
        return Encoded(ids, start)

    def _agrees(self, request: Request, text: _Text) -> bool:
        """Whether one whole text comes out as its pieces do."""
        pieces = self._texts.encode([piece for piece in (*text.head, text.rest) if piece])
        return self._texts.encode([request.context + request.continuation]) == [[id for ids in pieces for id in ids]]

    def _ids_of(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        distinct = [text for text in dict.fromkeys(texts) if text]
        found = {
            text: np.asarray(ids, dtype=np.int32)
            for text, ids in zip(distinct, self._texts.encode(distinct), strict=True)
        }
        return {**found, "": np.empty(0, dtype=np.int32)}


def _prefix(texts: TextEncoder, bos: Bos) -> tuple[int, ...]:
    if bos is False:
        return ()
    if bos is True:
        if texts.prefix:
            return texts.prefix
        if texts.bos_token_id is None:
            raise SetupError("bos=True, but the tokenizer has no bos_token; set one on it or pass bos=False")
        return (int(texts.bos_token_id),)
    if bos != "auto":
        raise SetupError(f'bos takes "auto", True or False; got {bos!r}')
    return texts.prefix


def _split(requests: Sequence[Request], safe: frozenset[str]) -> list[_Text]:
    """Cut requests' texts at seams; the choices of a question share their context's pieces."""
    heads: dict[tuple[str, bool], tuple[tuple[str, ...], str]] = {}
    texts = []
    for request in requests:
        context = request.context.rstrip()
        rest = request.context[len(context) :] + request.continuation
        key = (context, rest.startswith(" "))
        if key not in heads:
            heads[key] = _cut_context(*key, safe)
        head, left = heads[key]
        texts.append(_Text(head, left, left + rest))
    return texts


def _cut_context(context: str, space_follows: bool, safe: frozenset[str]) -> tuple[tuple[str, ...], str]:
    """A context's pieces, cut at the last seam of each shot and the last one of all, and what is left after that."""
    if not safe:
        return (), context
    meets = space_follows and context[-1:] in safe
    cuts = [0, *_shot_seams(context, safe), len(context) if meets else last_seam(context, len(context), safe)]
    return tuple(context[a:b] for a, b in pairwise(cuts) if a < b), context[cuts[-1] :]


def _shot_seams(context: str, safe: frozenset[str]) -> Iterator[int]:
    """For each place where a shot ends, the last seam before it, ascending."""
    end, last = context.find(SHOT_SEPARATOR), 0
    while end >= 0:
        seam = last_seam(context, end, safe)
        if seam > last:
            yield seam
            last = seam
        end = context.find(SHOT_SEPARATOR, end + len(SHOT_SEPARATOR))


def _common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """Number of leading elements that two arrays share."""
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n
