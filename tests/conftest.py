"""What many tests share: a suite, a tokenizer and a Llama, all made on the spot."""

from __future__ import annotations

import os
import signal

# A shell that starts the tests in the background has them ignore Ctrl-C, and with them the processes they start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before anything imports them: no hub, no W&B service, no telemetry in a test.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from parts import make_llama, make_task, make_tokenizer

from olmes_monitor import Suite


@pytest.fixture(scope="session")
def suite() -> Suite:
    """Two tasks, one of them normalized by pmi: 12 + 9 questions."""
    return Suite("tiny", [make_task("boxes", 12), make_task("balls", 9, seed=1, normalization="pmi")])


@pytest.fixture(scope="session")
def tokenizer(suite):
    """A byte-level BPE of 400 tokens as a transformers tokenizer."""
    return make_tokenizer(suite)


@pytest.fixture
def llama():
    return make_llama()
