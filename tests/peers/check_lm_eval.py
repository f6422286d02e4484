"""Compare every log-likelihood and every prediction with lm-evaluation-harness on the same requests.

    python tests/peers/check_lm_eval.py MODEL [--questions N]

MODEL is a folder in transformers format; it is loaded in float32 on the CPU. Exit code 1 where anything differs.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from typing import Any, NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

from olmes_monitor.scoring.score import score
from olmes_monitor.suite import FORMULATIONS, Request, Suite, Task, load_suite

TASKS = ("arc_challenge", "openbookqa", "csqa")
TOLERANCE = 1e-3
"""Nats. Sums reach 60; lm-eval differs from itself by 1e-4 over batch sizes."""


class Compared(NamedTuple):
    """One row of the table."""

    task: str
    formulation: str
    requests: int
    difference: float
    predictions: int
    equal: int


def main() -> int:
    """Score with both, print the table; 0 where all agree."""
    arguments = _arguments()
    logging.basicConfig(level=logging.WARNING)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    suite = load_suite("quick", tasks=TASKS, limit=arguments.questions)
    started = time.perf_counter()
    own = score(model, tokenizer, suite).scores.to_pandas()
    halfway = time.perf_counter()
    peer = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=8, device="cpu", max_length=2048)
    rows = [row for task in suite.tasks.values() for row in _compare(task, own[own.task == task.name], peer)]
    _print(rows, suite, halfway - started, time.perf_counter() - halfway)
    return int(any(row.difference > TOLERANCE or row.equal < row.predictions for row in rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare log-likelihoods with lm-evaluation-harness.")
    parser.add_argument("model", help="a folder in transformers format")
    parser.add_argument(
        "--questions", type=int, default=100, help="of each task (default: all 100, ten minutes on two cores)"
    )
    return parser.parse_args()


def _compare(task: Task, own: Any, peer: HFLM) -> list[Compared]:
    """A row per kind of request: cf, mcf, unconditional, and pmi, which has predictions of its own."""
    theirs: dict[str, list[np.ndarray]] = {"cf": [], "mcf": [], "unconditional": []}
    sizes = [len(question.choices) for question in task.questions]
    for formulation in FORMULATIONS:
        requests = [task.requests(question, formulation) for question in task.questions]
        found = np.array(_log_likelihoods(peer, [request for group in requests for request in group]))
        parts = np.split(found, np.cumsum([len(group) for group in requests])[:-1])
        theirs[formulation] += [part[:size] for part, size in zip(parts, sizes, strict=True)]
        if formulation == "cf" and task.unconditional:
            theirs["unconditional"] += [part[size:] for part, size in zip(parts, sizes, strict=True)]
    ours = {name: np.split(own[name].to_numpy(), np.cumsum(sizes)[:-1]) for name in theirs if theirs[name]}
    rows = [_row(task.name, name, ours[name], theirs[name], name != "unconditional") for name in ours]
    if task.unconditional:
        pmi = [[a - b for a, b in zip(x["cf"], x["unconditional"], strict=True)] for x in (ours, theirs)]
        rows.append(_row(task.name, "cf − unconditional", *pmi, True))
    return rows


def _log_likelihoods(peer: HFLM, requests: list[Request]) -> list[float]:
    instances = [Instance("loglikelihood", {}, tuple(request), i) for i, request in enumerate(requests)]
    return [value for value, _ in peer.loglikelihood(instances, disable_tqdm=True)]


def _row(task: str, name: str, ours: list[np.ndarray], theirs: list[np.ndarray], predicts: bool) -> Compared:
    difference = max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))
    equal = sum(int(a.argmax() == b.argmax()) for a, b in zip(ours, theirs, strict=True)) if predicts else 0
    return Compared(task, name, sum(map(len, ours)), difference, len(ours) if predicts else 0, equal)


def _print(rows: list[Compared], suite: Suite, own_seconds: float, peer_seconds: float) -> None:
    from importlib.metadata import version

    title = f"against lm-eval {version('lm-eval')}, suite {suite.fingerprint}"
    times = f"olmes_monitor {own_seconds:.0f} s, lm-eval {peer_seconds:.0f} s (batch size 8)"
    table = Table(title=title, caption=times)
    for name in ("task", "formulation"):
        table.add_column(name)
    for name in ("requests", "max |Δ| in nats", "predictions equal"):
        table.add_column(name, justify="right")
    for row in rows:
        equal = f"{row.equal} of {row.predictions}" if row.predictions else ""
        table.add_row(row.task, row.formulation, f"{row.requests:,}", f"{row.difference:.1e}", equal)
    Console(width=None if sys.stdout.isatty() else 100).print(table)


if __name__ == "__main__":
    raise SystemExit(main())
