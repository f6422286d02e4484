"""Finding saved checkpoints: every one once, in the order of training, dated in tokens."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from olmes_monitor.checkpoints.checkpoint import Checkpoint, CheckpointError
from olmes_monitor.checkpoints.complete import (
    LOOK,
    VANISHED,
    content_key,
    grown,
    look_at,
    why_not_whole,
)
from olmes_monitor.checkpoints.dates import UNKNOWN, UNKNOWN_STEP, named_point, saved_point
from olmes_monitor.checkpoints.hub import HUB_ID, as_folder, find_revisions
from olmes_monitor.checkpoints.kinds import UNFINISHED, describe, is_hub_folder, kind_of
from olmes_monitor.checkpoints.names import natural, step_in
from olmes_monitor.errors import SetupError

_DEPTH = 5  # folders below a place that are looked into: lightning_logs/version_0/checkpoints/x.ckpt is 4
_BESIDE = re.compile(r"(checkpoint|step|global_step|iter)[-_=]?\d+", re.I)
_NOT_LOOKED_INTO = {"olmes", "wandb", "__pycache__", "node_modules"}


def find_checkpoints(
    places: Sequence[str | Path],
    *,
    tokens_per_step: int | None = None,
    revisions: str | None = None,
    axis: Literal["tokens", "steps"] = "tokens",
    allow_pickle: bool = False,
) -> list[Checkpoint]:
    """Every checkpoint in `places`, once, ordered by tokens, then by step; undated ones last.

    A place is a checkpoint, a folder with checkpoints in it (up to five folders down) or a hub repository, of which
    `revisions` (a shell pattern) says what to take. Tokens come from what was saved (OLMESCallback's state, transformers'
    trainer state), else from tokens_per_step × step, else from the name; with axis="steps" `tokens` is the step. What must
    not be scored is in the list too, with `problem`: half-written (`may_mend`), damaged, deleted meanwhile, undated. Times
    of files play no part. allow_pickle: read a Lightning checkpoint's date even if that could run code.

    Raises SetupError for a place that is not there, or that holds no checkpoint at all.
    """
    found = [found for place in places for found in _in_place(place, revisions)]
    first = look_at(found)
    started = time.monotonic()
    dated = [_dated(checkpoint, tokens_per_step, axis, allow_pickle) for checkpoint in found]
    if first:
        time.sleep(max(0.0, LOOK - (time.monotonic() - started)))
        growing = grown(first)
        dated = [_still_growing(checkpoint, growing) for checkpoint in dated]
    return sorted(_once(dated), key=_order)


def _in_place(place: str | Path, revisions: str | None) -> Iterator[Checkpoint]:
    path = Path(place)
    if is_hub_folder(path) or (not path.exists() and HUB_ID.fullmatch(str(place))):
        for revision, commit in find_revisions(place, revisions).items():
            yield Checkpoint(path if path.exists() else str(place), "hub", None, None, revision=revision, key=commit)
        return
    if not path.exists():
        raise SetupError(f"there is no {place}")
    empty = True
    for checkpoint in _walk(path, _DEPTH):
        empty = False
        yield checkpoint
    if empty:
        raise SetupError(f"{place} holds no checkpoint of a kind this package knows (docs/checkpoints.md lists them)")


def _walk(path: Path, depth: int) -> Iterator[Checkpoint]:
    """The checkpoint at `path`, and those below it."""
    try:
        kind = kind_of(path)
        if kind is not None:
            yield describe(path, kind)
        below = sorted(path.iterdir()) if path.is_dir() and depth else []
    except FileNotFoundError:
        # The trainer's rotation was faster.
        yield Checkpoint(path, "transformers", None, None, problem=f"{VANISHED}: {path} was deleted")
        return
    for inner in below:
        if UNFINISHED.search(inner.name):
            continue
        # In a checkpoint's own folder only a trainer's further checkpoints count, not its parts.
        if kind is not None and not (inner.is_dir() and _BESIDE.fullmatch(inner.name) and kind_of(inner)):
            continue
        if not (inner.is_dir() and inner.name in _NOT_LOOKED_INTO):
            yield from _walk(inner, depth - 1)


def _dated(checkpoint: Checkpoint, tokens_per_step: int | None, axis: str, allow_pickle: bool) -> Checkpoint:
    """With step, tokens, key and problem filled in."""
    step, tokens = named_point(checkpoint.path, checkpoint.revision)
    found = replace(checkpoint, step=step, tokens=tokens, dated_by="" if tokens is None else "name")
    unread = ""
    if found.problem is None:
        found, unread = _with_saved_point(found, allow_pickle)
    if found.tokens is None or found.dated_by == "name":
        if tokens_per_step is not None and found.step is not None:
            # Exact where a name is rounded (tokens302B).
            found = replace(found, tokens=tokens_per_step * found.step, dated_by="tokens per step")
        elif found.step == 0:
            found = replace(found, tokens=0, dated_by="step 0")
    if axis == "steps":
        found = replace(found, tokens=found.step, dated_by="" if found.step is None else "step")
    if found.problem is None and found.tokens is None:
        unknown = UNKNOWN if axis == "tokens" else UNKNOWN_STEP
        found = replace(
            found, problem=f"{unknown}. What was saved with it cannot be read: {unread}" if unread else unknown
        )
    return found


def _with_saved_point(checkpoint: Checkpoint, allow_pickle: bool) -> tuple[Checkpoint, str]:
    """With its key and the step and tokens that were saved with it, or with what is wrong with it as `problem`; and why
    what was saved with it cannot be read, for then its name may still tell enough."""
    inner = checkpoint
    try:
        if checkpoint.kind == "hub":
            local = as_folder(checkpoint, download=False)
            if local is None:  # not on this machine yet
                return checkpoint, ""
            inner = local
            checkpoint = replace(checkpoint, files=inner.files)
        if (wrong := why_not_whole(inner)) is not None:
            return replace(checkpoint, problem=wrong[0], may_mend=wrong[1]), ""
        checkpoint = replace(checkpoint, key=checkpoint.key or content_key(inner))
        step, tokens, by = saved_point(Path(inner.path), inner.kind, allow_pickle)
    except FileNotFoundError:
        return replace(checkpoint, problem=f"{VANISHED}: {checkpoint.path} was deleted"), ""
    except CheckpointError as error:
        if error.vanished:
            return replace(checkpoint, problem=f"{VANISHED}: {error}"), ""
        return checkpoint, str(error)
    checkpoint = replace(checkpoint, step=checkpoint.step if step is None else step)
    return (checkpoint if tokens is None else replace(checkpoint, tokens=tokens, dated_by=by)), ""


def _still_growing(checkpoint: Checkpoint, growing: set[Path]) -> Checkpoint:
    for file in checkpoint.files:
        if file in growing and checkpoint.problem is None:
            return replace(checkpoint, problem=f"{file.name} is being written", may_mend=True)
    return checkpoint


def _once(checkpoints: list[Checkpoint]) -> Iterator[Checkpoint]:
    """Without links to, and copies of, another one: last.ckpt, the final model in a run's folder.

    Two steps with equal weights are two checkpoints; a copy is at the same tokens, or at none that are known.
    """
    kept: dict[str, list[Checkpoint]] = {}
    for checkpoint in sorted(checkpoints, key=_preference):
        if checkpoint.kind == "hub":
            yield checkpoint
            continue
        same = kept.setdefault(checkpoint.key or str(Path(checkpoint.path).resolve()), [])
        if any(checkpoint.tokens in (None, other.tokens) for other in same):
            continue
        same.append(checkpoint)
        yield checkpoint


def _preference(checkpoint: Checkpoint) -> tuple[Any, ...]:
    """Of copies the first is kept: dated, a file rather than a link to one, its step in its name."""
    path = Path(checkpoint.path)
    return checkpoint.tokens is None, path.is_symlink(), step_in(path.name) is None, _order(checkpoint)


def _order(checkpoint: Checkpoint) -> tuple[Any, ...]:
    def known(value: int | None) -> tuple[bool, int]:
        return value is None, value or 0

    return known(checkpoint.tokens), known(checkpoint.step), natural(f"{checkpoint.path} {checkpoint.revision}")
