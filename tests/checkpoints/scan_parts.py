"""A run's saved checkpoints, made on the spot, and a scan of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from parts import make_llama

from olmes_monitor.checkpoints.find import find_checkpoints
from olmes_monitor.checkpoints.scan import Scan
from olmes_monitor.checkpoints.skeleton import Loading, Skeleton
from olmes_monitor.checkpoints.store import Results

TOKENS = 1000
"""Of an optimizer step."""
BATCH_TOKENS = 512


def save(folder: Path, step: int, tokenizer=None, **config) -> Path:
    """`folder`/checkpoint-<step> as transformers' Trainer leaves it: weights of this step, its state written last."""
    place = folder / f"checkpoint-{step}"
    model = make_llama(seed=step, **config)
    model.save_pretrained(place)
    if tokenizer is not None:
        tokenizer.save_pretrained(place)
    state = {"global_step": step, "num_input_tokens_seen": step * TOKENS}
    (place / "trainer_state.json").write_text(json.dumps(state))
    age(place)
    return place


def age(place: Path) -> None:
    """As if written a minute ago, so that nothing is looked at twice."""
    for path in place.iterdir():
        past = path.stat().st_mtime - 60
        os.utime(path, (past, past))


class Told:
    """Keeps what a scan tells."""

    def __init__(self) -> None:
        self.outcomes: list[Any] = []

    def begin(self, checkpoint, left):
        return None

    def end(self, outcome) -> None:
        self.outcomes.append(outcome)

    @property
    def states(self) -> list[tuple[str, str]]:
        return [(outcome.checkpoint.name, outcome.state) for outcome in self.outcomes]


def make_scan(folder: Path, suite, out: Path | None = None, ranks=None, **loading) -> Scan:
    """A scan of a folder into out/olmes, by default the folder's own."""
    how = Loading(torch.device("cpu"), **loading)
    skeleton = Skeleton(suite, how, ranks, batch_tokens=BATCH_TOKENS)
    return Scan(skeleton, Results((out or folder) / "olmes", suite), lambda: find_checkpoints([folder]), Told())


def values(table) -> dict[str, np.ndarray]:
    """The log-likelihoods of an evaluation's scores: float64 (choices,) each."""
    return {name: np.array(table[name].to_pylist(), dtype=float) for name in ("cf", "mcf", "unconditional")}


def same(one, other, tolerance: float = 0.0) -> None:
    """AssertionError unless two tables hold the same log-likelihoods of the same choices, to `tolerance` nats."""
    for name in ("task", "question", "choice"):
        assert one[name].to_pylist() == other[name].to_pylist()
    for name, found in values(one).items():
        np.testing.assert_allclose(found, values(other)[name], atol=tolerance, rtol=0, err_msg=name)
