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
from itertools import pairwise

import numpy as np

from olmes_monitor.scoring.encode import Encoded
from olmes_monitor.scoring.plan import Reads, members_of, share_rows

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


def pack(requests: Sequence[Encoded], budget: int) -> list[PackedRow]:
    """Rows of at most `budget` tokens (trunks and single longer prompts apart), each after the trunk it stands on."""
    if not requests:
        return []
    row_of, rows = share_rows(requests)
    rows.reverse()
    members = members_of([len(rows) - 1 - row for row in row_of], len(rows))
    return _Packer(requests, rows, members, budget).rows()


def trie_nodes(requests: Sequence[Encoded]) -> int:
    """Distinct (prefix, token) pairs among the requests' inputs: no method can forward fewer tokens."""
    if not requests:
        return 0
    _, rows = share_rows(requests)
    rows.reverse()
    return sum(map(len, rows)) - int(_shared(rows).sum())


def _shared(rows: Sequence[np.ndarray]) -> np.ndarray:
    """int64 (rows,): tokens that each row shares with the one before it; 0 for the first."""
    shared = np.zeros(len(rows), dtype=np.int64)
    for i in range(1, len(rows)):
        n = min(len(rows[i - 1]), len(rows[i]))
        differs = rows[i - 1][:n] != rows[i][:n]
        first = int(differs.argmax())
        shared[i] = first if differs[first] else n
    return shared


class _Packer:
    """Walks the sorted token lists; `lists[a:b]` always share at least the tokens of the trunk they stand on."""

    def __init__(
        self,
        requests: Sequence[Encoded],
        lists: Sequence[np.ndarray],
        members: Sequence[Sequence[int]],
        budget: int,
    ) -> None:
        self.requests, self.lists, self.members, self.budget = requests, lists, members, budget
        self.shared = _shared(lists)
        self.lengths = np.array([len(ids) for ids in lists])
        own = self.lengths - self.shared
        self.before = np.concatenate([[0], np.cumsum(own)])
        self.found: list[_Building] = []

    def rows(self) -> list[PackedRow]:
        self._split(0, len(self.lists), -1, 0)
        return [building.finish() for building in self.found]

    def _split(self, a: int, b: int, trunk: int, depth: int) -> None:
        """Pack lists[a:b] after a trunk of `depth` tokens."""
        common = int(self.shared[a + 1 : b].min()) if b - a > 1 else depth
        if self._nodes(a, b, depth) > self.budget and common - depth >= MIN_TRUNK:
            building = _Building(trunk, depth, is_trunk=True, parents=self._chain(trunk))
            building.add(self.lists[a][:common], depth)
            self.found.append(building)
            trunk, depth = len(self.found) - 1, common
        loose: list[int] = []
        starts = [a, *(i for i in range(a + 1, b) if self.shared[i] < depth + MIN_TRUNK), b]
        for first, last in pairwise(starts):
            if last - first > 1 and self._nodes(first, last, depth) > self.budget:
                self._split(first, last, trunk, depth)
            else:
                loose += range(first, last)
        for run in self._cut(loose, depth):
            building = _Building(trunk, depth, is_trunk=False, parents=self._chain(trunk))
            for previous, i in zip([None, *run[:-1]], run, strict=True):
                building.add(self.lists[i], depth if previous is None else max(depth, self._between(previous, i)))
                for request in self.members[i]:
                    building.read(self.requests[request], request)
            self.found.append(building)

    def _nodes(self, a: int, b: int, depth: int) -> int:
        """Nodes of lists[a:b] below `depth`, which they all share."""
        return int(self.lengths[a] - depth + self.before[b] - self.before[a + 1])

    def _between(self, i: int, j: int) -> int:
        """Tokens that lists[i] and lists[j] share, i < j."""
        return int(self.shared[i + 1 : j + 1].min())

    def _chain(self, trunk: int) -> list[_Building]:
        """The trunk rows beneath, innermost first."""
        chain = []
        while trunk >= 0:
            chain.append(self.found[trunk])
            trunk = self.found[trunk].trunk
        return chain

    def _cut(self, loose: Sequence[int], depth: int) -> list[list[int]]:
        """Runs of lists whose nodes fit the budget, closed where the next run has the least to repeat."""
        runs: list[list[int]] = []
        run: list[int] = []
        costs: list[int] = []
        repeats: list[int] = []
        for i in loose:
            repeat = max(depth, self._between(run[-1], i)) - depth if run else 0
            cost = int(self.lengths[i]) - depth - repeat
            if run and sum(costs) + cost > self.budget:
                sizes = np.cumsum(costs)
                # Cutting before place p leaves sizes[p - 1] nodes; place len(run) is just before i.
                places = [p for p in range(1, len(run) + 1) if p == len(run) or sizes[p - 1] >= FILL * self.budget]
                cut = min(places, key=lambda p: ([*repeats, repeat][p], -p))
                runs.append(run[:cut])
                run, costs, repeats = run[cut:], costs[cut:], repeats[cut:]
                if run:
                    costs[0], repeats[0] = costs[0] + repeats[0], 0
                else:
                    cost, repeat = cost + repeat, 0
            run.append(i)
            costs.append(cost)
            repeats.append(repeat)
        return [*runs, run] if run else runs


class _Building:
    """A row that grows list by list."""

    def __init__(self, trunk: int, depth: int, is_trunk: bool, parents: Sequence[_Building]) -> None:
        self.trunk, self.depth, self.is_trunk, self.parents = trunk, depth, is_trunk, parents
        self.ids: list[np.ndarray] = []
        self.positions: list[np.ndarray] = []
        self.path = np.zeros(0, dtype=np.int64)
        """Node of this row at each depth (less self.depth) along the last list added."""
        self.size = 0
        self.read_nodes: list[np.ndarray] = []
        self.targets: list[np.ndarray] = []
        self.owners: list[np.ndarray] = []
        self._closed: list[tuple[np.ndarray, int]] = []

    def add(self, ids: np.ndarray, shared: int) -> None:
        """Add a list's nodes from depth `shared` on; the ones before stand in the row or the trunk."""
        kept = shared - self.depth
        self._closed.append((self.path[kept:], self.size))
        fresh = np.arange(self.size, self.size + len(ids) - shared)
        self.path = np.concatenate([self.path[:kept], fresh])
        self.ids.append(ids[shared:])
        self.positions.append(np.arange(shared, len(ids)))
        self.size += len(fresh)

    def read(self, request: Encoded, index: int) -> None:
        """Read a request of the list just added; what lies in a trunk is read there."""
        parents = np.arange(request.start - 1, len(request.ids) - 1)
        targets = request.ids[request.start :]
        mine = parents >= self.depth
        self._note(self.path[parents[mine] - self.depth], targets[mine], index)
        for trunk in self.parents:
            inside = (parents >= trunk.depth) & (parents < trunk.depth + trunk.size)
            trunk._note(parents[inside] - trunk.depth, targets[inside], index)

    def _note(self, nodes: np.ndarray, targets: np.ndarray, index: int) -> None:
        if len(nodes):
            self.read_nodes.append(nodes)
            self.targets.append(targets)
            self.owners.append(np.full(len(nodes), index))

    def finish(self) -> PackedRow:
        end = np.full(self.size, self.size, dtype=np.int64)
        for nodes, close in self._closed:
            end[nodes] = close
        rows = [np.zeros(len(nodes), dtype=np.int64) for nodes in self.read_nodes]
        return PackedRow(
            ids=np.concatenate(self.ids).astype(np.int64)[None],
            position=np.concatenate(self.positions).astype(np.int64),
            end=end,
            trunk=self.trunk,
            trunk_length=self.depth,
            is_trunk=self.is_trunk,
            reads=Reads.collect(self.size, rows, self.read_nodes, self.targets, self.owners),
        )
