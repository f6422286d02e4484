"""Packed where it gives the plain path's numbers, plain elsewhere, over the architectures people train."""

import copy
import logging

import numpy as np
import pytest
import torch
import transformers
from parts import make_llama, make_task
from torch import nn

from olmes_monitor import Point, Suite, score
from olmes_monitor.scoring.path import compare
from olmes_monitor.scoring.score import Scorer

SMALL = {
    "vocab_size": 400,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}
GPT2 = {"vocab_size": 400, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512, "initializer_range": 0.3}
PACKED = {
    "llama": ("Llama", SMALL),
    "gpt_neox": ("GPTNeoX", SMALL),
    "gpt2": ("GPT2", GPT2),
    "qwen2": ("Qwen2", SMALL),
    "qwen3": ("Qwen3", SMALL | {"head_dim": 8}),
    "mistral, wide window": ("Mistral", SMALL | {"sliding_window": 4096}),
    "gemma": ("Gemma", SMALL | {"head_dim": 8}),
    "olmo2": ("Olmo2", SMALL),
    "phi": ("Phi", SMALL | {"pad_token_id": 0}),
    "phi3": ("Phi3", SMALL | {"pad_token_id": 0}),
    "mixtral": ("Mixtral", SMALL | {"num_local_experts": 4, "sliding_window": None}),
    "olmoe": ("Olmoe", SMALL | {"num_experts": 4, "num_experts_per_tok": 2}),
    "falcon, rope": ("Falcon", SMALL | {"alibi": False, "ffn_hidden_size": 64}),
}
PLAIN = {
    "mistral, narrow window": ("Mistral", SMALL | {"sliding_window": 32}),
    "olmo3, narrow window": ("Olmo3", SMALL | {"sliding_window": 32}),
    "gemma2, narrow window": ("Gemma2", SMALL | {"head_dim": 8, "sliding_window": 32}),
    "bloom, alibi": (
        "Bloom",
        {"vocab_size": 400, "hidden_size": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.3},
    ),
    "mamba": ("Mamba", {"vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}),
}
EITHER = {"falcon, alibi": ("Falcon", SMALL | {"alibi": True, "ffn_hidden_size": 64})}


def make(name, settings, **more):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**settings, **more})
    return getattr(transformers, f"{name}ForCausalLM" if name != "GPT2" else "GPT2LMHeadModel")(config)


@pytest.fixture(scope="module")
def long_suite():
    """Long enough for several shots, trunks and rows."""
    return Suite("long", [make_task("boxes", 10), make_task("balls", 6, seed=1, normalization="pmi")])


def columns(evaluation):
    return [evaluation.scores[name].drop_null().to_numpy() for name in ("cf", "mcf", "unconditional")]


@pytest.mark.parametrize(("name", "settings"), PACKED.values(), ids=PACKED.keys())
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_equals_plain(name, settings, attention, long_suite, tokenizer):
    model = make(name, settings, attn_implementation=attention)
    plain = score(model, tokenizer, long_suite, path="plain")
    packed = score(model, tokenizer, long_suite, batch_tokens=100)
    assert packed.settings["path"] == "packed", packed.settings["path_reason"]
    for found, truth in zip(columns(packed), columns(plain), strict=True):
        np.testing.assert_allclose(found, truth, rtol=1e-4, atol=1e-4)
    assert packed.metrics == plain.metrics
    assert packed.cost["tokens"] < plain.cost["tokens"]


@pytest.mark.parametrize(("name", "settings"), (PLAIN | EITHER).values(), ids=(PLAIN | EITHER).keys())
def test_where_packing_would_be_wrong_the_check_finds_out(name, settings, long_suite, tokenizer, caplog):
    model = make(name, settings)
    with caplog.at_level(logging.INFO, "olmes_monitor"):
        found = score(model, tokenizer, long_suite, batch_tokens=100)
    truth = score(model, tokenizer, long_suite, path="plain")
    for values, right in zip(columns(found), columns(truth), strict=True):
        np.testing.assert_allclose(values, right, rtol=1e-4, atol=1e-4)
    if (name, settings) in PLAIN.values():
        assert found.settings["path"] == "plain"
        assert found.settings["path_reason"] not in ("", "as asked")
        assert "the plain path is used" in caplog.text


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("architecture", [name for name in PACKED if name not in ("mixtral", "olmoe")])
def test_in_float64_packed_equals_plain_to_1e_10(architecture, attention, long_suite, tokenizer, monkeypatch):
    """transformers' eager attention takes its softmax in float32 whatever the weights are, GPT-2's apart: that cast is taken
    out here, and left in below. Its experts take no float64."""

    def softmax(scores, dim=-1, dtype=None, **more):
        return torch.softmax(scores, dim, dtype=torch.float64 if scores.dtype == torch.float64 else dtype)

    if attention == "eager" and architecture != "gpt2":
        monkeypatch.setattr(nn.functional, "softmax", softmax)
    model = make(*PACKED[architecture], attn_implementation=attention).double()
    plain = score(model, tokenizer, long_suite, path="plain")
    packed = score(model, tokenizer, long_suite, batch_tokens=100, path="packed")
    assert packed.settings["path"] == "packed"
    for found, truth in zip(columns(packed), columns(plain), strict=True):
        np.testing.assert_allclose(found, truth, rtol=0, atol=1e-10)


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "olmo2"])
def test_in_float64_with_the_librarys_own_eager_attention_the_paths_differ_by_its_float32_softmax(
    architecture, long_suite, tokenizer
):
    model = make(*PACKED[architecture], attn_implementation="eager").double()
    plain = score(model, tokenizer, long_suite, path="plain")
    packed = score(model, tokenizer, long_suite, batch_tokens=100, path="packed")
    for found, truth in zip(columns(packed), columns(plain), strict=True):
        np.testing.assert_allclose(found, truth, rtol=0, atol=1e-5)


@pytest.mark.parametrize("how", ["autocast", "weights"])
def test_in_bfloat16_the_paths_agree_within_the_stated_tolerance(how, long_suite, tokenizer):
    model = make("Llama", SMALL | {"initializer_range": 0.1})
    settings = {}
    if how == "autocast":
        settings["context"] = lambda: torch.autocast("cpu", dtype=torch.bfloat16)
    else:
        model = model.bfloat16()
    plain = score(model, tokenizer, long_suite, path="plain", **settings)
    packed = score(model, tokenizer, long_suite, batch_tokens=100, **settings)
    assert packed.settings["path"] == "packed", packed.settings["path_reason"]
    tokens = packed.scores["tokens"].to_numpy()
    difference = np.abs(packed.scores["cf"].to_numpy() - plain.scores["cf"].to_numpy()) / tokens
    assert difference.max() < 0.3
    assert np.median(difference) < 0.05


def test_a_module_of_ones_own_is_scored_plain_with_the_reason(long_suite, tokenizer):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = make_llama()

        def forward(self, input_ids):
            return self.inner(input_ids).logits

    settings = score(Own(), tokenizer, long_suite).settings
    assert settings["path"] == "plain"
    assert settings["path_reason"] == "Own is not a model of transformers"


def test_asking_for_packed_where_it_cannot_be_is_a_warning(long_suite, tokenizer, caplog):
    with caplog.at_level(logging.WARNING, "olmes_monitor"):
        score(make(*PLAIN["mamba"]), tokenizer, long_suite, path="packed")
    assert "the plain path is used: MambaForCausalLM.forward takes no" in caplog.text


def test_an_attention_that_takes_no_mask_is_switched_and_switched_back(long_suite, tokenizer):
    """flex_attention stands for flash_attention_2, which needs a GPU."""
    model = make("Llama", SMALL, attn_implementation="flex_attention")
    seen = []
    model.model.layers[0].register_forward_pre_hook(lambda *_: seen.append(model.config._attn_implementation))
    evaluation = score(model, tokenizer, long_suite, batch_tokens=100, path="auto")
    assert model.config._attn_implementation == "flex_attention"
    assert evaluation.settings["path"] == "packed", evaluation.settings["path_reason"]
    assert seen[-1] == "sdpa"


def flash(module, query, key, value, attention_mask, **kwargs):
    """Stands for FlashAttention-2, which is not to be had here: causal, and deaf to any mask of one's own."""
    if attention_mask is not None and attention_mask.ndim == 4:
        raise ValueError("a mask of 4 dimensions")
    groups = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    out = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=query.shape[2] > 1)
    return out.transpose(1, 2), None


@pytest.mark.parametrize("switches", [True, False])
def test_an_attention_like_flash_is_switched_or_left_alone_and_the_config_is_as_before(
    switches, long_suite, tokenizer, monkeypatch
):
    transformers.AttentionInterface.register("mask_free", flash)
    truth = score(make("Llama", SMALL), tokenizer, long_suite, path="plain")
    model = make("Llama", SMALL, attn_implementation="mask_free")
    if not switches:
        monkeypatch.setattr(type(model), "set_attn_implementation", lambda *_: None)
    before = copy.deepcopy(model.config.to_dict())
    evaluation = score(model, tokenizer, long_suite, batch_tokens=100)
    assert model.config.to_dict() == before
    assert model.config._attn_implementation == "mask_free"
    if switches:
        assert evaluation.settings["path"] == "packed", evaluation.settings["path_reason"]
    else:
        assert evaluation.settings["path"] == "plain"
        assert "its attention 'mask_free' takes no mask" in evaluation.settings["path_reason"]
    for found, values in zip(columns(evaluation), columns(truth), strict=True):
        np.testing.assert_allclose(found, values, rtol=1e-4, atol=1e-4)


def test_the_config_and_the_cache_flag_are_not_written(long_suite, tokenizer):
    model = make("Llama", SMALL)
    model.config.use_cache = False
    before = copy.deepcopy(model.config.to_dict())
    score(model, tokenizer, long_suite, path="packed")
    assert model.config.to_dict() == before


def test_no_trunk_is_held_after_an_evaluation(long_suite, tokenizer):
    scorer = Scorer(make("Llama", SMALL), tokenizer, long_suite, batch_tokens=100)
    held = []
    run = scorer.path.packed.run
    scorer.path.packed.run = lambda *a: (run(*a), held.append(len(scorer.path.packed._trunks)))[0]
    scorer.evaluate(Point(0))
    assert max(held) >= 1
    assert scorer.path.packed._trunks == {}


def test_differences_are_told_in_words():
    truth, tokens = np.array([-60.0, -1.0]), np.array([10, 1])
    assert compare(truth + np.array([2e-4, 1e-5]), truth, tokens, rough=False) is None
    assert "differ by up to 0.1 nats" in compare(truth + np.array([0.1, 0]), truth, tokens, rough=False)
    assert compare(truth + np.array([0.5, 0.01]), truth, tokens, rough=True) is None
    assert "nats a token" in compare(truth + np.array([0.0, 0.4]), truth, tokens, rough=True)
    assert "NaN" in compare(np.array([np.nan, -1.0]), truth, tokens, rough=False)
