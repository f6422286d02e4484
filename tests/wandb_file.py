"""Reads a `.wandb` file: a 7-byte header, then LevelDB log blocks of 32 KiB that hold protobuf records."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

BLOCK = 32 * 1024


def records(path: Path) -> list[Any]:
    """Every record of a finished offline run, in order. (Some versions write the end after finish() has returned.)"""
    for _ in range(100):
        found = _records(path)
        if any(record.WhichOneof("record_type") == "exit" for record in found):
            return found
        time.sleep(0.1)
    raise AssertionError(f"{path.name} has no end after ten seconds")


def _records(path: Path) -> list[Any]:
    from wandb.proto import wandb_internal_pb2

    found = []
    for payload in _payloads(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(payload)
        found.append(record)
    return found


def history(path: Path) -> list[dict[str, Any]]:
    """The logged rows: name → value; a table's is a dict that names its file."""
    return [_values(record.history.item) for record in records(path) if record.WhichOneof("record_type") == "history"]


def summary(path: Path) -> dict[str, Any]:
    """What was put into the summary, the last value of each name. (W&B itself adds the last row of history to it.)"""
    found: dict[str, Any] = {}
    for record in records(path):
        if record.WhichOneof("record_type") == "summary":
            found |= _values(record.summary.update)
    return found


def config(path: Path) -> dict[str, Any]:
    """The run's config as it was left, W&B's own part under "_wandb"."""
    found: dict[str, Any] = {}
    for record in records(path):
        for update in (record.run.config.update, record.config.update):
            _put(found, update)
    return found


def alerts(path: Path) -> list[tuple[str, str]]:
    """Title and text of each alert."""
    kinds = [record.alert for record in records(path) if record.WhichOneof("record_type") == "alert"]
    return [(alert.title, alert.text) for alert in kinds]


def artifacts(path: Path) -> dict[str, list[str]]:
    """Name of each artifact → the files in it."""
    kinds = [record.artifact for record in records(path) if record.WhichOneof("record_type") == "artifact"]
    return {artifact.name: [entry.path for entry in artifact.manifest.contents] for artifact in kinds}


def table(path: Path, value: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows of a table that a row of history names."""
    content = json.loads((path.parent / "files" / value["path"]).read_text())
    return content["columns"], content["data"]


def axes(path: Path) -> dict[str, str]:
    """The metric rules: exact name (or glob) → the metric it is drawn against."""
    return {
        record.metric.name or record.metric.glob_name: record.metric.step_metric
        for record in records(path)
        if record.WhichOneof("record_type") == "metric"
    }


def offline_run(folder: Path) -> Path:
    """The one offline run below a folder."""
    (path,) = folder.rglob("run-*.wandb")
    return path


def _values(items: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    _put(found, items)
    return found


def _put(found: dict[str, Any], items: Any) -> None:
    for item in items:
        *above, last = list(item.nested_key) or [item.key]
        place = found
        for name in above:
            place = place.setdefault(name, {})
        place[last] = json.loads(item.value_json)


def _payloads(data: bytes) -> list[bytes]:
    found, whole, position = [], b"", 7
    while position + 7 <= len(data):
        # The file's header counts as a part of its first block; a block's tail too short for a header is padding.
        left = BLOCK - position % BLOCK
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        if position + 7 + length > len(data):
            break  # it is still being written
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # full, last
            found.append(whole)
            whole = b""
    return found
