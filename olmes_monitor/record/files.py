"""The files of a record: lines appended whole, tables written whole, both read with suspicion."""

from __future__ import annotations

import contextlib
import json
import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olmes_monitor.errors import RecordError

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1
"""Version of a line. A line of another format is left alone."""


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a record in the order they were written, each as later corrections have it. Unreadable ones are
    skipped, each with a warning.

    Raises RecordError if the file cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(f"cannot read the record {path}: {error}") from error
    found: list[dict[str, Any]] = []
    for number, raw in enumerate(data.split(b"\n"), start=1):
        if not raw.strip():
            continue
        line, problem = _parse(raw)
        if line is None:
            warnings.warn(f"{path}, line {number} is skipped: {problem}", stacklevel=2)
        elif "amends" in line:
            for amended in found:
                if amended.get("id") == line["amends"]:
                    amended["point"]["checkpoint"] = line["checkpoint"]
        else:
            found.append(line)
    return found


def read_table(path: Path) -> pa.Table:
    """An evaluation's scores. Raises RecordError if the file is missing or damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Not pq.read_table: a folder called lr=0.1 would become a column.
        with pq.ParquetFile(path) as file:
            return file.read()
    except (OSError, pa.ArrowException) as error:
        raise RecordError(f"cannot read the scores {path}: {error}") from error


def _parse(raw: bytes) -> tuple[dict[str, Any] | None, str]:
    """(line, "") or (None, what is wrong with it)."""
    try:
        line = json.loads(raw)
    except ValueError:  # of JSON or of UTF-8
        return None, "it is torn or not JSON (a process was killed while writing it, or still writes)"
    if not isinstance(line, dict):
        return None, "it is not an evaluation"
    if line.get("format") != FORMAT:
        return None, f"its format is {line.get('format')!r}, and this version reads {FORMAT}"
    needed = {"checkpoint"} if "amends" in line else {"point", "suite", "fingerprint", "scores_file"}
    if missing := needed - line.keys():
        return None, f"it lacks {', '.join(sorted(missing))}"
    return line, ""


def write_table(table: pa.Table, path: Path) -> None:
    """Whole or not at all: a temporary file in the same folder takes the name when it is on disk."""
    import pyarrow.parquet as pq

    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            pq.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def append_line(path: Path, data: bytes) -> None:
    """One write at the end of the file; a torn last line is ended first, so that it cannot swallow this one."""
    new = not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data
        written = os.write(descriptor, data)
        if written != len(data):
            raise OSError(f"only {written} of {len(data)} bytes could be written to {path}")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if new:
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Makes a new name in the folder survive a power cut. Some file systems refuse, and then it may not."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def plain(value: Any) -> Any:
    """As JSON can hold it: numpy scalars and arrays unwrapped, what is not finite null, anything foreign its text."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)
