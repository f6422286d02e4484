"""Where training stood at a checkpoint: its optimizer step and its tokens, from what was saved, else from its name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from olmes_monitor.checkpoints.checkpoint import CheckpointError, Kind
from olmes_monitor.checkpoints.names import step_in, tokens_in
from olmes_monitor.checkpoints.weights import load_torch, reading
from olmes_monitor.state import saved_states

UNKNOWN = (
    "its tokens are not known: nothing saved with it and nothing in its name tells them. Give them as "
    "--tokens-per-step N, or in the names (step1000-tokens2B), or train with OLMESCallback, which saves them; "
    "or take optimizer steps as the axis with --axis steps"
)
UNKNOWN_STEP = "its optimizer step is not known: nothing saved with it and nothing in its name (step1000) tells it"

_CALLBACK = "OLMESCallback"
_SAYS_STEP = re.compile("checkpoint|step|iter", re.I)


def saved_point(path: Path, kind: Kind, allow_pickle: bool = False) -> tuple[int | None, int | None, str]:
    """(step, tokens, what told the tokens) from what a trainer saved; None for what it did not.

    OLMESCallback's own count goes before transformers' num_input_tokens_seen: it is the axis of the training run's own
    record. Raises CheckpointError for a Lightning checkpoint that cannot be read safely.
    """
    if kind == "lightning":
        return _lightning_point(path, allow_pickle)
    if kind == "lightning_sharded":
        return _lightning_point(path / "meta.pt", allow_pickle)
    return _trainer_point(path / "trainer_state.json")


def named_point(path: Path | str, revision: str | None = None) -> tuple[int | None, int | None]:
    """(step, tokens) from a name, or from the folder's above (step1000/model_and_optim); None for what it does not tell."""
    if revision is not None:
        return step_in(revision), tokens_in(revision)
    path = Path(path)
    step, tokens = step_in(path.name), tokens_in(path.name)
    if step is None and tokens is None:
        # Only a folder that says so in words: `run2/final` is not step 2.
        above = path.parent.name
        step, tokens = (step_in(above) if _SAYS_STEP.search(above) else None), tokens_in(above)
    return step, tokens


def _trainer_point(path: Path) -> tuple[int | None, int | None, str]:
    try:
        state = json.loads(path.read_text())
    except (OSError, ValueError):  # missing, or half-written, which why_incomplete reports
        return None, None, ""
    if not isinstance(state, dict):
        return None, None, ""
    step = _whole(state.get("global_step"))
    callbacks = state.get("stateful_callbacks")
    for _, own in saved_states(callbacks, _CALLBACK) if isinstance(callbacks, dict) else ():
        if (tokens := _own_count(own, step)) is not None:
            return step, tokens, "callback state"
    # 0 is what a Trainer writes that did not count (include_num_input_tokens_seen is off by default).
    seen = _whole(state.get("num_input_tokens_seen"))
    return (step, seen, "trainer state") if seen else (step, None, "")


def _lightning_point(path: Path, allow_pickle: bool) -> tuple[int | None, int | None, str]:
    with reading(path):
        loaded = load_torch(path, allow_pickle)
    if not isinstance(loaded, Mapping):
        raise CheckpointError(f"{path} is no checkpoint of Lightning's: it holds a {type(loaded).__name__}")
    step = _whole(loaded.get("global_step"))
    for name, state in (loaded.get("callbacks") or {}).items():
        tokens = _own_count(state, step) if str(name).startswith(_CALLBACK) else None
        if tokens is not None:
            return step, tokens, "callback state"
    return step, None, ""


def _own_count(state: Any, step: int | None) -> int | None:
    """The tokens in an OLMESCallback's state, brought up to the checkpoint's step.

    A ModelCheckpoint that ran before the callback saved its count of the step before. It is brought up if all steps so far
    were of one size, and otherwise not known.
    """
    if not isinstance(state, Mapping) or (tokens := _whole(state.get("tokens"))) is None:
        return None
    counted = _whole(state.get("step"))
    if step is None or counted is None or counted == step:
        return tokens
    return tokens // counted * step if counted and tokens % counted == 0 else None


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None
