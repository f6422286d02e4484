"""How far the packed path is from the plain one, on every request of a suite, with a real model.

    python tests/benchmarks/exact.py MODEL [--suite quick] [--limit N] [--tasks A,B] [--dtype float32] [--plain FOLDER]
                                      [--uncast]

MODEL is a folder in transformers format. The plain path forwards each distinct prompt by itself, which on two cores takes
an hour for SmolLM2-135M and suite quick: a line is printed as soon as a task is done, and FOLDER keeps the plain
path's values for the next time (one model a folder). For each task: log-likelihoods compared,
the largest |difference| in nats, the largest relative to max(1, |log-likelihood|), and the questions whose prediction differs
in either formulation. `--uncast` is for a Llama in float64: eager attention, without the library's rounding to float32.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import parquet

from olmes_monitor import Suite, load_suite, score
from olmes_monitor.measure import predict
from olmes_monitor.measure.choices import read_choices

COLUMNS = ("cf", "mcf", "unconditional")


@dataclass(frozen=True)
class Exactness:
    """One task scored on both paths."""

    task: str
    compared: int
    """Log-likelihoods that either path gave."""
    largest: float
    """Largest |packed − plain|, nats."""
    relative: float
    """Largest |packed − plain| / max(1, |plain|)."""
    flipped: int
    """Predictions that differ: of questions × formulations."""
    predictions: int


def compare_paths(model: Any, tokenizer: Any, suite: Suite, task: str, keep: Path | None = None) -> Exactness:
    """Score one task of a suite on both paths; AssertionError if either lacks a value that the other has.

    `keep`: where the plain path's scores are kept, and read from if they are there.
    """
    alone = Suite(suite.name, [suite.tasks[task]])
    kept = keep and keep / f"{task}-{alone.fingerprint[:12]}-{model.dtype}.parquet"
    if kept and kept.exists():
        plain = parquet.read_table(kept)
    else:
        plain = score(model, tokenizer, alone, path="plain").scores
        if kept:
            kept.parent.mkdir(parents=True, exist_ok=True)
            parquet.write_table(plain, kept)
    found = {"plain": plain, "packed": score(model, tokenizer, alone, path="packed").scores}
    both = {path: np.concatenate([table[name].to_numpy() for name in COLUMNS]) for path, table in found.items()}
    asked = np.isfinite(both["plain"])
    assert np.array_equal(asked, np.isfinite(both["packed"]))
    difference = np.abs(both["packed"] - both["plain"])[asked]
    kind = suite.tasks[task].normalization
    choices = {path: read_choices(table)[task] for path, table in found.items()}
    # The choice itself, not whether it is right: two wrong ones may differ too.
    chosen = {
        path: np.stack([predict(each.scores(form, kind), each.offsets) for form in ("cf", "mcf")])
        for path, each in choices.items()
    }
    flips = chosen["plain"] != chosen["packed"]
    return Exactness(
        task=task,
        compared=int(asked.sum()),
        largest=float(difference.max()),
        relative=float((difference / np.maximum(1, np.abs(both["plain"][asked]))).max()),
        flipped=int(np.sum(flips)),
        predictions=int(np.size(flips)),
    )


def take_casts_out() -> None:
    """Have Llama's norms and eager attention compute in the model's own dtype; the library rounds both to float32."""
    import torch
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    def norm(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        return self.weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    def softmax(scores: torch.Tensor, dim: int, **_: Any) -> torch.Tensor:
        return torch.softmax(scores, dim)

    LlamaRMSNorm.forward = norm
    torch.nn.functional.softmax = softmax


def main() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--suite", default="quick")
    parser.add_argument("--tasks", type=lambda text: text.split(","))
    parser.add_argument("--limit", type=int)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--plain", type=Path, metavar="FOLDER")
    parser.add_argument("--uncast", action="store_true")
    options = parser.parse_args()
    if options.uncast and options.plain:
        parser.error("--plain keeps values of the model as it is: not with --uncast")
    attention = "sdpa"
    if options.uncast:
        attention = "eager"
        take_casts_out()
    dtype = getattr(torch, options.dtype)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype, attn_implementation=attention).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    suite = load_suite(options.suite, tasks=options.tasks, limit=options.limit)
    print("| task | log-likelihoods | largest difference, nats | relative | predictions that differ |")
    print("| --- | ---: | ---: | ---: | ---: |", flush=True)
    for task in suite.tasks:
        row = compare_paths(model, tokenizer, suite, task, options.plain)
        print(
            f"| {row.task} | {row.compared:,} | {row.largest:.1e} | {row.relative:.1e} "
            f"| {row.flipped} of {row.predictions:,} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
