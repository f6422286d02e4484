"""How many of 200 checkpoints a search for the crossing scores, and whether it says what a scan of all would.

    python tests/benchmarks/search.py [--runs 200]

Simulated runs: a thousand questions with fixed difficulties, both accuracies logistic in training progress, answers
that persist from checkpoint to checkpoint and flip now and then, and a jitter of each checkpoint as a whole.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from olmes_monitor.checkpoints.search import LOOKS, Lead, next_look
from olmes_monitor.measure.crossover import Crossover, find_crossover

CHECKPOINTS = 200
QUESTIONS = 500
FLOOR = 0.27
"""What MCF must exceed beside CF, as four choices of uneven label frequency have it."""
TOKENS = (np.arange(CHECKPOINTS) + 1) * 10**9


class Run(NamedTuple):
    """What was answered right: bool (checkpoints, questions) each."""

    cf: NDArray[np.bool_]
    mcf: NDArray[np.bool_]
    crossing: float
    """Where the true curves cross, as a position."""


@dataclass
class Kind:
    """A kind of run: how steeply MCF rises (checkpoints from 12 to 88 % of its rise) and how noisy checkpoints are."""

    name: str
    rise: tuple[float, float]
    jitter: float
    crossing: tuple[float, float] = (0.1, 0.9)


KINDS = (
    Kind("steep", (4, 15), 0.005),
    Kind("gentle", (30, 80), 0.005),
    Kind("noisy", (15, 60), 0.02),
    Kind("early", (10, 40), 0.01, (0.03, 0.1)),
    Kind("late", (10, 40), 0.01, (0.9, 0.97)),
    Kind("never", (10, 40), 0.01, (1.3, 1.6)),
)


def simulate(kind: Kind, seed: int) -> Run:
    """One run of a kind."""
    draw = np.random.default_rng([seed, sum(kind.name.encode())])
    t = np.arange(CHECKPOINTS, dtype=float)
    cf = 0.30 + 0.15 * (1 - np.exp(-t / 60))
    middle, width = draw.uniform(*kind.crossing) * CHECKPOINTS, draw.uniform(*kind.rise) / 4
    mcf = 0.25 + 0.40 / (1 + np.exp(-(t - middle) / width))
    above = np.flatnonzero(mcf > cf)
    crossing = float(above[0]) if len(above) else np.inf
    return Run(_answers(cf, kind.jitter, draw), _answers(mcf, kind.jitter, draw), crossing)


def _answers(level: NDArray[np.float64], jitter: float, draw: np.random.Generator) -> NDArray[np.bool_]:
    ease = draw.normal(size=QUESTIONS)
    fresh = draw.normal(size=(CHECKPOINTS, QUESTIONS))
    quantile = _ranks(0.9**0.5 * ease + 0.1**0.5 * fresh)
    return quantile < (level + draw.normal(0, jitter, CHECKPOINTS)).clip(0.01, 0.99)[:, None]


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The standard normal distribution function of each."""
    from math import erf, sqrt

    return 0.5 * (1 + np.vectorize(erf)(values / sqrt(2)))


def lead_at(run: Run, i: int) -> Lead:
    """As an evaluation would tell it: the gap's paired error, and the floor."""
    gap = run.mcf[i].astype(float) - run.cf[i]
    level = run.mcf[i].astype(float)
    root = np.sqrt(QUESTIONS)
    return min(Lead(gap.mean(), gap.std(ddof=1) / root), Lead(level.mean() - FLOOR, level.std(ddof=1) / root))


def verdict(run: Run, positions: list[int] | slice, samples: int = 400) -> Crossover:
    """What the scored checkpoints say."""
    cf, mcf = run.cf[positions].astype(float), run.mcf[positions].astype(float)
    return find_crossover(TOKENS[positions], cf, mcf, floor=FLOOR, samples=samples)


def look_for(run: Run) -> list[int]:
    """The positions a search scores, ascending."""
    seen: dict[int, Lead] = {}
    for taken in range(LOOKS):
        position = next_look(CHECKPOINTS, seen, LOOKS - taken)
        if position is None:
            break
        seen[position] = lead_at(run, position)
    return sorted(seen)


def agree(few: Crossover, all_: Crossover) -> bool:
    """Whether a search's verdict is a full scan's: no crossing in both, or one within the full scan's interval."""
    if all_.tokens is None or few.tokens is None:
        return (all_.tokens is None) == (few.tokens is None)
    lo = -np.inf if all_.lo is None else all_.lo
    hi = np.inf if all_.hi is None else all_.hi
    return bool(lo <= few.tokens <= hi)


def trial(kind: Kind, seed: int) -> tuple[bool, int, Crossover, Crossover]:
    """One simulated run: whether the verdicts agree, how many were scored, both verdicts."""
    run = simulate(kind, seed)
    positions = look_for(run)
    few, full = verdict(run, positions), verdict(run, slice(None))
    return agree(few, full), len(positions), few, full


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200, help="simulated runs of each kind")
    runs = parser.parse_args().runs
    print("| runs | verdicts agree | same state | most scored | full scan's interval, checkpoints (median) |")
    print("| --- | --- | --- | --- | --- |")
    agreed, most = [], 0
    for kind in KINDS:
        trials = [trial(kind, seed) for seed in range(runs)]
        agreed += [found[0] for found in trials]
        states = [few.state == full.state for _, _, few, full in trials]
        widths = [(full.hi - full.lo) / 1e9 for _, _, _, full in trials if full.lo is not None and full.hi is not None]
        most = max(most, *(found[1] for found in trials))
        print(
            f"| {kind.name} | {np.mean(agreed[-runs:]):.1%} | {np.mean(states):.1%} | "
            f"{max(found[1] for found in trials)} | {np.median(widths) if widths else float('nan'):.1f} |"
        )
    print(f"| all | {np.mean(agreed):.1%} | | {most} | |")


if __name__ == "__main__":
    main()
