"""What a record knows of a run that goes on: its suite, its attempts, its points. Functions of the record's lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from olmes_monitor.errors import SetupError
from olmes_monitor.record.run import Line, merge
from olmes_monitor.suite import Suite


def check_suite(lines: Sequence[Line], suite: Suite, record: Path) -> None:
    """A curve that goes on must go on with the same questions: SetupError if the record holds only others.

    (The folder may hold an earlier run's suite beside this one's: only a curve begun with another is refused.)
    """
    held = {line["fingerprint"]: line["suite"] for line in lines}
    if held and suite.fingerprint not in held:
        names = ", ".join(f"{name} ({fingerprint})" for fingerprint, name in held.items())
        raise SetupError(
            f"{record} holds suite {names}, this run asks {suite.name} ({suite.fingerprint}); one curve has one "
            "suite: ask the same, or give another out="
        )


def attempts(lines: Sequence[Line], fingerprint: str) -> int:
    """How many starts of a process have written to this curve."""
    return max((line.get("attempt", 1) for line in lines if line["fingerprint"] == fingerprint), default=0)


def live(lines: Sequence[Line], fingerprint: str) -> list[Line]:
    """The training loop's lines that no later one supersedes, by tokens."""
    own = [
        line for line in lines if line["fingerprint"] == fingerprint and line["point"].get("origin", "loop") == "loop"
    ]
    return merge(own)[0]


def last_evaluated(lines: Sequence[Line], fingerprint: str, tokens: int) -> int | None:
    """The curve's last point that lies not beyond `tokens`; None if there is none."""
    points = (line["point"]["tokens"] for line in live(lines, fingerprint))
    return max((point for point in points if point <= tokens), default=None)


def tokens_at(lines: Sequence[Line], fingerprint: str, step: int) -> tuple[int, bool] | None:
    """The tokens that `step` optimizer steps had fed, and whether that is exact; None if the curve does not tell.

    Between two evaluations, and beyond the last, tokens are taken to grow evenly with the steps.
    """
    points = [(line["point"]["step"], line["point"]["tokens"]) for line in live(lines, fingerprint)]
    known = dict(points)
    if step in known:
        return known[step], True
    # Training starts at (0, 0), whether that was evaluated or not.
    before = max(((s, t) for s, t in points if s < step), default=(0, 0))
    after = min(((s, t) for s, t in points if s > step), default=None)
    if after is None:
        earlier = max(((s, t) for s, t in points if s < before[0]), default=(0, 0))
        if before[0] == 0:
            return None
        rate = (before[1] - earlier[1]) / (before[0] - earlier[0])
    else:
        rate = (after[1] - before[1]) / (after[0] - before[0])
    return round(before[1] + rate * (step - before[0])), False


def saved_states(stateful_callbacks: Mapping[str, Any], name: str) -> list[tuple[str, dict[str, Any]]]:
    """(key, state) of each callback of class `name` that transformers' trainer_state.json holds, in the order it was saved.

    Of a callback that never ran there is no state.
    """
    found = stateful_callbacks.get(name) or []
    entries = found if isinstance(found, list) else [found]
    pairs = [(entry.get("args", {}).get("adopt", ""), entry.get("attributes", {}).get("restored")) for entry in entries]
    return [(key, state) for key, state in pairs if state]
