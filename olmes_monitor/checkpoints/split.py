"""Many workers on one scan: each takes the next checkpoint, and one whose worker died is taken again."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from olmes_monitor.checkpoints.checkpoint import Checkpoint
from olmes_monitor.checkpoints.scan import PAUSE, Outcome, Scan, label, spot

if TYPE_CHECKING:
    from torch.distributed import Store

LEASE = 60.0
"""Seconds without a sign of life after which a worker's checkpoint is another's to take."""
BEAT = 5.0
"""Seconds between two signs of life, and between two looks at what the others have left."""


class Leases:
    """Who scores which checkpoint, in a store that all workers of a job share.

    A worker's lease holds while its counter of signs of life moves. Each worker times the others' counters by its own
    clock, so that machines whose clocks differ agree. A worker that was only slow may find its checkpoint scored by
    another as well; the record keeps one of the two.
    """

    def __init__(self, connect: Callable[[], Store], lease: float = LEASE, beat: float = BEAT) -> None:
        """`connect` opens the store, see `open_store`."""
        self._store, self._lease, self._beat = connect(), lease, beat
        self.worker = uuid.uuid4().hex
        self._seen: dict[str, tuple[int, float]] = {}
        self._ended = threading.Event()
        # A connection of its own: the main one may be waiting when a sign of life is due.
        threading.Thread(target=self._live, args=(connect(),), daemon=True, name="signs of life").start()

    def claim(self, name: str) -> bool:
        """Take a piece of work that is free, or whose worker shows no sign of life any more."""
        owner = self._store.compare_set(f"owner/{name}", "", self.worker).decode()
        if owner == self.worker:
            return True
        if self.alive(owner):
            return False
        return self._store.compare_set(f"owner/{name}", owner, self.worker).decode() == self.worker

    def alive(self, worker: str) -> bool:
        """Whether a worker's counter has moved within the lease, as far as this worker has looked."""
        count = self._store.add(f"life/{worker}", 0)
        before, since = self._seen.get(worker, (None, 0.0))
        now = time.monotonic()
        if count != before:
            self._seen[worker] = count, now
            return True
        return now - since < self._lease

    def tell(self, name: str, outcome: Outcome) -> None:
        """Say what became of a piece of work that is not in the record."""
        self._store.set(f"told/{name}", f"{outcome.state}\n{outcome.why}")

    def told(self, name: str) -> tuple[str, str] | None:
        """State and reason of work that some worker could not do; None if there is no such word."""
        if not self._store.check([f"told/{name}"]):
            return None
        state, why = self._store.get(f"told/{name}").decode().split("\n", 1)
        return state, why

    def end(self) -> None:
        """No more signs of life."""
        self._ended.set()

    def _live(self, store: Store) -> None:
        while not self._ended.wait(self._beat):
            store.add(f"life/{self.worker}", 1)

    def rest(self) -> None:
        """Wait until it is worth looking again."""
        time.sleep(self._beat)


def share_checkpoints(scan: Scan, leases: Leases, workers: int) -> None:
    """Score what no other worker does, until nothing is left: each is in the record, or some worker told why not.

    `scan` is this worker's own, of one rank. What was being written is looked at once more by the worker that met it.
    """
    while left := [checkpoint for checkpoint in scan.new(scan.find()) if not _told(scan, leases, checkpoint)]:
        mine = _claim(leases, left)
        if mine is None:
            leases.rest()  # others are at all that is left; should one die, its checkpoint is taken again
            continue
        rest = [checkpoint for checkpoint in left if checkpoint != mine and checkpoint.problem is None]
        # Claimed ahead only while there is enough for all: nobody shall wait for what another has merely put by.
        following = _claim(leases, rest) if len(rest) > workers else None
        _take(scan, leases, mine, following, len(left))
        if following is not None:
            _take(scan, leases, following, None, len(left) - 1)
    leases.end()


def _take(scan: Scan, leases: Leases, checkpoint: Checkpoint, following: Checkpoint | None, left: int) -> None:
    outcome = scan.take(checkpoint, following, left)
    if outcome.state == "incomplete":
        # Once more after a moment; whole, its content has another name.
        time.sleep(PAUSE)
        found = [c for c in scan.find() if spot(c) == spot(checkpoint) and c.problem is None]
        outcome = scan.take(found[0], following, left) if found else outcome
    if not outcome.good:
        leases.tell(_name(checkpoint), outcome)


def _claim(leases: Leases, checkpoints: Sequence[Checkpoint]) -> Checkpoint | None:
    return next((checkpoint for checkpoint in checkpoints if leases.claim(_name(checkpoint))), None)


def _told(scan: Scan, leases: Leases, checkpoint: Checkpoint) -> bool:
    """Whether some worker could not do it; then it is noted, so that every worker's account is whole."""
    found = leases.told(_name(checkpoint))
    if found is None:
        return False
    scan.outcomes[label(checkpoint)] = Outcome(checkpoint, found[0], found[1])  # type: ignore[arg-type]
    return True


def _name(checkpoint: Checkpoint) -> str:
    return "/".join(str(part) for part in label(checkpoint))


def open_store(folder: Path, job: str) -> Store:
    """A store that outlives any of its workers: a file in the record's folder. `job`: a name that no other job has."""
    from torch.distributed import FileStore

    store = FileStore(str(folder / f".workers-{job}"), -1)
    store.set_timeout(timedelta(seconds=60))
    return store
