"""Which rows are forwarded and where their answers are read: what both paths share, and the plain plan.

A request needs the model's outputs at the positions before each of its continuation's tokens, so its input is its ids
without the last one. Requests whose inputs are equal, or one a prefix of the other, share a row (attention is causal: what
stands to the right of a position cannot reach it). The labels of a multiple-choice question thus cost one row together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from olmes_monitor.scoring.encode import Encoded

LENGTH_STEP = 16
"""Plain rows are padded to a multiple of this, so that kernels meet few shapes."""


@dataclass(frozen=True)
class Reads:
    """The places of a forward call whose outputs are needed, and what is asked of them."""

    row: np.ndarray
    """int64 (reads,)."""
    position: np.ndarray
    """int64 (reads,): place in the row whose output predicts the target. (row, position) pairs are distinct, ascending."""
    read: np.ndarray
    """int64 (targets,), ascending: which read each target uses. A place that several targets need is read once."""
    target: np.ndarray
    """int64 (targets,): token id asked for."""
    request: np.ndarray
    """int64 (targets,): index of the request each target belongs to."""

    @classmethod
    def collect(cls, length: int, row: list, position: list, target: list, request: list) -> Reads:
        """From per-request pieces, lists of int arrays of equal lengths; `length` is that of a row."""
        none = [np.zeros(0, dtype=np.int64)]
        flat = np.concatenate(none + row) * length + np.concatenate(none + position)
        order = np.argsort(flat, kind="stable")
        flat = flat[order]
        new = np.diff(flat, prepend=-1) > 0
        return cls(
            row=flat[new] // length,
            position=flat[new] % length,
            read=np.cumsum(new) - 1,
            target=np.concatenate(none + target)[order].astype(np.int64),
            request=np.concatenate(none + request)[order].astype(np.int64),
        )


@dataclass(frozen=True)
class Batch:
    """One forward call of the plain path."""

    ids: np.ndarray
    """int64 (rows, length), right-padded with 0; padding is never read, and cannot reach what is."""
    reads: Reads

    @property
    def tokens(self) -> int:
        """Tokens forwarded, padding included."""
        return int(self.ids.size)


def plan(requests: Sequence[Encoded], batch_tokens: int, max_length: int, max_reads: int | None = None) -> list[Batch]:
    """Batches of at most `batch_tokens` tokens each (a longer row goes alone), longest rows first.

    `max_reads`: most logits rows of a batch (each of its rows has them wherever one of them is read), if they must be few.

    Rows are padded to a multiple of LENGTH_STEP, never beyond `max_length`: a model may have no position for more.
    Deterministic: a function of the arguments alone.
    """

    def padded(length: int) -> int:
        return max(length, min(-(-length // LENGTH_STEP) * LENGTH_STEP, max_length))

    row_of, rows = share_rows(requests)
    # Longest first: if memory does not suffice, it shows in the first batch and not in the last.
    order = sorted(range(len(rows)), key=lambda row: (-len(rows[row]), row))
    members = members_of(row_of, len(rows))
    batches: list[Batch] = []
    chosen: list[int] = []
    length = 0
    kept: set[int] = set()
    for row in order:
        read = places_of([requests[m] for m in members[row]]) if max_reads else set()
        logits = len(kept | read) * (len(chosen) + 1)
        if chosen and (length * (len(chosen) + 1) > batch_tokens or logits > (max_reads or logits)):
            batches.append(_batch(requests, rows, members, chosen, length))
            chosen, kept = [], set()
        if not chosen:
            length = padded(len(rows[row]))
        chosen.append(row)
        kept |= read
    if chosen:
        batches.append(_batch(requests, rows, members, chosen, length))
    return batches


def share_rows(requests: Sequence[Encoded]) -> tuple[list[int], list[np.ndarray]]:
    """For each request the index of its row, and the distinct rows: no row is a prefix of another.

    The rows stand in descending lexicographic order of their ids.
    """
    # Big-endian bytes sort as the token lists do, and byte prefixes are token prefixes (all ids have the same width).
    keys = [request.ids[:-1].astype(">u4").tobytes() for request in requests]
    row_of = [0] * len(requests)
    rows: list[np.ndarray] = []
    longest = b""
    # In descending order a key's extensions come just before it.
    for index in sorted(range(len(keys)), key=lambda index: keys[index], reverse=True):
        if not rows or not longest.startswith(keys[index]):
            longest = keys[index]
            rows.append(requests[index].ids[:-1])
        row_of[index] = len(rows) - 1
    return row_of, rows


def shared_with_previous(lists: Sequence[np.ndarray]) -> np.ndarray:
    """int64 (lists,): leading elements that each array of ints shares with the one before it; 0 for the first."""
    shared = np.zeros(len(lists), dtype=np.int64)
    for i, (before, ids) in enumerate(pairwise(lists), start=1):
        n = min(len(before), len(ids))
        if n:
            differs = before[:n] != ids[:n]
            first = int(differs.argmax())
            shared[i] = first if differs[first] else n
    return shared


def places_of(requests: Sequence[Encoded]) -> set[int]:
    """The places in a row at which these requests, which share it, are read."""
    return {place for request in requests for place in range(request.start - 1, len(request.ids) - 1)}


def members_of(row_of: Sequence[int], rows: int) -> list[list[int]]:
    """Per row, the requests that read it."""
    members: list[list[int]] = [[] for _ in range(rows)]
    for request, row in enumerate(row_of):
        members[row].append(request)
    return members


def _batch(
    requests: Sequence[Encoded],
    rows: Sequence[np.ndarray],
    members: Sequence[Sequence[int]],
    chosen: Sequence[int],
    length: int,
) -> Batch:
    ids = np.zeros((len(chosen), length), dtype=np.int64)
    row, position, target, owner = [], [], [], []
    for place, index in enumerate(chosen):
        ids[place, : len(rows[index])] = rows[index]
        for request in members[index]:
            asked = requests[request]
            count = len(asked.ids) - asked.start
            row.append(np.full(count, place))
            position.append(np.arange(asked.start - 1, len(asked.ids) - 1))
            target.append(asked.ids[asked.start :])
            owner.append(np.full(count, request))
    return Batch(ids, Reads.collect(length, row, position, target, owner))
