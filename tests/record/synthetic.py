"""Made-up evaluations: log-likelihoods under which a chosen share of questions is answered right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from olmes_monitor.measure import summarize
from olmes_monitor.record import Evaluation, Point, Recorder

CHAR = {"arc_easy": "char", "csqa": "pmi", "mmlu": "char", "boolq": "none"}


def rows(
    task: str,
    gold: Sequence[int],
    cf: Sequence[Sequence[float | None]] | None = None,
    mcf: Sequence[Sequence[float | None]] | None = None,
    *,
    subjects: Sequence[str] | None = None,
    unconditional: Sequence[Sequence[float]] | None = None,
    texts: Sequence[Sequence[str]] | None = None,
) -> list[dict[str, Any]]:
    """Rows of the table of scores; cf, mcf: one list a question, None where the formulation was not asked."""
    given = cf if cf is not None else mcf
    assert given is not None
    found = []
    for question, choices in enumerate(given):
        for choice in range(len(choices)):
            text = texts[question][choice] if texts else " same"
            found.append(
                {
                    "task": task,
                    "subject": subjects[question] if subjects else "",
                    "question": f"{task}-{question}",
                    "index": question,
                    "choice": choice,
                    "gold": choice == gold[question],
                    "cf": cf[question][choice] if cf is not None else None,
                    "mcf": mcf[question][choice] if mcf is not None else None,
                    "unconditional": unconditional[question][choice] if unconditional is not None else None,
                    "tokens": len(text.split()) if cf is not None else None,
                    "chars": len(text),
                    "bytes": len(text.encode()),
                }
            )
    return found


def table(*parts: list[dict[str, Any]]) -> pa.Table:
    """The rows as Evaluation.scores holds them."""
    names = pa.dictionary(pa.int32(), pa.string())
    types = {"task": names, "subject": names, "question": pa.string(), "index": pa.int32(), "choice": pa.int8()}
    types |= {"gold": pa.bool_()} | dict.fromkeys(("cf", "mcf", "unconditional"), pa.float64())
    types |= dict.fromkeys(("tokens", "chars", "bytes"), pa.int32())
    schema = pa.schema(types)
    return pa.Table.from_pylist([row for part in parts for row in part], schema=schema)


def answered(gold: Sequence[int], right: Sequence[bool] | np.ndarray, choices: int = 4) -> list[list[float]]:
    """Log-likelihoods under which question i is answered right where right[i]; the best choice has −0.5, others −3."""
    found = []
    for answer, is_right in zip(gold, right, strict=True):
        best = answer if is_right else (answer + 1) % choices
        found.append([-0.5 if choice == best else -3.0 for choice in range(choices)])
    return found


def make_evaluation(
    tokens: int,
    shares: Mapping[str, tuple[float, float]],
    *,
    n: int = 60,
    step: int | None = None,
    fingerprint: str = "0123456789abcdef",
    seed: int = 0,
) -> Evaluation:
    """shares: task → (CF accuracy, MCF accuracy). The easiest questions are the same in all evaluations."""
    parts = []
    for number, (task, levels) in enumerate(shares.items()):
        fixed = np.random.default_rng([seed, number])
        gold, ease = fixed.integers(0, 4, n), fixed.permutation(n) / n
        noise = np.random.default_rng([seed, number, tokens]).normal(0, 0.03, (2, n))
        cf, mcf = (answered(gold, ease + extra < level) for level, extra in zip(levels, noise, strict=True))
        subjects = [f"subject_{i % 6}" for i in range(n)] if task == "mmlu" else None
        unconditional = [[-1.0] * 4] * n if CHAR.get(task) == "pmi" else None
        parts.append(rows(task, gold.tolist(), cf, mcf, subjects=subjects, unconditional=unconditional))
    scores = table(*parts)
    tasks, metrics, problems = summarize(scores, {task: CHAR.get(task, "char") for task in shares})
    return Evaluation(
        point=Point(tokens, step if step is not None else tokens // 4_000_000, time=1.5e9 + tokens / 1e6),
        suite="quick",
        fingerprint=fingerprint,
        scores=scores,
        metrics=metrics,
        tasks=tasks,
        problems=problems,
        cost={"seconds": 12.34},
        settings={"bos": "auto", "max_length": 2048},
    )


def failed_evaluation(tokens: int, fingerprint: str = "0123456789abcdef") -> Evaluation:
    """As recorded when the forward pass raised."""
    return Evaluation(
        Point(tokens, tokens // 4_000_000), "quick", fingerprint, None, problems={"evaluation": "rank 0: out of memory"}
    )


RISE = [(0.3, 0.25), (0.4, 0.27), (0.45, 0.3), (0.48, 0.42), (0.5, 0.65), (0.52, 0.7), (0.54, 0.8), (0.55, 0.85)]
"""CF and MCF accuracies over a run in which MCF overtakes CF between the fourth and the fifth evaluation."""


def write_rise(folder: Path, levels: Sequence[tuple[float, float]] = RISE, start: int = 0) -> list[Evaluation]:
    """A record of two tasks: arc_easy goes as `levels` say, csqa never crosses; an evaluation every 1B tokens."""
    recorder = Recorder(folder)
    evaluations = []
    for index, (cf, mcf) in enumerate(levels, start=start):
        evaluation = make_evaluation(index * 10**9, {"arc_easy": (cf, mcf), "csqa": (0.5, 0.25)}, n=200)
        recorder.write(evaluation)
        evaluations.append(evaluation)
    return evaluations
