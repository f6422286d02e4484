"""Looking at records again and again, cheaply: files are read anew only when one of them has changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from olmes_monitor.record.store import LINES


def changes(folders: Sequence[Path], every: float, sleep: Callable[[float], None] = time.sleep) -> Iterator[bool]:
    """Yields at once, and then every `every` seconds: whether a record has changed since the last time. Never ends."""
    seen: list[tuple[int, int] | None] | None = None
    while True:
        found = [_mark(folder) for folder in folders]
        yield found != seen
        seen = found
        sleep(every)


def _mark(folder: Path) -> tuple[int, int] | None:
    """Size and time of the record's lines, which are only appended to; None while there is no record."""
    for path in (folder, folder / LINES, folder / "olmes" / LINES):
        if path.is_file():
            facts = path.stat()
            return facts.st_size, facts.st_mtime_ns
    return None
