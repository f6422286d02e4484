"""The packed plan: every distinct token of a task's requests forwarded once.

The inputs of all requests form a trie on token ids. In lexicographic order the token lists are its depth-first walk, so
a run of lists, each without what it shares with the one before, is a packed row: the trie's nodes in pre-order. A token
may see the nodes on its own path: node j is visible to node i iff j ≤ i < end[j], where end[j] is the first node after
j's subtree. A long prefix that many lists share (the shots; in MMLU one per subject) becomes a trunk: a row of its own,
forwarded once, whose keys and values the rows after it see whole.

The plan depends on the token ids and the budget alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from olmes_monitor.scoring.encode import Encoded
from olmes_monitor.scoring.plan import Reads, share_rows, shared_with_previous

MIN_TRUNK = 64
"""Shortest shared prefix, in tokens, that is worth a forward call of its own; a shorter one is repeated in each row."""
FILL = 0.75
"""A full row may be closed at a cheaper place, but not below this share of the budget."""


@dataclass(frozen=True)
class PackedRow:
    """One forward call of the packed path: nodes of the trie in pre-order, after a trunk."""

    ids: np.ndarray
    """int64 (1, nodes)."""
    position: np.ndarray
    """int64 (nodes,): depth in the trie, which is the token's position in its prompt."""
    end: np.ndarray
    """int64 (nodes,): first node of this row after the node's subtree."""
    trunk: int
    """Index of the row whose trunk this one stands on, -1 for none."""
    trunk_length: int
    """Tokens of that trunk, those beneath it included."""
    is_trunk: bool
    """Whether later rows stand on this one."""
    reads: Reads

    @property
    def tokens(self) -> int:
        """Tokens forwarded."""
        return int(self.ids.size)


def pack(requests: Sequence[Encoded], budget: int, max_reads: int | None = None) -> list[PackedRow]:
    """Rows of at most `budget` tokens (longer tails of single prompts apart), each after the trunk it stands on.

    `max_reads`: most places of a row to read (a single prompt with more apart), if their logits must be few.
    """
    if not requests:
        return []
    row_of, rows = share_rows(requests)
    rows.reverse()
    asked = _Asked.of(requests, len(rows) - 1 - np.array(row_of), len(rows))
    return _Packer(rows, asked, budget, max_reads).rows()


def trie_nodes(requests: Sequence[Encoded]) -> int:
    """Distinct (prefix, token) pairs among the requests' inputs: no method can forward fewer tokens."""
    if not requests:
        return 0
    _, rows = share_rows(requests)
    rows.reverse()
    return sum(map(len, rows)) - int(shared_with_previous(rows).sum())


@dataclass(frozen=True)
class _Asked:
    """What the requests ask for, sorted by the list whose path they are read on."""

    request: np.ndarray
    """int64 (requests,): index of each."""
    first: np.ndarray
    """int64 (lists + 1,): those of list i stand at first[i]:first[i + 1]."""
    start: np.ndarray
    """int64 (requests,): where the continuation starts."""
    length: np.ndarray
    """int64 (requests,): tokens in all."""
    offset: np.ndarray
    """int64 (requests + 1,): the continuation's place in `target`."""
    target: np.ndarray
    """int32 (targets,): the continuations, one after the other."""

    @classmethod
    def of(cls, requests: Sequence[Encoded], list_of: np.ndarray, lists: int) -> _Asked:
        """list_of: int64 (requests,), the list that each request's input is a prefix of."""
        request = np.argsort(list_of, kind="stable")
        start = np.array([requests[i].start for i in request], dtype=np.int64)
        length = np.array([len(requests[i].ids) for i in request], dtype=np.int64)
        return cls(
            request=request,
            first=np.searchsorted(list_of[request], np.arange(lists + 1)),
            start=start,
            length=length,
            offset=np.concatenate([[0], np.cumsum(length - start)]),
            target=np.concatenate([requests[i].ids[requests[i].start :] for i in request]),
        )


class _Packer:
    """Walks the sorted token lists; `lists[a:b]` always share at least the tokens of the trunk they stand on."""

    def __init__(self, lists: Sequence[np.ndarray], asked: _Asked, budget: int, max_reads: int | None) -> None:
        self.lists, self.asked, self.budget = lists, asked, budget
        self.shared = shared_with_previous(lists)
        self.lengths = np.array([len(ids) for ids in lists])
        self.before = np.concatenate([[0], np.cumsum(self.lengths - self.shared)])
        # At most: each list is read from its earliest continuation's start on.
        self.reads = self.lengths + 1 - np.minimum.reduceat(asked.start, asked.first[:-1])
        self.reads_before = np.concatenate([[0], np.cumsum(self.reads)])
        self.max_reads = int(self.reads_before[-1]) if max_reads is None else max_reads
        self.found: list[_Building] = []

    def rows(self) -> list[PackedRow]:
        self._split(0, len(self.lists), -1, 0)
        # Trunks last: they are read by the rows that stand on them.
        for building in self.found:
            if not building.is_trunk:
                self._read(building)
        return [building.finish() for building in self.found]

    def _split(self, a: int, b: int, trunk: int, depth: int) -> None:
        """Pack lists[a:b] after a trunk of `depth` tokens."""
        common = int(self.shared[a + 1 : b].min()) if b - a > 1 else depth
        if self._too_large(a, b, depth) and common - depth >= MIN_TRUNK:
            # A trunk longer than a row is forwarded in pieces, each on the one before.
            for end in (*range(depth + self.budget, common, self.budget), common):
                ids = [self.lists[a][:end]]
                self.found.append(_Building(trunk, depth, True, ids, np.array([a]), np.array([depth])))
                trunk, depth = len(self.found) - 1, end
        apart = 1 + np.flatnonzero(self.shared[a + 1 : b] < depth + MIN_TRUNK)
        starts = np.concatenate([[a], a + apart, [b]])
        first, last = starts[:-1], starts[1:]
        large = (last - first > 1) & self._too_large(first, last, depth)
        for group in np.flatnonzero(large):
            self._split(int(first[group]), int(last[group]), trunk, depth)
        loose = ranges(first[~large], last[~large])
        shared = np.maximum(depth, self._between(loose))
        for run in self._cut(loose, shared - depth, depth):
            chosen, own = loose[run], shared[run].copy()
            own[0] = depth
            ids = [self.lists[i] for i in chosen]
            self.found.append(_Building(trunk, depth, False, ids, chosen, own))

    def _too_large(self, a: Any, b: Any, depth: int) -> Any:
        """Whether lists[a:b] below `depth` do not fit one row. a, b: ints, or int arrays of equal lengths."""
        return (self._nodes(a, b, depth) > self.budget) | (self.reads_before[b] - self.reads_before[a] > self.max_reads)

    def _nodes(self, a: Any, b: Any, depth: int) -> Any:
        """Nodes of lists[a:b] below `depth`, which they all share. a, b: ints, or int arrays of equal lengths."""
        return self.lengths[a] - depth + self.before[b] - self.before[a + 1]

    def _between(self, chosen: np.ndarray) -> np.ndarray:
        """int64 (chosen,): tokens that each list, of those at these ascending places, shares with the one before it."""
        if len(chosen) < 2:
            return np.zeros(len(chosen), dtype=np.int64)
        # What two lists share is the least that any two neighbours between them do.
        return np.append(0, np.minimum.reduceat(self.shared[: chosen[-1] + 1], chosen[:-1] + 1))

    def _cut(self, loose: np.ndarray, repeats: np.ndarray, depth: int) -> list[slice]:
        """Runs of `loose` whose nodes fit the budget, closed where the next run has the least to repeat.

        repeats: int64 (loose,), the tokens below `depth` that each list shares with the one before: what a run that
        begins with it forwards again.
        """
        fresh = np.cumsum(self.lengths[loose] - depth - repeats)
        read = np.cumsum(self.reads[loose])
        runs: list[slice] = []
        first = 0
        while first < len(loose):
            # Nodes of a run from `first` to a place: its first list in full, of the others what they add.
            nodes = fresh[first:] - fresh[first] + self.lengths[loose[first]] - depth
            fits = int(np.searchsorted(nodes, self.budget, side="right"))
            within = np.searchsorted(
                read[first:], self.max_reads + read[first] - self.reads[loose[first]], side="right"
            )
            fits = max(1, min(fits, int(within)))
            cut = fits
            if first + fits < len(loose):
                least = int(np.searchsorted(nodes[: fits - 1], FILL * self.budget))
                # Of equally cheap places the last: fuller rows.
                cheapest = np.argmin(repeats[first + least + 1 : first + fits + 1][::-1])
                cut = fits - int(cheapest)
            runs.append(slice(first, first + cut))
            first += cut
        return runs

    def _read(self, building: _Building) -> None:
        """Read every request of a row's lists: in the row, and where a continuation begins above it, in the trunks."""
        asked, lists = self.asked, building.lists
        mine = ranges(asked.first[lists], asked.first[lists + 1])
        line = np.repeat(np.arange(len(lists)), asked.first[lists + 1] - asked.first[lists])
        start, end = asked.start[mine] - 1, asked.length[mine] - 1
        line, request = np.repeat(line, end - start), np.repeat(asked.request[mine], end - start)
        depth, target = ranges(start, end), asked.target[ranges(asked.offset[mine], asked.offset[mine + 1])]
        inside = depth >= building.depth
        nodes = building.nodes()[line[inside], depth[inside] - building.depth]
        building.note(nodes, target[inside], request[inside])
        while building.trunk >= 0 and not inside.all():
            depth, target, request = depth[~inside], target[~inside], request[~inside]
            building = self.found[building.trunk]
            inside = depth >= building.depth
            building.note(depth[inside] - building.depth, target[inside], request[inside])


class _Building:
    """A row before it is read: a trunk's tokens and below them what each list adds to the one before."""

    def __init__(
        self,
        trunk: int,
        depth: int,
        is_trunk: bool,
        ids: Sequence[np.ndarray],
        lists: np.ndarray,
        shared: np.ndarray,
    ) -> None:
        self.trunk, self.depth, self.is_trunk, self.ids, self.lists = trunk, depth, is_trunk, ids, lists
        self.first, self.last = shared, np.array([len(each) for each in ids])
        """int64 (lists,): a list's own nodes stand at the depths from first to last."""
        self.base = np.concatenate([[0], np.cumsum(self.last - self.first)])
        """int64 (lists + 1,): a list's first own node."""
        self._reads: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def note(self, nodes: np.ndarray, target: np.ndarray, request: np.ndarray) -> None:
        """Read targets of requests at nodes, int arrays of equal lengths."""
        self._reads.append((nodes, target, request))

    def nodes(self) -> np.ndarray:
        """int64 (lists, depths): the node on each list's path at each depth, less self.depth; meaningless beyond a list."""
        own, depth = self._own()
        # A path goes through the newest node of each depth, and nodes are numbered as they come.
        return np.maximum.accumulate(np.where(own, (self.base[:-1] - self.first)[:, None] + depth, 0), axis=0)

    def finish(self) -> PackedRow:
        own, depth = self._own()
        # A node's subtree ends with the first list that leaves the path at or above it.
        leaves = np.where(depth >= self.first[:, None], self.base[:-1, None], self.base[-1])
        leaves = np.minimum.accumulate(np.vstack([leaves[1:], np.full_like(depth, self.base[-1])])[::-1], axis=0)[::-1]
        nodes, target, request = ([piece[i] for piece in self._reads] for i in range(3))
        return PackedRow(
            ids=np.concatenate([ids[a:] for ids, a in zip(self.ids, self.first, strict=True)]).astype(np.int64)[None],
            position=ranges(self.first, self.last),
            end=leaves[own],
            trunk=self.trunk,
            trunk_length=self.depth,
            is_trunk=self.is_trunk,
            reads=Reads.collect(int(self.base[-1]), [np.zeros_like(each) for each in nodes], nodes, target, request),
        )

    def _own(self) -> tuple[np.ndarray, np.ndarray]:
        """bool (lists, depths): which depths a list has nodes of its own at; int64 (depths,): these depths."""
        depth = np.arange(self.depth, self.last.max())
        return (depth >= self.first[:, None]) & (depth < self.last[:, None]), depth


def ranges(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """int64: the integers from first[0] up to last[0], then those from first[1] up to last[1], and so on."""
    sizes = last - first
    ends = np.cumsum(sizes)
    return np.arange(sizes.sum()) + np.repeat(first - ends + sizes, sizes)
