"""An own task in ten lines, scored in both formulations by a tiny random Llama. Runs in seconds on a CPU.

    python examples/own_task.py

Rows may as well come from a file, `file_rows("sums.jsonl")`, or from the hub, `hub_rows("owner/name", split="test")`.
"""

from __future__ import annotations

import random

import torch
from rich.console import Console
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from olmes_monitor import Suite, score
from olmes_monitor.report.terminal import evaluation_table
from olmes_monitor.suite import Template, task_from_rows


def sums(count: int) -> list[dict]:
    """Rows as a benchmark might have them: a question, lettered answers, the letter of the right one."""
    draw = random.Random(0)
    rows = []
    for number in range(count):
        a, b, right = draw.randint(1, 20), draw.randint(1, 20), draw.randrange(4)
        answers = {letter: f"It is {a + b + i - right}" for i, letter in enumerate("ABCD")}
        rows.append(
            {"key": f"sum-{number}", "ask": f"What is {a} plus {b}?", "answers": answers, "right": "ABCD"[right]}
        )
    return rows


def main() -> None:
    task = task_from_rows(
        "sums",
        sums(45),  # the first five are shown as shots, the others asked
        id="key",
        stem="ask",
        choices="answers",
        gold="right",
        template=Template(preamble="Sums, with their answers.\n\n"),
    )
    question = task.questions[0]
    for formulation in ("cf", "mcf"):
        request = task.requests(question, formulation)[question.gold]
        print(f"──── {formulation}, the end of a prompt\n{request.context[-110:]}[{request.continuation}]\n")
    model, tokenizer = tiny_model([task.requests(question, "mcf")[0].context for question in task.questions])
    evaluation = score(model, tokenizer, Suite("mine", [task]))
    Console().print(evaluation_table(evaluation))


def tiny_model(texts: list[str]) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """A Llama of 60 thousand random weights, and a tokenizer trained on the prompts."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=400,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=1024,
    )
    return LlamaForCausalLM(config), PreTrainedTokenizerFast(tokenizer_object=bpe)


if __name__ == "__main__":
    main()
