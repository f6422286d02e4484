"""A checkpoint's weights are loaded whole and under the right names, or it is an error and nothing changes."""

import json
import logging
import pickle
import re

import pytest
import torch
from made import same_weights, save_ckpt, save_folder
from parts import make_llama
from safetensors.torch import load_file, save_file
from torch import nn

from olmes_monitor.checkpoints.checkpoint import Checkpoint, CheckpointError
from olmes_monitor.checkpoints.find import find_checkpoints
from olmes_monitor.checkpoints.load import find_tokenizer, load_state, open_model, read_state
from olmes_monitor.errors import SetupError
from olmes_monitor.scoring.score import Scorer

CPU = torch.device("cpu")


def only(place) -> Checkpoint:
    (found,) = find_checkpoints([place], axis="steps")
    return found


def rewrite(folder, change) -> None:
    """Change the state dict of a transformers folder."""
    state = load_file(folder / "model.safetensors")
    state = {name: tensor.clone() for name, tensor in state.items()}
    change(state)
    save_file(state, folder / "model.safetensors", {"format": "pt"})


def test_weights_and_logits_are_the_saved_models(tmp_path):
    model = open_model(only(save_folder(tmp_path / "step1", seed=1)), device=CPU)
    saved = make_llama(seed=1).eval()
    ids = torch.arange(40)[None]
    assert same_weights(model, saved)
    assert torch.equal(model(ids).logits, saved(ids).logits)
    assert not model.training


def test_another_checkpoint_goes_into_the_same_model(tmp_path):
    model = open_model(only(save_folder(tmp_path / "step1", seed=1)), device=CPU)
    parameters = [id(p) for p in model.parameters()]
    other = only(save_folder(tmp_path / "step2", seed=2))
    load_state(model, read_state(other), other)
    assert same_weights(model, make_llama(seed=2))
    assert [id(p) for p in model.parameters()] == parameters


@pytest.mark.parametrize(
    "prefix",
    [
        "module.",
        "_orig_mod.",
        "model.",
        "module._orig_mod.model.",
        "model._orig_mod.module.",
        "_orig_mod.module.",
        "lm.",
        "_forward_module.model._orig_mod.",
    ],
)
def test_prefixes_are_stripped_in_any_order_and_a_llamas_own_is_kept(tmp_path, prefix):
    state = {prefix + name: tensor for name, tensor in make_llama(seed=1).state_dict().items()}
    assert any(name.startswith(prefix + "model.") for name in state)
    torch.save(state, tmp_path / "step1.pt")
    make_llama().config.save_pretrained(tmp_path)
    assert same_weights(open_model(only(tmp_path / "step1.pt"), device=CPU), make_llama(seed=1))


def test_wrappers_inside_names_are_taken_out(tmp_path):
    state = {
        re.sub(
            r"layers\.(\d+)\.", r"layers.\1._checkpoint_wrapped_module._orig_mod.", "_fsdp_wrapped_module." + name
        ): t
        for name, t in make_llama(seed=1).state_dict().items()
    }
    torch.save(state, tmp_path / "step1.pt")
    make_llama().config.save_pretrained(tmp_path)
    assert same_weights(open_model(only(tmp_path / "step1.pt"), device=CPU), make_llama(seed=1))


def drop(name):
    return lambda state: state.pop(name)


def rename(state):
    state["model.layers.1.mlp.up_proj.weights"] = state.pop("model.layers.1.mlp.up_proj.weight")


def stray_head(state):
    state["score.weight"] = torch.ones(2, 32)


def empty_shard(state):
    state["model.norm.weight"] = torch.empty(0)


def integers(state):
    state["model.norm.weight"] = torch.ones(32, dtype=torch.int8)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (rename, "1 missing: model.layers.1.mlp.up_proj.weight; 1 unexpected: model.layers.1.mlp.up_proj.weights"),
        (drop("lm_head.weight"), "1 missing: lm_head.weight"),
        (drop("model.layers.0.input_layernorm.weight"), "1 missing: model.layers.0.input_layernorm.weight"),
        (stray_head, "1 unexpected: score.weight"),
        (empty_shard, "model.norm.weight is 0 and not 32, an empty shape is a rank's part"),
        (integers, "model.norm.weight is torch.int8 and not torch.float32"),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_it_and_the_model_keeps_its_weights(tmp_path, change, named):
    model = open_model(only(save_folder(tmp_path / "step1", seed=1)), device=CPU)
    folder = save_folder(tmp_path / "step2", seed=2)
    rewrite(folder, change)
    damaged = only(folder)
    assert damaged.problem is None  # a whole file, of the wrong tensors
    with pytest.raises(CheckpointError) as caught:
        load_state(model, read_state(damaged), damaged)
    assert named in str(caught.value)
    assert str(folder) in str(caught.value)
    assert same_weights(model, make_llama(seed=1))
    with pytest.raises(CheckpointError, match=re.escape(named)):
        open_model(damaged, device=CPU)


@pytest.mark.parametrize("config", [{"hidden_size": 64}, {"num_hidden_layers": 3}, {"num_hidden_layers": 1}])
def test_a_wrong_architecture_is_an_error(tmp_path, config):
    folder = save_folder(tmp_path / "step1")
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**said, **config}))
    with pytest.raises(CheckpointError, match=r"does not fit the model: [0-9]+ (missing|unexpected|of another shape)"):
        open_model(only(folder), device=CPU)


def test_another_class_of_model_is_an_error(tmp_path):
    folder = save_folder(tmp_path / "step1")
    said = json.loads((folder / "config.json").read_text())
    gpt2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 400}
    (folder / "config.json").write_text(json.dumps(gpt2))
    with pytest.raises(CheckpointError, match="does not fit"):
        open_model(only(folder), device=CPU)
    (folder / "config.json").write_text(json.dumps({**said, "model_type": "nothing_known"}))
    with pytest.raises(CheckpointError, match="makes no causal language model"):
        open_model(only(folder), device=CPU)


def test_a_head_that_was_not_saved_is_tied_if_the_config_says_so(tmp_path):
    folder = save_folder(tmp_path / "step1", seed=1, tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    model = open_model(only(folder), device=CPU)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert same_weights(model, make_llama(seed=1, tie_word_embeddings=True))
    # And stays so when others' weights go in; a copy under the head's name is as good.
    other = only(save_folder(tmp_path / "step2", seed=2, tie_word_embeddings=True))
    state = read_state(other)
    state["lm_head.weight"] = state.pop("model.embed_tokens.weight")
    load_state(model, state, other)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert same_weights(model, make_llama(seed=2, tie_word_embeddings=True))


def test_tied_weights_saved_with_different_values_are_kept_apart_with_a_warning(tmp_path, caplog):
    folder = save_folder(tmp_path / "step1", seed=1, tie_word_embeddings=True)
    equal, unequal = only(folder), torch.full((400, 32), 0.25)
    unequal_folder = save_folder(tmp_path / "step2", seed=1, tie_word_embeddings=True)
    rewrite(unequal_folder, lambda state: state.update({"lm_head.weight": unequal}))
    model = open_model(equal, device=CPU)
    state = read_state(equal)
    with caplog.at_level(logging.WARNING):
        load_state(model, {**state, "lm_head.weight": state["model.embed_tokens.weight"].clone()}, equal)
        assert not caplog.records
        load_state(model, {**state, "lm_head.weight": unequal}, equal)
    assert "saved with different values" in caplog.text
    assert torch.equal(model.lm_head.weight, unequal)
    assert torch.equal(model.model.embed_tokens.weight, state["model.embed_tokens.weight"])
    opened = open_model(only(unequal_folder), device=CPU)
    assert torch.equal(opened.lm_head.weight, unequal)
    for untied in (model, opened):
        # The next one may have no head: it is tied again.
        load_state(untied, read_state(equal), equal)
        assert untied.lm_head.weight is untied.model.embed_tokens.weight
        assert same_weights(untied, make_llama(seed=1, tie_word_embeddings=True))


class WithBuffer(nn.Module):
    """A language model of its own kind, with a buffer that is saved and one that is not."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(400, 8), nn.Linear(8, 400)
        self.register_buffer("scale", torch.full((8,), 2.0))
        self.register_buffer("table", torch.arange(3.0), persistent=False)

    def forward(self, ids):
        return self.head(self.embed(ids) * self.scale)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.student, self.teacher = WithBuffer(), WithBuffer()

    def forward(self, ids):
        return self.student(ids)


def test_a_factory_makes_the_model_and_its_buffers_are_loaded_too(tmp_path):
    trained = WithBuffer()
    trained.scale.fill_(7.0)
    torch.save({"model": {"net." + k: v for k, v in trained.state_dict().items()}, "step": 3}, tmp_path / "step3.pt")
    model = open_model(only(tmp_path / "step3.pt"), model_factory="test_load:WithBuffer", device=CPU)
    assert same_weights(model, trained)
    state = trained.state_dict()
    del state["scale"]
    torch.save(state, tmp_path / "step3.pt")
    with pytest.raises(CheckpointError, match="1 missing: scale"):
        open_model(only(tmp_path / "step3.pt"), model_factory=WithBuffer, device=CPU)
    for wrong in ("test_load", "test_load:Nothing", "no_such_module:f", "test_load:rename"):
        with pytest.raises((SetupError, TypeError)):
            open_model(only(tmp_path / "step3.pt"), model_factory=wrong, device=CPU)


def test_two_whole_models_in_one_file_are_not_chosen_between(tmp_path):
    pair = Pair()
    torch.save(pair.state_dict(), tmp_path / "step3.pt")
    with pytest.raises(CheckpointError, match=r"more than once, under 'student\.' and 'teacher\.'"):
        open_model(only(tmp_path / "step3.pt"), model_factory=WithBuffer, device=CPU)
    assert same_weights(open_model(only(tmp_path / "step3.pt"), model_factory=Pair, device=CPU), pair)


def test_dtype_is_as_saved_unless_asked(tmp_path):
    folder = tmp_path / "step1"
    make_llama(seed=1).to(torch.bfloat16).save_pretrained(folder)
    # What the config says of it is not what counts.
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**said, "dtype": "float32"}))
    model = open_model(only(folder), device=CPU)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert same_weights(model, make_llama(seed=1).to(torch.bfloat16))
    wide = open_model(only(folder), dtype="float32", device=CPU)
    assert same_weights(wide, make_llama(seed=1).to(torch.bfloat16).float())
    other = only(save_folder(tmp_path / "step2", seed=2))
    load_state(wide, read_state(other), other)
    assert {p.dtype for p in wide.parameters()} == {torch.float32}
    load_state(model, read_state(other), other)
    assert same_weights(model, make_llama(seed=2))
    with pytest.raises(SetupError, match="no dtype"):
        open_model(other, dtype="int8", device=CPU)


def test_experts_saved_one_by_one_are_loaded_as_transformers_does(tmp_path):
    from transformers import OlmoeConfig, OlmoeForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = OlmoeConfig(vocab_size=400, num_experts=4, num_experts_per_tok=2, eos_token_id=1, pad_token_id=0, **sizes)
    models = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        models.append(OlmoeForCausalLM(config))
        models[-1].save_pretrained(tmp_path / f"step{seed}")
    saved = load_file(tmp_path / "step1" / "model.safetensors")
    assert set(saved) != set(models[0].state_dict())  # names on disk are others
    first, second = find_checkpoints([tmp_path], axis="steps")
    model = open_model(first, device=CPU)
    assert same_weights(model, models[0])
    load_state(model, read_state(second), second)
    assert same_weights(model, models[1])
    state = read_state(first)
    del state["model.layers.1.mlp.experts.2.gate_proj.weight"]
    with pytest.raises(CheckpointError, match="does not fit"):
        load_state(model, state, first)
    assert same_weights(model, models[1])


def test_names_and_masks_of_old_versions_are_known(tmp_path):
    import transformers

    torch.manual_seed(1)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=400))
    model.config.save_pretrained(tmp_path / "step1")
    # The body alone, without its prefix, and the causal masks, as GPT-2 was published; the head is tied.
    state = {name.removeprefix("transformer."): t for name, t in model.state_dict().items() if name != "lm_head.weight"}
    state |= {f"h.{i}.attn.bias": torch.ones(1, 1, 8, 8).tril().bool() for i in range(2)}
    torch.save(state, tmp_path / "step1" / "pytorch_model.bin")
    if transformers.__version__.startswith(
        "5.0."
    ):  # it cannot be asked for its old names: refused, and nothing half loaded
        with pytest.raises(CheckpointError, match="28 missing"):
            open_model(only(tmp_path / "step1"), device=CPU)
        return
    assert same_weights(open_model(only(tmp_path / "step1"), device=CPU), model)
    state["h.1.attn.c_attn.bias"] = state["h.1.attn.c_attn.bias"].to(torch.int8)
    torch.save(state, tmp_path / "step1" / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="does not fit"):
        open_model(only(tmp_path / "step1"), device=CPU)


class Payload:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_pickled_code_is_not_run_by_listing_or_loading_unless_allowed(tmp_path):
    trace = tmp_path / "trace"
    path = save_ckpt(tmp_path / "epoch=0-step=2.ckpt", hyper_parameters={"x": Payload(trace)})
    save_folder(tmp_path / "config")
    (found,) = find_checkpoints([path], axis="steps")
    assert (found.step, found.problem) == (2, None)  # its name tells the step
    with pytest.raises(CheckpointError, match=r"holds an object of (io|_io)\.open.*--allow-pickle"):
        open_model(found, config=tmp_path / "config", device=CPU)
    unnamed = path.rename(tmp_path / "last.ckpt")
    assert "--allow-pickle" in only(unnamed).problem
    assert not trace.exists()
    (dated,) = find_checkpoints([unnamed], axis="steps", allow_pickle=True)
    assert (dated.step, dated.problem) == (2, None)
    trace.unlink()
    model = open_model(dated, config=tmp_path / "config", device=CPU, allow_pickle=True)
    assert trace.exists()
    assert same_weights(model, make_llama())


def test_a_pickled_index_of_shards_runs_no_code(tmp_path):
    folder, trace = tmp_path / "step3", tmp_path / "trace"
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle.dumps(Payload(trace)))
    found = only(folder)
    assert found.kind == "dcp"
    assert re.search(r"\.metadata holds (io|_io)\.open, which could run code", found.problem)
    assert not found.may_mend
    assert not trace.exists()


def test_a_whole_pickled_module_needs_leave(tmp_path):
    torch.save(make_llama(seed=1), tmp_path / "step1.pt")
    make_llama().config.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"LlamaForCausalLM.*--allow-pickle"):
        open_model(only(tmp_path / "step1.pt"), device=CPU)
    assert same_weights(open_model(only(tmp_path / "step1.pt"), device=CPU, allow_pickle=True), make_llama(seed=1))


def test_a_file_of_tensors_needs_a_config_and_finds_one_beside_it(tmp_path):
    torch.save(make_llama(seed=1).state_dict(), tmp_path / "step1.pt")
    found = only(tmp_path / "step1.pt")
    with pytest.raises(CheckpointError, match=r"--config.*--model-factory"):
        open_model(found, device=CPU)
    config = save_folder(tmp_path / "elsewhere") / "config.json"
    for given in (config, config.parent, str(config)):
        assert same_weights(open_model(found, config=given, device=CPU), make_llama(seed=1))
    make_llama().config.save_pretrained(tmp_path)
    assert same_weights(open_model(found, device=CPU), make_llama(seed=1))


def test_remote_code_runs_only_on_request(tmp_path):
    folder = save_folder(tmp_path / "step1")
    said = json.loads((folder / "config.json").read_text())
    said |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.MineLM"}}
    (folder / "config.json").write_text(json.dumps(said))
    trace = tmp_path / "trace"
    code = "from transformers import LlamaConfig, LlamaForCausalLM\nopen({!r}, 'w')\n"
    code += (
        "class Mine(LlamaConfig):\n    model_type = 'mine'\nclass MineLM(LlamaForCausalLM):\n    config_class = Mine\n"
    )
    (folder / "mine.py").write_text(code.format(str(trace)))
    with pytest.raises(CheckpointError, match="--trust-remote-code"):
        open_model(only(folder), device=CPU)
    assert not trace.exists()
    assert same_weights(open_model(only(folder), device=CPU, trust_remote_code=True), make_llama())
    assert trace.exists()


def test_the_tokenizer_is_the_checkpoints_its_parents_or_the_one_named(tmp_path, tokenizer):
    folder = save_folder(tmp_path / "run" / "step1")
    file = save_ckpt(tmp_path / "run" / "checkpoints" / "epoch=0-step=2.ckpt")
    found, lightning = only(folder), only(file)
    for checkpoint in (found, lightning):
        with pytest.raises(CheckpointError, match="--tokenizer"):
            find_tokenizer(checkpoint, None)
    tokenizer.save_pretrained(tmp_path / "run")
    for checkpoint in (found, lightning):
        assert find_tokenizer(checkpoint, None).get_vocab() == tokenizer.get_vocab()
    tokenizer.save_pretrained(tmp_path / "named")
    (tmp_path / "run" / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no usable tokenizer"):
        find_tokenizer(found, None)
    assert find_tokenizer(found, str(tmp_path / "named")).get_vocab() == tokenizer.get_vocab()
    tokenizer.save_pretrained(folder)
    assert find_tokenizer(found, None).get_vocab() == tokenizer.get_vocab()


def test_a_tokenizer_with_ids_beyond_the_embedding_is_refused(tmp_path, tokenizer, suite):
    model = open_model(only(save_folder(tmp_path / "step1", vocabulary=200)), device=CPU)
    with pytest.raises(SetupError, match=r"embedding|vocabulary"):
        Scorer(model, tokenizer, suite)
