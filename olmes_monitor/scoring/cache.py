"""Token ids on disk: a task is encoded once for a tokenizer, then read.

    <cache root>/encoded/<task>-<formulation>-<key>.npz

The key is a hash of all that the ids depend on: the task's content, the formulation, the tokenizer, BOS, max_length and
FORMAT. A file appears in full or not at all, so any number of ranks and processes may read and write at once. The cache
only saves time: a folder that cannot be written or a file that cannot be read costs a fresh encoding, never an error.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from olmes_monitor.scoring.encode import Encoded, EncodedTask, Encoder
from olmes_monitor.scoring.plan import shared_with_previous
from olmes_monitor.suite import Formulation, Task, Template
from olmes_monitor.suite.cache import cache_root
from olmes_monitor.suite.suites import task_content

logger = logging.getLogger("olmes_monitor")

FORMAT = 1
"""Raised when the files below change, or when encoding comes to give other ids for the same task and tokenizer."""
KEPT = 200
"""Files that stay, the newest: a suite and a tokenizer take twenty of them, of some 300 KB each in `monitor`."""
WORTH = 20_000
"""Characters that a tokenizer must have been given before their ids are worth a file: some five milliseconds' work."""


class CachedEncoder(Encoder):
    """An Encoder that reads from disk what it, or one like it, has encoded before."""

    def encode_task(self, task: Task, formulation: Formulation) -> EncodedTask:
        """As Encoder.encode_task: the same ids in every bit, from disk where they are there."""
        key = cache_key(self, task, formulation)
        if key is None:
            return super().encode_task(task, formulation)
        path = folder() / f"{task.name}-{formulation}-{key}.npz"
        if (found := load(path)) is not None:
            return found
        before = self.characters
        encoded = super().encode_task(task, formulation)
        if self.characters - before >= WORTH:
            save(path, encoded)
        return encoded


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
    parts = [FORMAT, encoder.identity, formulation, task_content(task), sample]
    text = json.dumps(parts, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]


def load(path: Path) -> EncodedTask | None:
    """What a file holds; None if it is not there or cannot be used."""
    try:
        with np.load(path) as file:
            return unpack(**{name: file[name] for name in file.files})
    except FileNotFoundError:
        return None
    except Exception as error:  # damage has many faces in zipfile and numpy, and one remedy
        logger.debug("%s cannot be used (%s: %s); the task is encoded afresh", path, type(error).__name__, error)
        return None


def save(path: Path, encoded: EncodedTask) -> None:
    """Write a file in one step, and delete the oldest beyond KEPT. What fails is only logged, for debugging."""
    arrays: dict[str, Any] = pack_task(encoded)
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
    requests = _requests(fresh, shared.tolist(), length.tolist(), start.tolist())
    return EncodedTask(requests[:asked], requests[asked:], spanning, shots_dropped, cut)


def _requests(fresh: np.ndarray, shared: Sequence[int], length: Sequence[int], start: Sequence[int]) -> list[Encoded]:
    flat = np.empty(sum(length), dtype=np.int32)
    requests: list[Encoded] = []
    place = taken = 0
    previous = flat[:0]
    for known, size, first in zip(shared, length, start, strict=True):
        ids, own = flat[place : place + size], size - known
        ids[:known] = previous[:known]
        ids[known:] = fresh[taken : taken + own]
        requests.append(Encoded(ids, first))
        place, taken, previous = place + size, taken + own, ids
    return requests
