"""Small real parts made on the spot: tasks of made-up questions, a tokenizer, a tiny Llama."""

from __future__ import annotations

import random

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


def make_tokenizer(suite: Suite):
    """A byte-level BPE of 400 tokens, trained on the suite, as a transformers tokenizer."""
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
