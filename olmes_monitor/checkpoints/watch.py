"""Scoring checkpoints as they land beside a live run."""

from __future__ import annotations

import time
from collections.abc import Callable

from olmes_monitor.checkpoints.scan import Scan, label


def watch(scan: Scan, seconds: float, until_step: int | None = None, idle: Callable[[], None] | None = None) -> None:
    """Score each checkpoint once, in order, looking for new ones after every one and else every `seconds`.

    Returns once a checkpoint of step `until_step` or later was dealt with and nothing else waits; without it never. Where
    ranks score together each looks round by the first rank's word, so that none waits longer than `seconds` for it.
    `idle` is called when all there was is done and something was.
    """
    while True:
        tried: set[tuple] = set()
        # After every checkpoint: several may have landed meanwhile, and the trainer may delete the older ones soon.
        while new := [checkpoint for checkpoint in scan.new(scan.find()) if label(checkpoint) not in tried]:
            tried.add(label(new[0]))
            scan.take(
                new[0], next((checkpoint for checkpoint in new[1:] if checkpoint.problem is None), None), len(new)
            )
        if _reached(scan, until_step):
            scan.once()
            return
        if tried and idle is not None:
            idle()
        time.sleep(seconds)


def _reached(scan: Scan, until_step: int | None) -> bool:
    dealt_with = (outcome for outcome in scan.outcomes.values() if outcome.state != "incomplete")
    return until_step is not None and any((outcome.checkpoint.step or 0) >= until_step for outcome in dealt_with)
