"""Training does not notice the monitor: bit by bit, whatever the model does, and also when an evaluation fails."""

import functools

import pytest
from parts import make_task, make_tokenizer
from trained import BATCH, TRAINERS, Training, differences

from olmes_monitor import Suite, load_run

SUITE = Suite("tiny", [make_task("boxes", 3)])


def tokenizer():
    """With a state of its own: a pad token, the left side, a truncation that some data pipeline has set."""
    made = make_tokenizer(SUITE)
    made.add_special_tokens({"pad_token": "<pad>"})
    made.padding_side = made.truncation_side = "left"
    made.backend_tokenizer.enable_truncation(32)
    made.backend_tokenizer.enable_padding(length=16)
    return made


@functools.cache
def unwatched(trainer, kind, folder):
    training = Training(folder, kind, tokenizer())
    TRAINERS[trainer](training)
    return training.left()


@pytest.mark.parametrize("mode", ["each step", "mid-window", "raises"])
@pytest.mark.parametrize("kind", ["odd", "llama"])
@pytest.mark.parametrize("trainer", TRAINERS)
def test_training_is_bit_equal(trainer, kind, mode, tmp_path, tmp_path_factory):
    """odd: float32, a model of its own. llama: bf16 autocast, the packed path. Both: dropout, accumulation with a short last
    window, activation checkpointing, weight averaging."""
    expected = unwatched(trainer, kind, tmp_path_factory.getbasetemp() / "unwatched")
    training = Training(tmp_path, kind, tokenizer(), SUITE, mode)
    TRAINERS[trainer](training)
    assert differences(expected, training.left()) == []
    assert len(expected["losses"]) == 5
    assert len(expected["grads"]) == 3
    evaluations = load_run(tmp_path).evaluations
    failed = [e for e in evaluations if "half way" in e.problems.get("evaluation", "")]
    assert len(failed) == (3 if mode == "raises" else 0)
    assert evaluations[0].settings["path"] == ("plain" if kind == "odd" else "packed")
    # The windows have two, two and one micro-batch; the loop by hand tells two each time.
    last = 6 if trainer == "by hand" else 5
    assert [e.point.tokens for e in evaluations] == [0, 2 * BATCH, 4 * BATCH, last * BATCH]


def test_the_comparison_sees_a_single_draw_and_a_single_bit():
    a = unwatched("by hand", "odd", None)
    training = Training(None, "odd", tokenizer())
    training.model.lm.lm_head.weight.data[0, 0] += 1e-6
    TRAINERS["by hand"](training)
    found = differences(a, training.left())
    assert any(where.startswith(".weights") for where in found)
    assert differences({"torch": a["torch"]}, {"torch": a["torch"].roll(1)}) == [".torch"]
