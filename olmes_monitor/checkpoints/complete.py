"""Whether a checkpoint's files are whole."""

from __future__ import annotations

from olmes_monitor.checkpoints.checkpoint import Checkpoint


def why_incomplete(checkpoint: Checkpoint) -> tuple[str, bool] | None:
    """(reason, whether waiting may mend it), or None if the files look whole; reads headers and sizes only."""
    raise NotImplementedError
