"""The verdict on simulated runs whose crossing is known: does the interval cover it, is none confirmed where there is none?

    python tests/benchmarks/verdict.py             # the tables of docs/crossover.md, about five minutes on one thread
    python tests/benchmarks/verdict.py --repeats 8 # a look, in half a minute

Each question has a difficulty for each formulation and a taste of its own; an answer is right if ability, difficulty and a
draw at the evaluation say so. The curves of accuracy over all questions there could be are given, the ability that
yields them is solved for, so that the crossing is known exactly. Early in training MCF gives one label whatever is asked.
Jitter moves the ability at an evaluation, of all questions at once, by so much that the accuracy moves as stated.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from olmes_monitor.measure import find_crossover

Floats = NDArray[np.float64]

FLOOR = 0.27  # the share of the most frequent right label
SHARP, TASTE = 2.5, 0.6  # how steeply a question is learned; how much of an answer's chance is the question's own
ABILITIES = np.linspace(-6, 6, 601)


@dataclass(frozen=True)
class Scenario:
    """A kind of simulated run. Accuracies in points, times in evaluations."""

    questions: int = 1000
    evaluations: int = 50
    jitter: float = 0.0
    """Standard deviation in each curve."""
    end: float = 10.0
    """Gap at the end: above zero it crosses, at zero it touches and stays, below it never gets there."""
    depth: float = 20.0
    """Gap at its lowest, negative."""
    slope: float | None = None
    """Growth of the gap per evaluation at the crossing; None: the rise takes a third of the run."""
    fall: float = 0.0
    """Growth of the gap per evaluation after it has reached `end`, negative: a touch that parts again."""
    biased: float = 0.0
    """Share of questions on which MCF answers its one label, whatever is asked, to the end."""


@dataclass(frozen=True)
class Truth:
    """A scenario's curves over all questions there could be, (evaluations,), and their crossing in evaluations."""

    cf: Floats
    mcf: Floats
    crossing: float | None


def curves(scenario: Scenario, generator: np.random.Generator) -> Truth:
    """The crossing lies anywhere between two evaluations, in the middle third of the run."""
    n = scenario.evaluations
    place = n * generator.uniform(0.4, 0.55)
    span = scenario.depth + scenario.end
    below = scenario.depth / span if scenario.end > 0 else 0.6
    rise = n * 0.05 if scenario.slope is None else span * below * (1 - below) / scenario.slope
    top = place - rise * np.log(below / (1 - below))

    def both(at: Floats) -> tuple[Floats, Floats]:
        cf = 0.25 + 0.35 * (1 - np.exp(-at / (0.2 * n)))
        gap = span / (1 + np.exp(-(at - top) / rise)) - scenario.depth
        gap += scenario.fall * np.maximum(at - top - 4 * rise, 0)
        raw = cf + gap / 100
        return cf, FLOOR + np.logaddexp(0, 60 * (raw - FLOOR)) / 60

    at = np.arange(n, dtype=float)
    cf, mcf = both(at)
    if scenario.end <= 0:
        return Truth(cf, mcf, None)
    fine = np.linspace(0, n - 1, 200 * n)
    lead = np.subtract(*both(fine)[::-1])
    return Truth(cf, mcf, float(fine[np.flatnonzero(lead <= 0)[-1]]))


NORMAL = np.linspace(-8, 8, 3201)
BELOW = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in NORMAL])


def _table() -> Floats:
    """Accuracy over all questions at each of ABILITIES, of the questions that are answered by ability."""
    difficulty = np.linspace(-4, 4, 801)
    weights = np.exp(-(difficulty**2) / 2)
    return (1 / (1 + np.exp(-SHARP * (ABILITIES[:, None] - difficulty)))) @ (weights / weights.sum())


ACCURACY = _table()


class Questions:
    """The questions that were drawn, and how a model of given accuracy over all questions answers them."""

    def __init__(self, scenario: Scenario, generator: np.random.Generator) -> None:
        n = scenario.questions
        shared, own = generator.standard_normal((2, n))
        self.difficulty = {"cf": shared, "mcf": 0.8 * shared + 0.6 * own}
        self.taste = dict(zip(("cf", "mcf"), generator.standard_normal((2, n)), strict=True))
        self.label, self.gate = generator.random(n) < FLOOR, generator.random(n)
        self.biased = scenario.biased

    def chances(self, formulation: str, true: Floats, accuracy: Floats) -> Floats:
        """(evaluations, questions): the chance of a right answer. true: the accuracy without jitter, accuracy: with it."""
        share = np.ones_like(true)
        if formulation == "mcf":  # the rest get the one label: all questions while MCF is at its floor
            share = np.clip((true - FLOOR) / 0.15, 0, 1) * (1 - self.biased)
        by_ability = np.where(share > 0, (accuracy - (1 - share) * FLOOR) / np.maximum(share, 1e-9), 0.5)
        ability = np.interp(by_ability, ACCURACY, ABILITIES)
        chance = 1 / (1 + np.exp(-SHARP * (ability[:, None] - self.difficulty[formulation])))
        normal = (np.interp(chance, BELOW, NORMAL) - TASTE * self.taste[formulation]) / math.sqrt(1 - TASTE**2)
        return np.where(self.gate < share[:, None], np.interp(normal, NORMAL, BELOW), self.label)


class Run(NamedTuple):
    """A simulated run."""

    truth: Truth
    cf: NDArray[np.bool_]
    """(evaluations, questions): what was answered right."""
    mcf: NDArray[np.bool_]
    asked: float | None
    """Where the expected accuracies on the questions that were drawn cross for the last time, in evaluations."""


def simulate(scenario: Scenario, generator: np.random.Generator, expect: bool = False) -> Run:
    """expect: whether to find `asked` too, which doubles the work."""
    truth = curves(scenario, generator)
    questions = Questions(scenario, generator)
    right, expected = {}, {}
    for formulation, curve in (("cf", truth.cf), ("mcf", truth.mcf)):
        jittered = curve + scenario.jitter / 100 * generator.standard_normal(len(curve))
        chances = questions.chances(formulation, curve, jittered)
        right[formulation] = generator.random(chances.shape) < chances
        if expect:
            expected[formulation] = questions.chances(formulation, curve, curve).mean(axis=1)
    if not expect:
        return Run(truth, right["cf"], right["mcf"], None)
    lead = expected["mcf"] - expected["cf"]
    last = int(np.flatnonzero(lead <= 0)[-1]) if np.any(lead <= 0) else -1
    asked = last - lead[last] / (lead[last + 1] - lead[last]) if 0 <= last < len(lead) - 1 else None
    return Run(truth, right["cf"], right["mcf"], asked)


@dataclass(frozen=True)
class Score:
    """What became of a scenario's runs. Times in evaluations."""

    runs: int
    crossed: int
    """Those that cross and were given a crossing."""
    covered: int
    """Those of them whose interval holds the true crossing; an open end holds everything beyond it."""
    open: int
    """Those of them whose interval has an open end."""
    error: float
    """Median distance of the crossing that was found from the true one."""
    least: float
    """Median distance of the true one from where the expected accuracies of the drawn questions cross: what the choice of
    questions alone makes of it, without flips and jitter."""
    width: float
    """Median width of the interval; infinite if open."""
    confirmed: int
    delay: float
    """Median number of evaluations from the true crossing to the one that confirmed it; infinite where none did."""
    states: dict[str, int]


def play(scenario: Scenario, repeats: int, seed: int, **options: Any) -> Score:
    """Simulates `repeats` runs and asks for the verdict on each."""
    rows, states = [], Counter[str]()
    for repeat in range(repeats):
        run = simulate(scenario, np.random.default_rng([seed, repeat]), expect=repeat % 4 == 0)
        tokens = (np.arange(scenario.evaluations) + 1) * UNIT
        found = find_crossover(tokens, run.cf, run.mcf, floor=FLOOR, seed=repeat, **options)
        states[found.state] += 1
        crossings = (np.nan if at is None else at for at in (run.truth.crossing, run.asked))
        rows.append([*crossings, *(place(at) for at in (found.tokens, found.lo, found.hi, found.confirmed))])
    crossing, asked, at, lo, hi, confirmed = np.array(rows).T
    given = np.isfinite(crossing) & np.isfinite(at)
    low, high = np.where(np.isnan(lo), -np.inf, lo)[given], np.where(np.isnan(hi), np.inf, hi)[given]
    inside = (low <= crossing[given]) & (crossing[given] <= high)
    delay = np.where(np.isnan(confirmed), np.inf, confirmed - crossing)
    return Score(
        runs=repeats,
        crossed=int(given.sum()),
        covered=int(inside.sum()),
        open=int(np.isinf(high - low).sum()),
        error=_median(np.abs(at - crossing)[given]),
        least=_median(np.abs(asked - crossing)[np.isfinite(asked - crossing)]),
        width=_median(high - low),
        confirmed=states["confirmed"] + states["from_start"],
        delay=_median(delay[np.isfinite(crossing)]),
        states=dict(states.most_common()),
    )


UNIT = 10**9


def place(tokens: int | None) -> float:
    """Tokens → number of the evaluation, from 0; NaN for None."""
    return np.nan if tokens is None else tokens / UNIT - 1


def _median(values: Floats) -> float:
    return float(np.median(values)) if len(values) else np.nan


CROSS = {
    f"{n} questions, {evaluations} evaluations, jitter {jitter:g}": Scenario(n, evaluations, jitter)
    for n in (1000, 300, 100)
    for evaluations in (20, 50, 200)
    for jitter in (0, 0.5, 1)
} | {
    f"label-biased, 1000 questions, 50 evaluations, jitter {jitter:g}": Scenario(1000, 50, jitter, biased=0.2)
    for jitter in (0, 0.5, 1)
}
STEADY = {
    f"0.5 points an evaluation, {n} questions, jitter {jitter:g}": Scenario(n, 100, jitter, slope=0.5)
    for n in (3000, 1000)
    for jitter in (0, 0.5, 1)
}
NEVER = (
    {
        f"touch and stay, {n} questions, {evaluations} evaluations, jitter {jitter:g}": Scenario(
            n, evaluations, jitter, end=0
        )
        for n in (1000, 100)
        for evaluations in (20, 50, 200)
        for jitter in (0, 1)
    }
    | {
        f"touch and part, {n} questions, 100 evaluations, jitter 0.5": Scenario(n, 100, 0.5, end=0, fall=-0.3)
        for n in (1000, 100)
    }
    | {
        f"3 points short, label-biased, {n} questions, 100 evaluations, jitter 1": Scenario(
            n, 100, 1, end=-3, biased=0.2
        )
        for n in (1000, 100)
    }
)


def cross_rows(scenarios: dict[str, Scenario], repeats: int) -> Iterator[str]:
    """A table of runs that cross."""
    yield "| runs that cross | covered % | open % | error | least | width | confirmed % | delay |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    covered = crossed = 0
    for number, (name, scenario) in enumerate(scenarios.items()):
        s = play(scenario, repeats, number)
        covered, crossed = covered + s.covered, crossed + s.crossed
        share, unbounded = (f"{100 * count / max(s.crossed, 1):.1f}" for count in (s.covered, s.open))
        figures = (f"{value:.2f}" for value in (s.error, s.least, s.width))
        yield f"| {name} | {share} | {unbounded} | {' | '.join(figures)} | {100 * s.confirmed / s.runs:.1f} | {s.delay:.1f} |"
    yield f"| all | {100 * covered / crossed:.1f} of {crossed:,} | | | | | | |"


def never_rows(scenarios: dict[str, Scenario], repeats: int) -> Iterator[str]:
    """A table of runs that never cross."""
    yield "| runs that never cross | confirmed % | states |"
    yield "| --- | ---: | --- |"
    confirmed = runs = 0
    for number, (name, scenario) in enumerate(scenarios.items()):
        s = play(scenario, repeats, 1000 + number, samples=1)
        confirmed, runs = confirmed + s.confirmed, runs + s.runs
        yield f"| {name} | {100 * s.confirmed / s.runs:.2f} | {', '.join(f'{k} {v}' for k, v in s.states.items())} |"
    yield f"| all | {100 * confirmed / runs:.2f} of {runs:,} | |"


def speed() -> str:
    """How long ten tasks of 1000 questions take after 200 evaluations, with 2000 samples."""
    run = simulate(Scenario(1000, 200, 1), np.random.default_rng(0))
    cf, mcf = run.cf.astype(np.float64), run.mcf.astype(np.float64)
    start, cpu = time.perf_counter(), time.process_time()
    for seed in range(10):
        find_crossover(np.arange(200), cf, mcf, floor=FLOOR, seed=seed)
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    return f"200 evaluations × 10 tasks × 1000 questions × 2000 samples: {wall:.2f} s ({cpu:.2f} s of processors)"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeats", type=int, default=120, help="runs a row that cross; twice as many that never do")
    repeats = parser.parse_args().repeats
    print(speed(), flush=True)
    for rows in (cross_rows(CROSS, repeats), cross_rows(STEADY, repeats // 2), never_rows(NEVER, 2 * repeats)):
        print(flush=True)
        for row in rows:
            print(row, flush=True)


if __name__ == "__main__":
    main()
