"""The memory an evaluation takes above the model, in bytes of live tensors: no clock, no allocator, no resident size.

    python tests/benchmarks/memory.py

A tiny Llama with a vocabulary of 150,000, whose logits dwarf all else, is asked a task of made-up questions of two sizes
at two row budgets, and in both forms: cloze reads far more positions in a call.
"""

from __future__ import annotations

import argparse
import sys
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

sys.path.append(str(Path(__file__).parents[1]))

from parts import make_llama

from olmes_monitor import Point, Question, Suite, Task
from olmes_monitor.scoring.score import Scorer

VOCABULARY = 150_000


class LiveBytes(TorchDispatchMode):
    """Within: bytes of the storages that operators have made and nothing has let go of yet, and the most there were.

    What an operator takes for itself while it works (a logsumexp: once its input) is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in tree_leaves((args, kwargs)):
            self._see(tensor, made_here=False)
        result = func(*args, **kwargs)
        for tensor in tree_leaves(result):
            self._see(tensor, made_here=True)
        return result

    def _see(self, value: Any, made_here: bool) -> None:
        """Count a storage once, if an operator within has made it: the model's weights come in as arguments."""
        if not isinstance(value, Tensor):
            return
        # torch keeps one Python object for a storage as long as the storage lives, so it may be watched.
        storage = value.untyped_storage()
        if storage in self._known:
            return
        self._known.add(storage)
        if made_here:
            size = storage.nbytes()
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._let_go, size)

    def _let_go(self, size: int) -> None:
        self.live -= size


class Words:
    """A tokenizer without a vocabulary file: one id per character, spread over the whole of VOCABULARY."""

    def encode(self, text: str) -> list[int]:
        return [ord(character) * 997 % VOCABULARY for character in text]


@dataclass(frozen=True)
class Measured:
    """One evaluation."""

    questions: int
    budget: int
    peak: int
    """Bytes of live tensors above the model, at most."""
    left: int
    """Bytes still live after it."""
    heads: int
    """Logits positions of the forward call that has the most."""
    targets: int
    """Answer tokens of the whole suite."""


def make_suite(questions: int) -> Suite:
    """One task of short made-up questions."""
    asked = [Question(f"q{i}", f"{i:05}", ("yes", "no"), i % 2) for i in range(questions)]
    return Suite("made_up", [Task("made_up", asked)])


def make_model(vocabulary: int = VOCABULARY) -> torch.nn.Module:
    """A Llama of two tiny layers under a large vocabulary."""
    return make_llama(vocabulary, hidden_size=8, intermediate_size=16, num_attention_heads=2, num_key_value_heads=1)


def make_scorer(model: torch.nn.Module, questions: int, budget: int, formulation: str = "mcf") -> Scorer:
    """One formulation only: multiple choice has one read a question, which keeps this quick."""
    suite, forms = make_suite(questions), (formulation,)
    return Scorer(model, Words(), suite, batch_tokens=budget, path="packed", formulations=forms)  # type: ignore[arg-type]


def measure(model: torch.nn.Module, questions: int, budget: int, formulation: str = "mcf") -> Measured:
    """One evaluation of so many questions with so many tokens in a forward call."""
    scorer = make_scorer(model, questions, budget, formulation)
    calls = [call for job in scorer.jobs for call in job.calls]
    with LiveBytes() as tracked:
        scorer.evaluate(Point(tokens=0))
    return Measured(
        questions=questions,
        budget=budget,
        peak=tracked.peak,
        left=tracked.live,
        heads=max(len(call.reads.position) for call in calls),
        targets=sum(len(call.reads.target) for call in calls),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Bytes of live tensors above the model during an evaluation.")
    parser.add_argument("--questions", type=int, nargs="+", default=[1000, 16000])
    parser.add_argument("--budget", type=int, nargs="+", default=[2048, 512, 256])
    given = parser.parse_args()
    model = make_model()
    print("| form | questions | row budget | peak MB | logits rows of a call |\n| --- | ---: | ---: | ---: | ---: |")
    for formulation in ("mcf", "cf"):
        # Cloze answers are many: a few questions fill the calls, and more take only longer.
        for questions in given.questions if formulation == "mcf" else [100]:
            for budget in given.budget:
                found = measure(model, questions, budget, formulation)
                print(f"| {formulation} | {questions:,} | {budget} | {found.peak / 1e6:.1f} | {found.heads} |")


if __name__ == "__main__":
    main()
