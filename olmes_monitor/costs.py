"""What is asked and what it costs beside the training it watches, in words and for the trackers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from olmes_monitor.measure.noise import advice_before
from olmes_monitor.refine import Refiner
from olmes_monitor.report.terminal import format_tokens
from olmes_monitor.schedule import Geometric, Schedule
from olmes_monitor.scoring.score import Scorer, versions

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


def describe(scorer: Scorer, schedule: Schedule, record: Path, refiner: Refiner | None = None) -> str:
    """One line: what is asked, how often, and what it costs."""
    suite, share = scorer.suite, compute_share(scorer, schedule)
    questions = sum(len(task.questions) for task in suite.tasks.values())
    cost = "" if share is None else f", {share:.2%} of the training compute"
    closer = "" if refiner is None else f", and up to {refiner.cap:.0%} more of them where MCF is about to overtake CF"
    tasks = f"{len(suite.tasks)} task{'s' if len(suite.tasks) != 1 else ''}"
    return (
        f"olmes_monitor: suite {suite.name} ({suite.fingerprint}): {tasks}, {questions:,} questions, "
        f"{scorer.requests:,} requests, {format_tokens(scorer.tokens)} tokens forwarded ({scorer.path.name} path) by an "
        f"evaluation {schedule_in_words(schedule)}{cost}{closer}; record in {record}"
    )


def config_of(scorer: Scorer, schedule: Schedule, **more: Any) -> dict[str, Any]:
    """What trackers keep as the run's settings: what is asked, when, and `more`."""
    suite = scorer.suite
    return {
        "suite": suite.name,
        "fingerprint": suite.fingerprint,
        "questions": {name: len(task.questions) for name, task in suite.tasks.items()},
        "every": schedule.every,
        "versions": versions(),
        **more,
    }


def asks_both(scorer: Scorer) -> bool:
    """Whether each task is asked in both formulations, so that one can overtake the other."""
    return {job.formulation for job in scorer.jobs} >= {"cf", "mcf"}


def advise(scorer: Scorer) -> list[str]:
    """Before training: a line, logged too, where the suite's questions are too few to show a crossing soon."""
    if not asks_both(scorer):
        return []
    suite = scorer.suite
    line = advice_before({name: len(task.questions) for name, task in suite.tasks.items()}, suite.name)
    if line is None:
        return []
    logger.info(line)
    return [line]


def warn_of_cost(scorer: Scorer, schedule: Schedule) -> None:
    """Before training: where an evaluation takes a large share of an interval."""
    share = compute_share(scorer, schedule)
    if share is not None and share > WORTH_A_WARNING:
        logger.warning(
            "an evaluation costs %.0f %% of the training compute between two of them: it forwards %s tokens, and the shortest "
            "interval trains on %s; a larger every or fewer questions (suite='quick', limit=) cost less",
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
