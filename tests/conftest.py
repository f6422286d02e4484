"""Small real parts that many tests share: a tokenizer, a Llama and a suite, all made on the spot."""

from __future__ import annotations

import os
import random

# Before anything imports them: no hub, no W&B service, no telemetry in a test.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest

from olmes_monitor import Question, Suite, Task

COLOURS = ("red", "green", "deep blue", "yellow", "black and white", "grey")


def make_task(name: str, questions: int, seed: int = 0, **settings) -> Task:
    """A task of made-up questions with 2 to 5 choices of different lengths."""
    draw = random.Random(seed)

    def question(i: int) -> Question:
        choices = tuple(draw.sample(COLOURS, draw.randint(2, 5)))
        stem = f"Box {i} holds {draw.randint(2, 99)} balls; which colour is {'very ' * draw.randint(0, 6)}common?"
        return Question(f"q{i}", stem, choices, draw.randrange(len(choices)))

    return Task(name, [question(i) for i in range(questions)], [question(1000 + i) for i in range(3)], **settings)


@pytest.fixture(scope="session")
def suite() -> Suite:
    """Two tasks, one of them normalized by pmi: 12 + 9 questions."""
    return Suite("tiny", [make_task("boxes", 12), make_task("balls", 9, seed=1, normalization="pmi")])


@pytest.fixture(scope="session")
def tokenizer(suite):
    """A byte-level BPE of 400 tokens as a transformers tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    texts = [
        request.context + request.continuation
        for task in suite.tasks.values()
        for question in task.questions
        for formulation in ("cf", "mcf")
        for request in task.requests(question, formulation)
    ]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=bpe)


def make_llama(vocabulary: int = 400, seed: int = 0, **config):
    """A Llama of some 50 thousand parameters, its weights large enough for uneven predictions."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    settings = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.15,
        **config,
    }
    return LlamaForCausalLM(LlamaConfig(**settings))


@pytest.fixture
def llama():
    return make_llama()
