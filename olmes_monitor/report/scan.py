"""A scan as a terminal shows it: what is found, how far it is, what became of each checkpoint, and the curve."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from olmes_monitor.record.files import plain, read_table
from olmes_monitor.record.run import average_facts
from olmes_monitor.report.terminal import format_tokens

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from olmes_monitor.checkpoints.checkpoint import Checkpoint
    from olmes_monitor.checkpoints.scan import Outcome, State
    from olmes_monitor.record import Evaluation, Run
    from olmes_monitor.scoring.score import Progress
    from olmes_monitor.suite import Suite

ABSENT = "–"
LINE_SECONDS = 30.0
"""Seconds between two lines about one checkpoint where there is no terminal."""


class ScanProgress:
    """Says how far a scan is: bars with the time left of the checkpoint and of all on a terminal, lines elsewhere."""

    def __init__(self, console: Console | None, axis: str = "tokens") -> None:
        """console: None says nothing (ranks that are not the first)."""
        self._console, self._axis = console, axis
        self._bars: Any = None
        self._seconds: list[float] = []
        self._started, self._to_go = time.monotonic(), 0
        if console is not None and console.is_terminal:
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
            self._bars = Progress(*columns, console=console, transient=True)
            self._all = self._bars.add_task("all", total=None)
            self._one = self._bars.add_task("")
            self._bars.start()

    def begin(self, checkpoint: Checkpoint, left: int) -> Progress | None:
        """A checkpoint's turn has come; `left` are to be scored, it among them."""
        self._started, self._to_go = time.monotonic(), left
        if self._console is None:
            return None
        title = f"{checkpoint.name}, {at(checkpoint, self._axis)}"
        done = len(self._seconds)
        if self._bars is None:
            return self._lines(title)
        self._bars.update(self._all, description=f"{done} of {done + left}", total=done + left, completed=done)
        self._bars.reset(self._one, description=title)

        def report(forwarded: int, total: int, where: str) -> None:
            self._bars.update(self._one, completed=forwarded, total=total, description=f"{title} · {where}")
            self._bars.update(self._all, completed=done + forwarded / max(total, 1))

        return report

    def end(self, outcome: Outcome) -> None:
        """What became of it."""
        if self._console is None:
            return
        if outcome.state in ("scored", "failed"):
            self._seconds.append(time.monotonic() - self._started)
        if outcome.state != "known":
            self._console.print(self._line(outcome), highlight=False, markup=False, soft_wrap=True)

    def left(self, number: int) -> str:
        """In words, how long `number` more checkpoints take, by the last ones."""
        recent = self._seconds[1:][-10:] or self._seconds  # the first also made the model and the plan
        return f"{number} left, about {duration(number * float(np.mean(recent)))}" if recent and number else ""

    def close(self) -> None:
        """Takes the bars away."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def _line(self, outcome: Outcome) -> str:
        checkpoint = outcome.checkpoint
        text = f"{checkpoint.name}, {at(checkpoint, self._axis)}: "
        if outcome.evaluation is None:
            return text + f"{outcome.state}: {outcome.why}"
        facts = _facts(outcome.evaluation)
        curves = ", ".join(f"{name.upper()} {_percent(facts, name)}" for name in ("cf", "mcf"))
        left = self.left(self._to_go - 1)
        return text + f"{curves} in {duration(self._seconds[-1])}" + (f"; {left}" if left else "")

    def _lines(self, title: str) -> Progress:
        last = self._started

        def report(forwarded: int, total: int, where: str) -> None:
            nonlocal last
            if time.monotonic() - last >= LINE_SECONDS and self._console is not None:
                last = time.monotonic()
                share = forwarded / max(total, 1)
                left = (last - self._started) * (1 - share) / max(share, 1e-9)
                self._console.print(
                    f"{title} · {where}: {share:.0%}, {duration(left)} left", highlight=False, soft_wrap=True
                )

        return report


def at(checkpoint: Checkpoint, axis: str) -> str:
    """Where a checkpoint stands, in words."""
    if axis == "steps" or checkpoint.tokens is None:
        return "step unknown" if checkpoint.step is None else f"step {checkpoint.step:,}"
    return f"{format_tokens(checkpoint.tokens)} tokens"


def duration(seconds: float) -> str:
    """3.2 s, 4 min, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def found_table(checkpoints: Sequence[Checkpoint], known: Iterable[Checkpoint], axis: str) -> Table:
    """What a scan would do with each checkpoint, in order."""
    from olmes_monitor.checkpoints.dates import UNKNOWN, UNKNOWN_STEP

    done = set(known)
    table = _table("checkpoint", "kind", "step", "tokens", "dated by", "")
    for checkpoint in checkpoints:
        what = checkpoint.problem or ("scored already" if checkpoint in done else "to be scored")
        if what in (UNKNOWN, UNKNOWN_STEP):
            what, table.caption = "not dated", what  # once, below
        tokens = ABSENT if checkpoint.tokens is None or axis == "steps" else f"{checkpoint.tokens:,}"
        step = ABSENT if checkpoint.step is None else f"{checkpoint.step:,}"
        table.add_row(checkpoint.name, checkpoint.kind, step, tokens, checkpoint.dated_by or ABSENT, what)
    return table


def found_rows(checkpoints: Sequence[Checkpoint], known: Iterable[Checkpoint]) -> list[dict[str, Any]]:
    """What a scan would do with each checkpoint, in order, as JSON and CSV hold it."""
    done = set(known)
    return [
        {
            "checkpoint": str(checkpoint.path),
            "revision": checkpoint.revision,
            "kind": checkpoint.kind,
            "step": checkpoint.step,
            "tokens": checkpoint.tokens,
            "dated_by": checkpoint.dated_by or None,
            "scored": checkpoint in done,
            "problem": checkpoint.problem,
        }
        for checkpoint in checkpoints
    ]


def curve_table(run: Run, outcomes: Iterable[Outcome], axis: str) -> Table:
    """Both curves, a row an evaluation of the record: of the loop and of scans, with what this scan did."""
    now = {outcome.checkpoint.tokens for outcome in outcomes if outcome.state == "scored"}
    both = {evaluation.point.tokens for evaluation in run.others}
    names = ["step"] if axis == "steps" else ["tokens", "step"]
    table = _table(*names, "checkpoint", "CF", "MCF", "gap", "origin")
    for evaluation in run.evaluations:
        point, facts = evaluation.point, _facts(evaluation)
        place = ABSENT if point.checkpoint is None else point.checkpoint.rstrip("/").split("/")[-1]
        origin = point.origin + (", and scan" if point.tokens in both and point.origin == "loop" else "")
        origin += " (now)" if point.tokens in now else ""
        cells = [f"{point.step:,}"] if axis == "steps" else [format_tokens(point.tokens), f"{point.step:,}"]
        values = (_percent(facts, "cf"), _percent(facts, "mcf"), _percent(facts, "gap", "+"))
        table.add_row(*cells, place, *values, origin if facts else f"{origin}: failed")
    return table


def account(outcomes: Sequence[Outcome]) -> list[str]:
    """In a line how many were scored, known, skipped, failed; then why, a line a checkpoint."""
    counts = Counter(outcome.state for outcome in outcomes)
    words: dict[State, str] = {
        "scored": "scored",
        "known": "scored already",
        "skipped": "skipped",
        "incomplete": "incomplete",
        "failed": "failed",
        "vanished": "vanished",
    }
    lines = [
        ", ".join(f"{counts[state]} {word}" for state, word in words.items() if counts[state]) or "nothing to score"
    ]
    return lines + [
        f"  {o.checkpoint.name}: {o.state}: {o.why}" for o in outcomes if o.state not in ("scored", "known")
    ]


def as_json(run: Run | None, outcomes: Sequence[Outcome], folder: Path, suite: Suite) -> Any:
    """All that a scan says, as JSON holds it. run: the record's, None where it holds nothing of the suite."""
    crossovers = {} if run is None else run.crossovers()
    return plain(
        {
            "record": str(folder),
            "suite": suite.name,
            "fingerprint": suite.fingerprint,
            "checkpoints": [
                {
                    "checkpoint": str(outcome.checkpoint.path),
                    "revision": outcome.checkpoint.revision,
                    "tokens": outcome.checkpoint.tokens,
                    "step": outcome.checkpoint.step,
                    "state": outcome.state,
                    "why": outcome.why,
                }
                for outcome in outcomes
            ],
            "curve": [] if run is None else [evaluation.to_json() for evaluation in run.evaluations],
            "crossovers": {
                task: {name: getattr(found, name) for name in ("state", "tokens", "lo", "hi", "step")}
                for task, found in crossovers.items()
            },
        }
    )


def agreement(run: Run) -> tuple[int, float] | None:
    """(points that both the training loop and a scan have, the largest difference of a log-likelihood there, in nats).

    None where there is no such point. Raises RecordError where a table cannot be read.
    """
    index = {evaluation.point.tokens: i for i, evaluation in enumerate(run.evaluations) if evaluation.metrics}
    worst, points = 0.0, 0
    for evaluation, file in zip(run.others, run.others_files, strict=True):
        i = index.get(evaluation.point.tokens)
        if i is None or file is None or run.evaluations[i].point.origin == evaluation.point.origin:
            continue
        points += 1
        one, other = run.scores(i), read_table(run.folder / file)
        for name in ("cf", "mcf", "unconditional"):
            a, b = (np.array(table[name].to_pylist(), dtype=float) for table in (one, other))
            worst = max(worst, float(np.nanmax(np.abs(a - b), initial=0.0)))
    return (points, worst) if points else None


def _facts(evaluation: Evaluation) -> Mapping[str, Any]:
    """The average's, or the only task's."""
    if len(evaluation.tasks) == 1:
        return next(iter(evaluation.tasks.values()))
    return average_facts(evaluation)


def _percent(facts: Mapping[str, Any], name: str, sign: str = "") -> str:
    if name not in facts:
        return ABSENT
    error = facts.get(f"stderr_{name}")
    text = f"{100 * facts[name]:{sign}.1f}" + (f" ± {100 * error:.1f}" if error is not None else "")
    return text.replace("-", "−")


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), caption_justify="left")
    for name in columns:
        numbers = name in ("step", "tokens", "CF", "MCF", "gap")
        table.add_column(name, justify="right" if numbers else "left", no_wrap=numbers, overflow="fold")
    return table
