"""Token ids and plans on disk: a task is encoded once for a tokenizer and packed once for a row budget, then read.

    <cache root>/encoded/<task>-<formulation>-<key>.npz     token ids
    <cache root>/encoded/plan-<key of the plan>.npz         packed rows

The key is a hash of all that the ids depend on: the task's content, the formulation, the tokenizer, BOS, max_length and
FORMAT; a plan's is one over that key, the rank's own requests and the budget. A file appears in full or not at all, so
any number of ranks and processes may read and write at once. The cache only saves time: a folder that cannot be written or
a file that cannot be read costs fresh work, never an error.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np

from olmes_monitor.scoring.encode import Encoded, EncodedTask, Encoder, Shape
from olmes_monitor.scoring.pack import PackedRow
from olmes_monitor.scoring.plan import Reads, shared_with_previous
from olmes_monitor.suite import Formulation, Task, Template
from olmes_monitor.suite.cache import cache_root
from olmes_monitor.suite.suites import task_digest

logger = logging.getLogger("olmes_monitor")

FORMAT = 3
"""Raised when the files below change, or when encoding or packing come to give other results for the same input."""
KEPT = 200
"""Files that stay, the newest: a suite and a tokenizer take forty of them, in `monitor` of some 500 KB each."""
WORTH = 20_000
"""Characters given to a tokenizer, or tokens packed, from which on the result is worth a file: some milliseconds' work."""


class CachedEncoder(Encoder):
    """An Encoder that reads from disk what it, or one like it, has encoded before."""

    def encode_task(self, task: Task, formulation: Formulation) -> EncodedTask:
        """As Encoder.encode_task: the same ids in every bit, from disk where they are there."""
        key = cache_key(self, task, formulation)
        if key is None:
            return super().encode_task(task, formulation)
        path = folder() / f"{task.name}-{formulation}-{key}.npz"
        encoded = read(path, unpack)
        if encoded is None:
            before = self.characters
            encoded = super().encode_task(task, formulation)
            if self.characters - before >= WORTH:
                save(path, pack_task(encoded))
        encoded.key = key
        return encoded


def cached_rows(key: str | None, own: np.ndarray, budget: int, make: Callable[[], list[PackedRow]]) -> list[PackedRow]:
    """What `make` gives for the requests of EncodedTask.key `key` that are this rank's own, bool (requests,), and a row
    budget: the same rows in every bit, from disk where they are there. Without a key always `make()`."""
    if key is None:
        return make()
    text = f"{FORMAT} {key} {budget} {hashlib.sha256(np.packbits(own).tobytes()).hexdigest()} {len(own)}"
    path = folder() / f"plan-{hashlib.sha256(text.encode()).hexdigest()[:32]}.npz"
    rows = read(path, unpack_rows)
    if rows is None:
        rows = make()
        if sum(row.tokens for row in rows) >= WORTH:
            save(path, pack_rows(rows))
    return rows


def folder() -> Path:
    """Where the files are; it need not exist."""
    return cache_root() / "encoded"


def cache_key(encoder: Encoder, task: Task, formulation: Formulation) -> str | None:
    """32 hex digits over all that a task's ids depend on; None where that cannot be told."""
    # A class of one's own may render or encode anything: what it says about itself does not identify it.
    if encoder.identity is None or (type(task), type(task.template)) != (Task, Template):
        return None
    # One question as text as well: a change in how tasks are rendered then needs no thought of FORMAT.
    sample = task.requests(task.questions[0], formulation)
    parts = [FORMAT, encoder.identity, formulation, task_digest(task), sample]
    text = json.dumps(parts, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]


def read(path: Path, unpacked: Callable[..., Any]) -> Any:
    """What `unpacked` makes of a file's arrays; None if it is not there or cannot be used."""
    try:
        with np.load(path) as file:
            return unpacked(**{name: file[name] for name in file.files})
    except FileNotFoundError:
        return None
    except Exception as error:  # damage has many faces in zipfile and numpy, and one remedy
        logger.debug("%s cannot be used (%s: %s); it is made afresh", path, type(error).__name__, error)
        return None


def save(path: Path, arrays: dict[str, Any]) -> None:
    """Write a file in one step, and delete the oldest beyond KEPT. What fails is only logged, for debugging."""
    # A process that dies leaves its part behind; it is pruned like any other file.
    part = path.with_name(f"{path.stem}.{uuid.uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("xb") as file:
                np.savez(file, **arrays)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
        newest_first = sorted(path.parent.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
        for old in newest_first[KEPT:]:
            old.unlink(missing_ok=True)
    except OSError as error:
        logger.debug("%s is not kept: %s", path, error)


def pack_task(encoded: EncodedTask) -> dict[str, np.ndarray]:
    """A task's requests as few flat arrays: of each only what the one before does not begin with. Shots stand there once.

    fresh: int32 (tokens,); shared, length, start: int32 (requests,), the unconditional ones last; counts: int64 (4,).
    """
    requests = [*encoded.requests, *encoded.unconditional]
    shared = shared_with_previous([request.ids for request in requests])
    fresh = [request.ids[n:] for request, n in zip(requests, shared, strict=True)]
    return {
        "fresh": np.concatenate(fresh),
        "shared": shared.astype(np.int32),
        "length": np.array([len(request.ids) for request in requests], dtype=np.int32),
        "start": np.array([request.start for request in requests], dtype=np.int32),
        "counts": np.array([len(encoded.requests), encoded.spanning, encoded.shots_dropped, encoded.cut]),
    }


def unpack(
    fresh: np.ndarray, shared: np.ndarray, length: np.ndarray, start: np.ndarray, counts: np.ndarray
) -> EncodedTask:
    """The requests again, from what `pack_task` gives. Raises ValueError where the arrays do not fit together."""
    known = np.concatenate([[0], length[:-1]])
    fits = (shared >= 0) & (shared <= np.minimum(known, length)) & (start > 0) & (start < length)
    if not fits.all() or (length - shared).sum() != len(fresh) or fresh.dtype != np.int32:
        raise ValueError("its arrays do not fit together")
    asked, spanning, shots_dropped, cut = counts.tolist()
    stored = _Stored(fresh, shared, length.astype(np.int64), start.astype(np.int64))
    return EncodedTask(
        StoredRequests(stored, 0, asked), StoredRequests(stored, asked, len(length)), spanning, shots_dropped, cut
    )


class _Stored:
    """A task's requests as `pack_task` lays them out, made into single ones when the first is asked for."""

    def __init__(self, fresh: np.ndarray, shared: np.ndarray, length: np.ndarray, start: np.ndarray) -> None:
        self.fresh, self.shared, self.length, self.start = fresh, shared, length, start

    @cached_property
    def requests(self) -> list[Encoded]:
        flat = np.empty(self.length.sum(), dtype=np.int32)
        requests: list[Encoded] = []
        place = taken = 0
        previous = flat[:0]
        for known, size, first in zip(self.shared.tolist(), self.length.tolist(), self.start.tolist(), strict=True):
            ids, own = flat[place : place + size], size - known
            ids[:known] = previous[:known]
            ids[known:] = self.fresh[taken : taken + own]
            requests.append(Encoded(ids, first))
            place, taken, previous = place + size, taken + own, ids
        return requests


class StoredRequests(Sequence[Encoded]):
    """Some of a stored task's requests. A plan from disk needs their shape only, and 180,000 arrays take half a second."""

    def __init__(self, stored: _Stored, first: int, last: int) -> None:
        self._stored, self._first, self._last = stored, first, last
        self.shape = Shape(
            stored.length[first:last], stored.start[first:last], int(stored.fresh.max()) if len(stored.fresh) else 0
        )
        """`largest` is that of all the task's requests."""

    def __len__(self) -> int:
        return self._last - self._first

    @overload
    def __getitem__(self, index: int) -> Encoded: ...
    @overload
    def __getitem__(self, index: slice) -> list[Encoded]: ...
    def __getitem__(self, index: int | slice) -> Encoded | list[Encoded]:
        return self._stored.requests[self._first : self._last][index]

    def __iter__(self) -> Iterator[Encoded]:
        return iter(self._stored.requests[self._first : self._last])


PER_NODE = ("ids", "position", "end")
PER_TARGET = ("read", "target", "request")


def pack_rows(rows: Sequence[PackedRow]) -> dict[str, np.ndarray]:
    """Packed rows as few flat arrays, int32.

    rows: (rows, 6): nodes, reads, targets, trunk, trunk_length, is_trunk; ids, position, end: (nodes of all,); reads:
    (reads of all,), their positions; read, target, request: (targets of all,).
    """
    table = [
        (row.tokens, len(row.reads.position), len(row.reads.read), row.trunk, row.trunk_length, int(row.is_trunk))
        for row in rows
    ]
    flat = {name: np.concatenate([getattr(row, name).reshape(-1) for row in rows]) for name in PER_NODE}
    flat["reads"] = np.concatenate([row.reads.position for row in rows])
    flat |= {name: np.concatenate([getattr(row.reads, name) for row in rows]) for name in PER_TARGET}
    return {"rows": np.array(table, dtype=np.int32), **{name: array.astype(np.int32) for name, array in flat.items()}}


def unpack_rows(rows: np.ndarray, reads: np.ndarray, **flat: np.ndarray) -> list[PackedRow]:
    """The rows again, from what `pack_rows` gives. Raises ValueError where the arrays do not fit together."""
    ends = np.cumsum(rows[:, :3], axis=0, dtype=np.int64)
    sizes = {"reads": len(reads), **{name: len(array) for name, array in flat.items()}}
    wanted = {**dict.fromkeys(PER_NODE, ends[-1, 0]), "reads": ends[-1, 1], **dict.fromkeys(PER_TARGET, ends[-1, 2])}
    if sizes != wanted:
        raise ValueError("its arrays do not fit together")
    wide = {name: array.astype(np.int64) for name, array in {**flat, "reads": reads}.items()}
    starts = ends - rows[:, :3]
    found = []
    for (_, _, _, trunk, depth, is_trunk), (a, r, t), (b, s, u) in zip(
        rows.tolist(), starts.tolist(), ends.tolist(), strict=True
    ):
        asked = Reads(np.zeros(s - r, dtype=np.int64), wide["reads"][r:s], *(wide[name][t:u] for name in PER_TARGET))
        found.append(
            PackedRow(
                ids=wide["ids"][None, a:b],
                position=wide["position"][a:b],
                end=wide["end"][a:b],
                trunk=trunk,
                trunk_length=depth,
                is_trunk=bool(is_trunk),
                reads=asked,
            )
        )
    return found
