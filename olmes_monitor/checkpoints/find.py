"""Finding saved checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from olmes_monitor.checkpoints.checkpoint import Checkpoint


def find_checkpoints(
    places: Sequence[str | Path],
    *,
    tokens_per_step: int | None = None,
    revisions: str | None = None,
    axis: Literal["tokens", "steps"] = "tokens",
) -> list[Checkpoint]:
    """Every checkpoint in `places`, once, ordered by tokens, then by step; those that must not be scored carry `problem`.

    Raises SetupError for a place that is not there.
    """
    raise NotImplementedError
