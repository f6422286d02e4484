"""What a scan costs beside bare evaluations of the same checkpoints, counted and as a ratio of times taken in turn.

    python tests/benchmarks/scan.py [--checkpoints 20] [--questions 60] [--hidden 128] [--layers 4] [--repeats 3]

A bare evaluation is Scorer.evaluate alone, on a model that is loaded and planned. The scan finds, reads, swaps in, scores,
summarizes and writes each checkpoint to the record on disk. Wall seconds are disturbed by other processes of the machine,
the more where the two are taken one after the other; processor seconds of the whole process, and the scan's wall seconds
over those that its own evaluations took, are not.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[1] / "checkpoints"))

from parts import make_llama, make_task, make_tokenizer
from scan_parts import make_scan, save

from olmes_monitor import Point, Suite
from olmes_monitor.scoring.encode import Encoder
from olmes_monitor.scoring.jobs import Job
from olmes_monitor.scoring.score import Scorer


class Counts(NamedTuple):
    """Of one scan after its first checkpoint, and of as many bare evaluations."""

    checkpoints: int
    opened: int
    """Models made."""
    plans: int
    """Jobs planned after the first checkpoint."""
    encodings: int
    """Tasks encoded after the first checkpoint."""
    forwards: int
    """Forward calls of the scan's evaluations."""
    bare_forwards: int
    wall: float
    """Seconds of the scan over those of as many bare evaluations."""
    processor: float
    """The same of processor seconds."""
    around: float
    """Wall seconds of the scan over those of the evaluations within it."""


@contextlib.contextmanager
def counted(counts: dict[str, int]) -> Iterator[None]:
    """Counts how often jobs are planned and tasks encoded."""
    plan, encode = Job.plan, Encoder.encode_task

    def count(name, function):
        def wrapper(*args, **kwargs):
            counts[name] += 1
            return function(*args, **kwargs)

        return wrapper

    Job.plan, Encoder.encode_task = count("plans", plan), count("encodings", encode)
    try:
        yield
    finally:
        Job.plan, Encoder.encode_task = plan, encode


def measure(checkpoints: int, questions: int, repeats: int, **config: int) -> Counts:
    """One benchmark: `repeats` scans and as many rounds of bare evaluations in turn, the least disturbed of each."""
    suite = Suite("bench", [make_task("boxes", questions), make_task("balls", questions, seed=1)])
    tokenizer = make_tokenizer(suite)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for step in range(1, checkpoints + 1):
            save(folder, step, tokenizer, **config)
        scorer = Scorer(make_llama(**config), tokenizer, suite, batch_tokens=512)
        walls: list[tuple[float, float]] = []
        processors: list[tuple[float, float]] = []
        around: list[float] = []
        counts = {"plans": 0, "encodings": 0}
        opened = forwards = bare_forwards = 0
        for repeat in range(repeats):
            scan = make_scan(folder, suite, folder / f"out{repeat}")
            scan.take(
                scan.find()[0]
            )  # models, plans and questions are made ready once, whatever the number of checkpoints
            scan.outcomes.clear()
            scan.results.lines.clear()
            (folder / f"out{repeat}" / "olmes" / "evaluations.jsonl").unlink()
            inside: list[float] = []
            scan.skeleton.evaluate = clocked(scan.skeleton.evaluate, inside)  # type: ignore[method-assign]
            with counted(counts):
                scan_times = timed(scan.once)
            around.append(scan_times[0] / sum(inside))
            done = scan.results.lines.values()
            assert len(done) == checkpoints
            forwards = int(sum(line["cost"]["forwards"] for line in done))
            opened = scan.skeleton.opened

            bare_forwards = checkpoints * int(scorer.evaluate(Point(0)).cost["forwards"])
            bare_times = timed(lambda: [scorer.evaluate(Point(i)) for i in range(checkpoints)])
            walls.append((scan_times[0], bare_times[0]))
            processors.append((scan_times[1], bare_times[1]))
        return Counts(
            checkpoints,
            opened,
            counts["plans"],
            counts["encodings"],
            forwards,
            bare_forwards,
            min(s for s, _ in walls) / min(b for _, b in walls),
            min(s for s, _ in processors) / min(b for _, b in processors),
            min(around),
        )


def clocked(action, seconds: list[float]):
    """The same action, its wall seconds appended to `seconds` at each call."""

    def wrapper(*args, **kwargs):
        started = time.perf_counter()
        try:
            return action(*args, **kwargs)
        finally:
            seconds.append(time.perf_counter() - started)

    return wrapper


def timed(action) -> tuple[float, float]:
    """(wall, processor) seconds of a call, all threads of the process."""
    wall, processor = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - processor


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoints", type=int, default=20)
    parser.add_argument("--questions", type=int, default=60, help="of each of two tasks")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    sizes = {"hidden_size": given.hidden, "intermediate_size": 2 * given.hidden, "num_hidden_layers": given.layers}
    found = measure(given.checkpoints, given.questions, given.repeats, **sizes)
    print("| " + " | ".join(found._fields) + " |")
    print("| " + " | ".join("---" for _ in found) + " |")
    print("| " + " | ".join(f"{value:.2f}" if isinstance(value, float) else f"{value:,}" for value in found) + " |")


if __name__ == "__main__":
    main()
