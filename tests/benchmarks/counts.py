"""What an evaluation on the packed path costs, counted and not timed.

    python tests/benchmarks/counts.py TOKENIZER_FOLDER [--suite standard] [--budget 2048]

For each task and formulation: requests; the tokens of each request's input by itself; the nodes of their trie, fewer than
which no method can forward; the tokens that the plan forwards, and how often that is the trie; the positions whose
outputs go through the LM head; the forward calls.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from olmes_monitor import Suite, load_suite
from olmes_monitor.scoring.cache import CachedEncoder
from olmes_monitor.scoring.jobs import Job, assign, make_jobs
from olmes_monitor.scoring.pack import trie_nodes
from olmes_monitor.suite import FORMULATIONS

COLUMNS = ("task", "form", "requests", "naive tokens", "trie nodes", "forwarded", "ratio", "head positions", "calls")


@dataclass(frozen=True)
class Counts:
    """One task in one formulation, or several together."""

    task: str
    formulation: str
    requests: int
    naive: int
    """Tokens of all inputs: each request's ids without the last, which is never forwarded."""
    trie: int
    """Distinct nodes."""
    forwarded: int
    """Tokens of all forward calls, whatever they hold."""
    heads: int
    """Positions whose logits are computed."""
    calls: int

    @property
    def ratio(self) -> float:
        """Tokens forwarded over the least possible."""
        return self.forwarded / self.trie


def count_suite(tokenizer: Any, suite: Suite, budget: int, max_length: int = 2048) -> Iterator[Counts]:
    """Counts of every task and formulation, planned as one rank alone plans them."""
    jobs = make_jobs(suite, FORMULATIONS, CachedEncoder(tokenizer, max_length=max_length))
    assign(jobs, rank=0, size=1)
    for job in jobs:
        job.plan(True, budget, max_length)
        yield count_job(job)


def count_job(job: Job) -> Counts:
    """Counts of one planned job."""
    return Counts(
        task=job.task.name,
        formulation=job.formulation,
        requests=len(job.requests),
        naive=sum(len(request.ids) - 1 for request in job.requests),
        trie=trie_nodes(job.requests),
        forwarded=sum(call.tokens for call in job.calls),
        # A call in which nothing is read still computes the logits of one position.
        heads=sum(max(1, len(call.reads.position)) for call in job.calls),
        calls=len(job.calls),
    )


def total(counts: Iterable[Counts], task: str = "total") -> Counts:
    """The sum of several, which must be at least one."""
    numbers = [(each.requests, each.naive, each.trie, each.forwarded, each.heads, each.calls) for each in counts]
    return Counts(task, "", *map(sum, zip(*numbers, strict=True)))


def lines(counts: Iterable[Counts]) -> Iterator[str]:
    """A Markdown table, the total last."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{' --- |' * 2}{' ---: |' * (len(COLUMNS) - 2)}"
    counts = list(counts)
    for each in [*counts, total(counts)]:
        numbers = (f"{each.requests:,}", f"{each.naive:,}", f"{each.trie:,}", f"{each.forwarded:,}")
        cells = (each.task, each.formulation, *numbers, f"{each.ratio:.3f}", f"{each.heads:,}", f"{each.calls:,}")
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Count what an evaluation forwards on the packed path.")
    parser.add_argument("tokenizer", help="a folder with a tokenizer in transformers format")
    parser.add_argument("--suite", default="standard", help="standard (the default), monitor or quick")
    parser.add_argument("--budget", type=int, default=2048, help="tokens of a forward call (default: 2048)")
    given = parser.parse_args()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(given.tokenizer)
    print("\n".join(lines(count_suite(tokenizer, load_suite(given.suite), given.budget))))


if __name__ == "__main__":
    main()
