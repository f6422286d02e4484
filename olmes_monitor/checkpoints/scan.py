"""The scan: every checkpoint that is new is scored, in order, and what cannot be is told with its reason."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from olmes_monitor.checkpoints.checkpoint import Checkpoint
from olmes_monitor.checkpoints.complete import VANISHED, why_incomplete
from olmes_monitor.checkpoints.skeleton import ChangedError, Skeleton, stamp_of
from olmes_monitor.checkpoints.store import Results
from olmes_monitor.errors import OLMESError, RecordError
from olmes_monitor.record.evaluation import Evaluation
from olmes_monitor.scoring.parallel import Failure
from olmes_monitor.scoring.score import Progress

logger = logging.getLogger("olmes_monitor")

PAUSE = 3.0
"""Seconds after which a checkpoint that was being written is looked at once more."""

State = Literal["scored", "known", "skipped", "incomplete", "failed", "vanished"]
"""scored: now. known: by an earlier scan, or by another worker of this one. skipped: its files cannot be those of a whole
checkpoint. incomplete: it is being written, or was never finished. failed: it could not be loaded or scored. vanished: it
was deleted (trainers keep only the last few) before it could be read."""

Found = Callable[[], list[Checkpoint]]


@dataclass
class Outcome:
    """What became of one checkpoint."""

    checkpoint: Checkpoint
    state: State
    why: str = ""
    evaluation: Evaluation | None = None
    """Of state "scored"; without its scores, which are on disk."""

    @property
    def good(self) -> bool:
        """Whether the curve has it."""
        return self.state in ("scored", "known")


class Watcher(Protocol):
    """Who is told how a scan goes on."""

    def begin(self, checkpoint: Checkpoint, left: int) -> Progress | None:
        """A checkpoint is loaded next; `left` are to be scored, it among them."""

    def end(self, outcome: Outcome) -> None:
        """It has become this."""


class Scan:
    """One scan of a record. Where ranks score each checkpoint together, every rank makes the same calls."""

    def __init__(self, skeleton: Skeleton, results: Results, find: Found, watcher: Watcher) -> None:
        """`find` gives the checkpoints there are now, in order; rank 0 alone calls it."""
        self.skeleton, self.results, self.watcher = skeleton, results, watcher
        self.ranks = skeleton.ranks
        self._find = find
        self._stamps: dict[Any, tuple] = {}
        self.outcomes: dict[tuple[str, str | None, str], Outcome] = {}
        """What has become of each checkpoint, by place and content, in the order it was dealt with."""

    def find(self) -> list[Checkpoint]:
        """The checkpoints there are now; those that a scan has scored are noted as known, the incomplete that went as such."""

        def look() -> tuple[list[Checkpoint], list[Outcome]]:
            self.results.refresh()
            found = self._find()
            known = [Outcome(c, "known") for c in found if label(c) not in self.outcomes and self._known(c)]
            gone = [
                Outcome(outcome.checkpoint, "vanished", "it was deleted before it was whole")
                for outcome in self.outcomes.values()
                if outcome.state == "incomplete" and is_gone(outcome.checkpoint)
            ]
            return found, known + gone

        found, outcomes = from_first(self.ranks, look)
        for outcome in outcomes:
            self._note(outcome)
        # What was found is what must be read: a file may be written over while others are scored.
        self._stamps.update((label(checkpoint), stamp_of(checkpoint)) for checkpoint in found)
        return found

    def new(self, found: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Those of `found` still to be dealt with, in order: not seen yet, or whole after having been incomplete."""
        before = {place: outcome.state for place, outcome in self.outcomes.items()}
        return [c for c in found if label(c) not in before or (before[label(c)] == "incomplete" and c.problem is None)]

    def once(self) -> None:
        """Score all that is there and new; what was being written is looked at again after a moment."""
        self.deal_with(self.find())
        if any(outcome.state == "incomplete" for outcome in self.outcomes.values()):
            time.sleep(PAUSE)
            self.deal_with(self.find())

    def deal_with(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Score those of `checkpoints` that are new, in order; the next is read while one is scored."""
        new = self.new(checkpoints)
        for number, checkpoint in enumerate(new):
            self.take(checkpoint, next((c for c in new[number + 1 :] if c.problem is None), None), len(new) - number)

    def take(self, checkpoint: Checkpoint, following: Checkpoint | None = None, left: int = 1) -> Outcome:
        """Load and score one checkpoint and keep the evaluation. `following`: read it meanwhile.

        Raises RecordError where the record cannot be written: nothing else could be kept either.
        """
        if checkpoint.problem is not None:
            gone = checkpoint.problem.startswith(VANISHED)
            state: State = "vanished" if gone else "incomplete" if checkpoint.may_mend else "skipped"
            return self._note(Outcome(checkpoint, state, checkpoint.problem))
        progress = self.watcher.begin(checkpoint, left)
        try:
            self.skeleton.put(checkpoint, self._stamps.get(label(checkpoint)))
            if following is not None:
                self.skeleton.ahead(following)
            evaluation = self.skeleton.evaluate(self.results.point(checkpoint), progress)
        except RecordError:
            raise
        except Exception as error:
            if self.ranks.size > 1 and not isinstance(error, OLMESError):
                raise  # the ranks are out of step; nothing that follows could be trusted
            return self._note(self._failed(checkpoint, error))
        self._on_first(lambda: self.results.keep(checkpoint, evaluation))
        evaluation.scores = None
        return self._note(Outcome(checkpoint, "scored", evaluation=evaluation))

    def _failed(self, checkpoint: Checkpoint, error: Exception) -> Outcome:
        """Which kind of failure it was: gone, being written, or for good. Rank 0 looks, for all."""
        if not isinstance(error, OLMESError):
            logger.debug("scoring %s", checkpoint.path, exc_info=error)
        reason = str(error) if isinstance(error, OLMESError) else f"{type(error).__name__}: {error}"
        reason = reason.strip().splitlines()[0] if reason.strip() else type(error).__name__

        def look() -> tuple[State, str]:
            if is_gone(checkpoint) or getattr(error, "vanished", False):
                return "vanished", "it was deleted while it was read"
            if isinstance(error, ChangedError) or isinstance(error.__cause__, ChangedError):
                return "incomplete", reason
            problem = why_incomplete(checkpoint)
            return ("incomplete", problem[0]) if problem is not None and problem[1] else ("failed", reason)

        state, why = from_first(self.ranks, look)
        return Outcome(checkpoint, state, why)

    def _note(self, outcome: Outcome) -> Outcome:
        for place, earlier in list(self.outcomes.items()):
            # Once it is whole its content has another key.
            if earlier.state == "incomplete" and place[:2] == spot(outcome.checkpoint):
                del self.outcomes[place]
        self.outcomes[label(outcome.checkpoint)] = outcome
        if outcome.state in ("failed", "vanished") and outcome.checkpoint.tokens is not None:
            self._on_first(lambda: self.results.fail(outcome.checkpoint, f"{outcome.state}: {outcome.why}"))
        self.watcher.end(outcome)
        return outcome

    def _known(self, checkpoint: Checkpoint) -> bool:
        return checkpoint.tokens is not None and self.results.has(checkpoint)

    def _on_first(self, action: Callable[[], None]) -> None:
        from_first(self.ranks, action)


def label(checkpoint: Checkpoint) -> tuple[str, str | None, str]:
    """A checkpoint's place and content: a file that is written over is another checkpoint."""
    return (*spot(checkpoint), checkpoint.key)


def spot(checkpoint: Checkpoint) -> tuple[str, str | None]:
    """A checkpoint's place."""
    return str(checkpoint.path), checkpoint.revision


def is_gone(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint's file or folder was deleted."""
    return checkpoint.kind != "hub" and not Path(checkpoint.path).exists()


def from_first(ranks: Any, action: Callable[[], Any]) -> Any:
    """What `action` returns on rank 0, on every rank; what it raises there is raised on all, an error of another kind as
    EvaluationError. A collective."""
    if ranks.size == 1:
        return action()
    import torch.distributed as dist

    held: list[Any] = [None, None]
    error: Exception | None = None
    if ranks.rank == 0:
        try:
            held = [action(), None]
        except Exception as failure:
            error = failure
            held = [None, failure if isinstance(failure, OLMESError) else None]
    ranks.agree(None if error is None or held[1] is not None else Failure("the scan's first rank", error))
    dist.broadcast_object_list(held, src=0, device=ranks.device)
    if held[1] is not None:
        raise held[1]
    return held[0]
