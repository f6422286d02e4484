"""Token counts and crossovers in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from olmes_monitor.measure.crossover import Crossover

_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k"))


def format_tokens(tokens: int | float, digits: int = 1) -> str:
    """412_300_000_000 → "412.3B"; at most `digits` decimals, zeros at the end dropped; units k, M, B, T (decimal)."""
    for unit, letter in _UNITS:
        # Where the unit below would round to a thousand, as 999_960_000 to 1000.0M, this one is due.
        if round(1000 * tokens / unit, digits) >= 1000:
            text = f"{tokens / unit:.{digits}f}"
            return (text.rstrip("0").rstrip(".") if "." in text else text) + letter
    return f"{tokens:.0f}"


def interval_words(crossover: Crossover) -> str:
    """ "398B, 431B", "" without an interval; ≤ or ≥ where the crossing may lie before the first evaluation, or be still
    to come."""
    if crossover.lo is None:
        return "" if crossover.hi is None else f"≤ {format_tokens(crossover.hi)}"
    lo = format_tokens(crossover.lo)
    return f"≥ {lo}" if crossover.hi is None else f"{lo}, {format_tokens(crossover.hi)}"


def crossover_lines(crossovers: Mapping[str, Crossover]) -> list[str]:
    """One sentence a task, the average last; beside a single task it would say the same twice and is left out."""
    alone = len(crossovers) == 2
    return [crossover_line(task, found) for task, found in crossovers.items() if not (alone and task == "average")]


def crossover_line(task: str, crossover: Crossover) -> str:
    """One sentence: whether, and from which token count on, MCF is ahead of CF."""
    if crossover.tokens is not None:
        interval = f" [{words}]" if (words := interval_words(crossover)) else ""
        step = "" if crossover.step is None else f": step {crossover.step:,}"
        sure = "not yet confirmed"
        if crossover.state == "confirmed":
            sure = "confirmed" if crossover.confirmed is None else f"confirmed at {format_tokens(crossover.confirmed)}"
        at = format_tokens(crossover.tokens)
        return f"MCF overtook CF on {task} at {at} tokens{interval}{step}, {sure}"
    latest = _latest(crossover)
    if crossover.state == "from_start":
        return f"MCF is ahead of CF on {task} from the first evaluation on{latest}"
    if crossover.state == "reverted":
        return f"MCF was ahead of CF on {task} for a while, but is not now{latest}"
    if crossover.state == "undecided":
        if sum(gap == gap for gap in crossover.gap) < 2:
            return f"undecided on {task}: fewer than two evaluations with values"
        return f"undecided on {task}: MCF is ahead from the first evaluation on, but not clearly{latest}"
    return f"not yet on {task}: MCF has not overtaken CF{latest}"


def _latest(crossover: Crossover) -> str:
    """The gap at the last evaluation that has one, in percentage points."""
    for tokens, gap in zip(crossover.evaluated[::-1], crossover.gap[::-1], strict=True):
        if gap == gap:  # not NaN
            return f"; the gap at {format_tokens(int(tokens))} tokens is {100 * gap:+.1f} points".replace("-", "−")
    return ""
