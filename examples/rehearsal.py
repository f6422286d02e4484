"""A corpus and a tiny model for the two training examples: benchmark questions, first as plain text, later lettered.

The model rehearses the very questions it is evaluated on, so its scores say nothing about it. What is real is the crossing:
cloze is learned from the plain text, multiple choice only once lettered text appears, just as in a large run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.utils.data import IterableDataset
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from olmes_monitor import Suite

ROW = 512
"""Tokens of one row of the corpus: as long as the longest 5-shot prompt of the demo, so that no position is new."""


def tiny_tokenizer(suite: Suite) -> PreTrainedTokenizerFast:
    """A byte-level BPE of 2048 tokens, trained on the suite's own prompts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        (text for task in suite.tasks.values() for question in task.questions for text in as_text(task, question)),
        trainers.BpeTrainer(vocab_size=2048, initial_alphabet=alphabet, show_progress=False),
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def tiny_llama(vocabulary: int, seed: int = 0) -> LlamaForCausalLM:
    """A Llama of 1.3 million parameters."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=128,
            intermediate_size=352,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
        )
    )


def as_text(task, question) -> tuple[str, str]:
    """A question with its answer, as plain text and lettered."""
    plain = task.requests(question, "cf", shots=0)[question.gold]
    lettered = task.requests(question, "mcf", shots=0)[question.gold]
    return plain.context + plain.continuation + "\n\n", lettered.context + lettered.continuation + "\n\n"


class Rehearsal(IterableDataset):
    """Rows of token ids without end. Of each task, half the questions occur as plain text; all occur lettered.

    Lettered text is absent for the first `plain_rows` rows; then its share rises evenly to 80 % over `ramp_rows` rows.
    """

    def __init__(self, suite: Suite, tokenizer, plain_rows: int, ramp_rows: int, seed: int = 0) -> None:
        self.plain, self.lettered = [], []
        for task in suite.tasks.values():
            for i, question in enumerate(task.questions):
                plain, lettered = (tokenizer(text)["input_ids"] for text in as_text(task, question))
                self.lettered.append(lettered)
                if i % 2 == 0:
                    self.plain.append(plain)
        self.plain_rows, self.ramp_rows, self.seed = plain_rows, ramp_rows, seed

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        draw, row, ids = random.Random(self.seed), 0, []
        while True:
            share = 0.8 * min(max(row - self.plain_rows, 0) / self.ramp_rows, 1.0)
            ids += draw.choice(self.lettered if draw.random() < share else self.plain)
            while len(ids) >= ROW:
                chunk, ids, row = torch.tensor(ids[:ROW]), ids[ROW:], row + 1
                yield {"input_ids": chunk, "labels": chunk}
