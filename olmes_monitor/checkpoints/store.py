"""What scans have scored, in a run's record: read to do only what is new, written one evaluation at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from olmes_monitor.checkpoints.checkpoint import Checkpoint
from olmes_monitor.errors import SetupError
from olmes_monitor.record.evaluation import Evaluation, Point
from olmes_monitor.record.files import read_lines
from olmes_monitor.record.store import Recorder

if TYPE_CHECKING:
    from olmes_monitor.suite import Suite

LOCK_SECONDS = 30.0
"""How long a writer waits for the others. Without the lock a line may be lost where several machines write to one file
over a network; with it a scan that cannot have it goes on all the same."""

Identity = tuple[str, int]
"""A checkpoint's content key and its tokens: a file that is written over has another key."""


class Results:
    """The scanned evaluations of one suite in a record's folder.

    Several processes may each have one for the same folder. `refresh` reads what the others have added.
    """

    def __init__(self, folder: Path, suite: Suite, axis: Literal["tokens", "steps"] = "tokens") -> None:
        """Makes the folder. Raises RecordError if it cannot be written, SetupError if it holds curves over the other axis."""
        self.recorder = Recorder(folder)
        self.suite, self.axis = suite, axis
        self.lines: dict[Identity, dict[str, Any]] = {}
        """Of every checkpoint scored so far its line in the record, the last one."""
        self.any = False
        """Whether the record has any evaluation of this suite, also the training loop's."""
        self._problems: dict[Identity, str] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the record again."""
        if not self.recorder.lines.exists():
            return
        for line in read_lines(self.recorder.lines):
            if line["fingerprint"] != self.suite.fingerprint:
                continue
            self.any = True
            point = Point.from_json(line["point"])
            if point.axis != self.axis:
                raise SetupError(
                    f"{self.recorder.folder} holds a curve over {point.axis}, and this scan is over {self.axis}; one curve "
                    "has one axis: choose another folder with --out"
                )
            if point.origin == "scan" and line["scores_file"] is not None:
                self.lines[point.key, point.tokens] = line
            elif point.origin == "scan":
                self._problems[point.key, point.tokens] = line.get("problems", {}).get("evaluation", "")

    def has(self, checkpoint: Checkpoint) -> bool:
        """Whether this very content was scored on this suite, as far as the record was last read."""
        return identity(checkpoint) in self.lines

    def point(self, checkpoint: Checkpoint) -> Point:
        """Where training stood when the checkpoint was saved. `time` is now: when it was scored."""
        place = str(checkpoint.path) if checkpoint.revision is None else f"{checkpoint.path}@{checkpoint.revision}"
        key, tokens = identity(checkpoint)
        return Point(tokens, checkpoint.step or 0, time.time(), place, "scan", key, self.axis)

    def keep(self, checkpoint: Checkpoint, evaluation: Evaluation) -> None:
        """Write an evaluation, on disk when this returns; nothing if another process has written the same meanwhile.

        Raises RecordError if it cannot be written.
        """
        with self._alone():
            self.refresh()
            if not self.has(checkpoint):
                self.recorder.write(evaluation)
                self.refresh()

    def fail(self, checkpoint: Checkpoint, reason: str) -> None:
        """Record why a checkpoint has no scores, once for one reason."""
        problems = {"evaluation": reason}
        failed = Evaluation(self.point(checkpoint), self.suite.name, self.suite.fingerprint, None, problems=problems)
        with self._alone():
            self.refresh()
            if self._problems.get(identity(checkpoint)) != reason and not self.has(checkpoint):
                self.recorder.write(failed)
                self.refresh()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Held by one process at a time, where the file system can do that. A killed process holds nothing."""
        from filelock import FileLock, Timeout

        lock = FileLock(self.recorder.folder / ".scan.lock", timeout=LOCK_SECONDS)
        try:
            lock.acquire()
        except (Timeout, OSError, NotImplementedError):
            yield
            return
        try:
            yield
        finally:
            lock.release()


def identity(checkpoint: Checkpoint) -> Identity:
    """What a checkpoint's evaluation is found by in the record. Raises SetupError where it is not dated."""
    if checkpoint.tokens is None:
        raise SetupError(f"it is not known where {checkpoint.path} stands on the axis")
    return checkpoint.key, checkpoint.tokens
