"""What evaluations cost beside the training they watch, in words."""

from __future__ import annotations

import logging
from pathlib import Path

from olmes_monitor.report.terminal import format_tokens
from olmes_monitor.schedule import Geometric, Schedule
from olmes_monitor.scoring.score import Scorer

logger = logging.getLogger("olmes_monitor")

WORTH_A_WARNING = 0.2
"""Share of the training compute beyond which a user should know what the evaluations cost."""


def compute_share(scorer: Scorer, schedule: Schedule) -> float | None:
    """An evaluation's share of the training compute of one interval (the shortest): forward tokens against forward and
    backward ones, a backward pass counted as two forward passes. None where the schedule has no interval."""
    return None if schedule.interval is None else scorer.tokens / (3 * schedule.interval)


def schedule_in_words(schedule: Schedule) -> str:
    """As in "an evaluation every 1B tokens, at each saved checkpoint"."""
    parts = []
    if isinstance(schedule.every, Geometric):
        parts.append(
            f"at {format_tokens(schedule.every.first)} tokens and each {schedule.every.ratio:g}-fold from there"
        )
    elif isinstance(schedule.every, int):
        parts.append(f"every {format_tokens(schedule.every)} tokens")
    if schedule.at:
        parts.append(f"at {len(schedule.at)} given token counts")
    if schedule.at_checkpoints:
        parts.append("at each saved checkpoint")
    return ", ".join(parts or ["at the start and the end only"])


def describe(scorer: Scorer, schedule: Schedule, record: Path) -> str:
    """One line: what is asked, how often, and what it costs."""
    suite, share = scorer.suite, compute_share(scorer, schedule)
    questions = sum(len(task.questions) for task in suite.tasks.values())
    cost = "" if share is None else f", {share:.2%} of the training compute"
    return (
        f"olmes_monitor: suite {suite.name} ({suite.fingerprint}): {len(suite.tasks)} tasks, {questions:,} questions, "
        f"{scorer.requests:,} requests, {format_tokens(scorer.tokens)} tokens forwarded ({scorer.path.name} path) by an "
        f"evaluation {schedule_in_words(schedule)}{cost}; record in {record}"
    )


def warn_of_cost(scorer: Scorer, schedule: Schedule) -> None:
    """Before training: where an evaluation takes a large share of an interval."""
    share = compute_share(scorer, schedule)
    if share is not None and share > WORTH_A_WARNING:
        logger.warning(
            "an evaluation costs %.0f %% of the training compute between two of them: it forwards %s tokens, and the shortest "
            "interval trains on %s; a larger every, or suite='quick', costs less",
            100 * share,
            f"{scorer.tokens:,}",
            f"{schedule.interval:,}",
        )


def warn_of_step(tokens: int, schedule: Schedule) -> None:
    """At the first optimizer step: where it is longer than the interval, so that points merge."""
    if schedule.interval is not None and tokens > schedule.interval:
        logger.warning(
            "one optimizer step feeds %s tokens, more than the %s between two scheduled points: several points in one step "
            "make one evaluation",
            f"{tokens:,}",
            f"{schedule.interval:,}",
        )
