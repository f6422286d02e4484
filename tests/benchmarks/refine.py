"""Zooming in on simulated runs: how much narrower the crossing's interval gets, and for how many more evaluations.

    python tests/benchmarks/refine.py              # the table of docs/explain.md, about five minutes on one thread
    python tests/benchmarks/refine.py --repeats 4  # a look

CF's accuracy stays where it is, MCF's rises by 40 points along a logistic curve and crosses it half-way. Each question has a
difficulty for each form and a taste of its own, both the same at every evaluation; jitter moves all questions of an
evaluation. An evaluation is a function of the run and its tokens, so both schedules see the same ones where they
meet. `dense` evaluates at every/8 for two evaluations on either side of the crossing, without regard to cost and knowing
where it will be: what it does not narrow, no schedule can.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from olmes_monitor.measure import Crossover, find_crossover
from olmes_monitor.measure.accuracy import stderr
from olmes_monitor.refine import Refiner

EVERY, REGULAR = 10**9, 40
SHARP, TASTE, LEVEL, RISE = 2.5, 0.6, 0.45, 0.4
ABILITIES = np.linspace(-6, 6, 601)


@dataclass(frozen=True)
class Scenario:
    """A kind of run; points are accuracy points."""

    questions: int
    jitter: float
    """Standard deviation in each curve, points."""
    slope: float
    """Rise of the gap at the crossing, points from one regular evaluation to the next."""


SCENARIOS = [
    Scenario(1000, 1.0, 1.0),
    Scenario(1000, 1.0, 5.0),
    Scenario(1000, 1.0, 20.0),
    Scenario(1000, 1.0, 40.0),
    Scenario(9500, 1.0, 1.0),
    Scenario(9500, 1.0, 5.0),
    Scenario(9500, 1.0, 20.0),
    Scenario(9500, 0.5, 20.0),
    Scenario(9500, 0.5, 30.0),
    Scenario(9500, 0.5, 40.0),
    Scenario(9500, 0.5, 80.0),
    Scenario(9500, 2.0, 5.0),
    Scenario(9500, 3.0, 5.0),
    Scenario(9500, 3.0, 10.0),
]
"""1000 questions: one task. 9500: the ten tasks of the monitor suite together."""


def _accuracies() -> NDArray[np.float64]:
    """Accuracy over all questions there could be, at each of ABILITIES."""
    difficulty = np.linspace(-4, 4, 401)
    weights = np.exp(-(difficulty**2) / 2)
    return np.asarray((1 / (1 + np.exp(-SHARP * (ABILITIES[:, None] - difficulty)))) @ (weights / weights.sum()))


ACCURACIES = _accuracies()


class Simulated:
    """One run: what is answered right at any token count."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.scenario, self.seed = scenario, seed
        self.crossing = (REGULAR / 2 + draw.random()) * EVERY
        shared, own = draw.standard_normal((2, scenario.questions))
        self._difficulty = shared, 0.8 * shared + 0.6 * own
        self._taste = TASTE * draw.standard_normal((2, scenario.questions))
        self.seen: dict[int, list[NDArray[np.float64]]] = {}

    def evaluate(self, tokens: int) -> list[NDArray[np.float64]]:
        """[CF, MCF], each (questions,) 1 or 0."""
        if tokens not in self.seen:
            draw = np.random.default_rng([self.seed, tokens])
            steepness = 4 * self.scenario.slope / 100 / RISE / EVERY
            risen = RISE / (1 + math.exp(-steepness * (tokens - self.crossing))) - RISE / 2
            self.seen[tokens] = [self._answers(form, LEVEL + form * risen, draw) for form in (0, 1)]
        return self.seen[tokens]

    def _answers(self, form: int, level: float, draw: np.random.Generator) -> NDArray[np.float64]:
        target = level + self.scenario.jitter / 100 * draw.standard_normal()
        ability = np.interp(target, ACCURACIES, ABILITIES)
        chance = 1 / (1 + np.exp(-SHARP * (ability - self._difficulty[form])))
        luck = self._taste[form] + math.sqrt(1 - TASTE**2) * draw.standard_normal(self.scenario.questions)
        # The normal distribution function, to 1e-4 (Bowling et al. 2009).
        return (1 / (1 + np.exp(-(0.07056 * luck**3 + 1.5976 * luck))) < chance).astype(np.float64)

    def verdict(self, points: list[int]) -> Crossover:
        """From the evaluations at these token counts."""
        cf, mcf = (np.stack([self.evaluate(point)[form] for point in points]) for form in (0, 1))
        return find_crossover(points, cf, mcf, samples=500)


def regular() -> list[int]:
    """The points without zooming in."""
    return [i * EVERY for i in range(REGULAR + 1)]


def dense(run: Simulated) -> list[int]:
    """The points of every/8 around the crossing, and the regular ones."""
    near = range(-16, 17)
    return sorted({*regular(), *(round(run.crossing / EVERY * 8 + i) * EVERY // 8 for i in near)})


def zoomed(run: Simulated, planned: int | None = REGULAR * EVERY) -> list[int]:
    """The points that Refiner chooses, as they would come in training."""
    refiner, points, due, settled = Refiner(EVERY, planned=planned), [], 0, False
    while due <= REGULAR * EVERY:
        points.append(due)
        cf, mcf = run.evaluate(due)
        lead, jitter = float(np.mean(mcf - cf)), math.sqrt(2) * run.scenario.jitter / 100
        error = math.hypot(float(stderr(mcf - cf)), jitter)
        if not settled and lead > 2 * error and len(points) > 3:  # else it cannot have been confirmed
            settled = run.verdict(points).state == "confirmed"
        due = refiner.observe(due, {"task": (lead, error)}, ["task"] if settled else [])
    return points


@dataclass(frozen=True)
class Result:
    """Of a scenario's runs. Widths and errors in units of `every`, medians over the runs with a closed interval."""

    extra: float
    """Mean share of evaluations beyond the regular ones."""
    most: float
    """The largest share."""
    width: dict[str, float]
    error: dict[str, float]
    covered: dict[str, float]


def play(scenario: Scenario, repeats: int, schedules: tuple[str, ...] = ("regular", "zoomed", "dense")) -> Result:
    """Simulates `repeats` runs, each seen by each schedule."""
    extra, found = [], {name: [] for name in schedules}  # type: ignore[var-annotated]
    for seed in range(repeats):
        run = Simulated(scenario, seed)
        points = {"regular": regular(), "zoomed": zoomed(run), "dense": dense(run)}
        extra.append(len(points["zoomed"]) / (REGULAR + 1) - 1)
        for name in schedules:
            verdict = run.verdict(points[name])
            if verdict.tokens is not None and verdict.lo is not None and verdict.hi is not None:
                error = abs(verdict.tokens - run.crossing)
                inside = verdict.lo <= run.crossing <= verdict.hi
                found[name].append(((verdict.hi - verdict.lo) / EVERY, error / EVERY, inside))
    columns = {name: np.array(rows, dtype=float).T for name, rows in found.items()}
    return Result(
        extra=float(np.mean(extra)),
        most=float(np.max(extra)),
        width={name: float(np.median(column[0])) for name, column in columns.items()},
        error={name: float(np.median(column[1])) for name, column in columns.items()},
        covered={name: float(np.mean(column[2])) for name, column in columns.items()},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="How much narrower the interval gets when evaluations zoom in.")
    parser.add_argument("--repeats", type=int, default=20, help="runs of each kind (default 20)")
    given = parser.parse_args()
    print(
        "| questions | jitter, points | rise an evaluation, points | more evaluations | width: regular | zoomed in | dense "
        "| ratio: zoomed in | dense | error: regular | zoomed in | covered: regular | zoomed in |"
    )
    print("| " + " | ".join(["---:"] * 13) + " |")
    for each in SCENARIOS:
        result = play(each, given.repeats)
        width = result.width
        cells = [f"{each.questions:,}", f"{each.jitter:g}", f"{each.slope:g}", f"{100 * result.extra:.0f} %"]
        cells += [f"{width[name]:.2f}" for name in ("regular", "zoomed", "dense")]
        cells += [f"{width[name] / width['regular']:.2f}" for name in ("zoomed", "dense")]
        cells += [f"{result.error[name]:.3f}" for name in ("regular", "zoomed")]
        cells += [f"{100 * result.covered[name]:.0f} %" for name in ("regular", "zoomed")]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
