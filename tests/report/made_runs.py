"""Records of a made-up training run whose curves look like real ones: CF rises early, MCF late and steeply."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from synthetic import rows, table

from olmes_monitor.measure import summarize
from olmes_monitor.measure.domains import DOMAINS
from olmes_monitor.record import Evaluation, Point, Recorder

NASTY = "<script>window.hacked = 1</script>"
"""A task's name that must never become code."""

TASKS = {  # task: choices, normalization, CF at the start and at the end, token count (in units of the run) of MCF's rise
    "arc_challenge": (4, "pmi", 0.25, 0.47, 0.45),
    "arc_easy": (4, "char", 0.30, 0.72, 0.38),
    "boolq": (2, "none", 0.55, 0.68, 0.60),
    "csqa": (5, "pmi", 0.22, 0.62, 0.50),
    "hellaswag": (4, "char", 0.27, 0.70, 2.0),
    "mmlu": (4, "char", 0.25, 0.37, 0.42),
    "openbookqa": (4, "pmi", 0.27, 0.47, 0.55),
    "piqa": (2, "char", 0.53, 0.77, 3.0),
    "socialiqa": (3, "char", 0.36, 0.52, 0.70),
    "winogrande": (2, "none", 0.50, 0.66, 0.95),
}


def make_run(
    folder: Path,
    tasks: Sequence[str] = tuple(TASKS),
    *,
    points: int = 24,
    n: int = 120,
    seed: int = 0,
    delay: float = 0.0,
    start: int = 0,
    every: int = 20_000_000_000,
) -> Path:
    """Writes evaluations `start` … `points` − 1 of a run of 24 evaluations; delay: MCF rises later by this share."""
    recorder = Recorder(folder)
    for number in range(start, points):
        recorder.write(make_evaluation(number, tasks, n=n, seed=seed, delay=delay, every=every))
    return folder


def make_evaluation(
    number: int, tasks: Sequence[str], *, n: int, seed: int = 0, delay: float = 0.0, every: int = 20_000_000_000
) -> Evaluation:
    """One evaluation with unequal lengths, so that the normalizations differ, and every fourth with a checkpoint."""
    when = number / 23
    parts = [
        row for place, task in enumerate(tasks) for row in [_task_rows(task, when - delay, n, [seed, place], number)]
    ]
    scores = table(*parts)
    facts, metrics, problems = summarize(scores, {task: TASKS.get(task, TASKS["arc_easy"])[1] for task in tasks})
    tokens = number * every
    checkpoint = f"checkpoints/step-{tokens // 4_000_000}" if number % 4 == 0 else None
    return Evaluation(
        Point(tokens, tokens // 4_000_000, 1.5e9 + 3600 * number, checkpoint),
        suite="monitor",
        fingerprint="0123456789abcdef",
        scores=scores,
        metrics=metrics | {"olmes/seconds": 11.0 + 3 * (number == 0), "olmes/overhead": 0.004},
        tasks=facts,
        problems=problems,
        cost={
            "seconds": 11.0,
            "requests": 8 * n * len(tasks),
            "tokens": 300 * n * len(tasks),
            "forwards": 80,
            "ranks": 8,
        },
        versions={"olmes_monitor": "0.1.0", "torch": "2.13.0"},
        settings={"bos": "auto", "max_length": 2048, "path": "packed", "dtype": "bfloat16"},
    )


def _task_rows(task: str, when: float, n: int, seed: list[int], number: int) -> list[dict]:
    choices, _, low, high, rise = TASKS.get(task, TASKS["arc_easy"])
    fixed, noise = np.random.default_rng(seed), np.random.default_rng([*seed, number])
    gold, ease = fixed.integers(0, choices, n), fixed.permutation(n) / n
    lengths = fixed.integers(3, 30, (n, choices))
    cf_level = low + (high - low) * (1 - np.exp(-3.5 * max(when, 0)))
    chance = 1 / choices
    mcf_level = chance + (high + 0.12 - chance) / (1 + np.exp(-(when - rise) * 22))
    lettered = 1 / (1 + np.exp(-(when - rise + 0.15) * 22))  # before it, the model always says A
    cf = _answers(gold, ease + noise.normal(0, 0.05, n) < cf_level, choices, noise) - 0.35 * lengths
    mcf = _answers(gold, ease + noise.normal(0, 0.05, n) < mcf_level, choices, noise)
    lazy = noise.random(n) > lettered
    mcf[lazy] = np.where(np.arange(choices) == 0, -0.8, -2.0)
    mcf = mcf + np.log(0.02 + 0.98 * lettered)
    subjects = sorted(DOMAINS)
    return rows(
        task,
        gold.tolist(),
        cf.tolist(),
        mcf.tolist(),
        subjects=[subjects[i % len(subjects)] for i in range(n)] if task == "mmlu" else None,
        unconditional=(-0.35 * lengths - 1).tolist(),
        texts=[[" " + "x" * (length - 1) for length in question] for question in lengths.tolist()],
    )


def _answers(gold: np.ndarray, right: np.ndarray, choices: int, noise: np.random.Generator) -> np.ndarray:
    """Log-likelihoods (questions, choices) whose best choice is gold where `right`, else another one drawn at random."""
    wrong = (gold + noise.integers(1, choices, len(gold))) % choices
    best = np.where(right, gold, wrong)
    return np.where(np.arange(choices) == best[:, None], -0.6, -2.4) + noise.normal(0, 0.05, (len(gold), choices))
