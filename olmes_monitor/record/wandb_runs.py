"""Which W&B runs belong to a record: `wandb.json` beside it, so that no second writer ever hits the training's own run."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from olmes_monitor.errors import RecordError

logger = logging.getLogger("olmes_monitor")

FILE = "wandb.json"


def read(folder: Path) -> dict[str, Any]:
    """{"live": {run id: facts}, "uploads": {run id: facts}}: the runs that training logged to, and those of uploads.

    Raises RecordError where the file is damaged: what must not be overwritten would not be known.
    """
    path = folder / FILE
    if not path.exists():
        return {"live": {}, "uploads": {}}
    try:
        found = json.loads(path.read_text())
        return {"live": dict(found["live"]), "uploads": dict(found["uploads"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"cannot read {path}, which says which W&B runs this record has: {error}") from error


def write(folder: Path, found: dict[str, Any]) -> None:
    """Whole or not at all."""
    path = folder / FILE
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(found, indent=1) + "\n")
    os.replace(temporary, path)


def remember_live(folder: Path, run: Any) -> None:
    """Notes the id of the run that training logs to, with its project and group."""
    if getattr(run, "disabled", False):
        return
    try:
        found = read(folder)
        facts = {name: getattr(run, name, None) or None for name in ("project", "entity", "group")}
        found["live"][run.id] = {name: value for name, value in facts.items() if isinstance(value, str)}
        write(folder, found)
    except (OSError, RecordError) as error:
        logger.warning("the id of W&B's run could not be kept beside the record: %s", error)
