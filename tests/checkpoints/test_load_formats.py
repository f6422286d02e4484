"""What real trainers, real ranks and real peft save is found, dated and loaded, tensor for tensor."""

import shutil
import sys
from pathlib import Path

import lightning.pytorch as pl
import peft
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from made import same_weights, save_folder
from parts import make_llama
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments, default_data_collator

from olmes_monitor import OLMESCallback
from olmes_monitor.checkpoints.checkpoint import CheckpointError
from olmes_monitor.checkpoints.complete import why_incomplete
from olmes_monitor.checkpoints.find import find_checkpoints
from olmes_monitor.checkpoints.load import find_tokenizer, load_state, open_model, read_state

sys.path.insert(0, str(Path(__file__).parents[1] / "scoring"))
sys.path.insert(0, str(Path(__file__).parent))

from ranks import run_ranks
from shards_on_two_ranks import fit_lightning, save_dcp

CPU = torch.device("cpu")
ROWS = [torch.randint(0, 300, (10,), generator=torch.Generator().manual_seed(i)) for i in range(16)]
BATCH = 4 * 10


@pytest.mark.parametrize("counted", ["callback", "trainer", "nothing"])
def test_transformers_own_trainer(counted, tmp_path, tokenizer, suite):
    arguments = TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=4, max_steps=4, save_steps=2, use_cpu=True,
        report_to="none", disable_tqdm=True, include_num_input_tokens_seen=counted == "trainer",
    )  # fmt: skip
    rows = [{"input_ids": row, "labels": row} for row in ROWS]
    trainer = Trainer(make_llama(), arguments, default_data_collator, rows, processing_class=tokenizer)
    if counted == "callback":
        trainer.add_callback(OLMESCallback(every="1B", suite=suite, console=False, at_start=False, at_end=False))
    trainer.train()
    trainer.save_model()  # the final model, beside its checkpoints
    found = find_checkpoints([tmp_path])
    assert [(c.name, c.step) for c in found] == [("checkpoint-2", 2), ("checkpoint-4", 4)]
    if counted == "nothing":
        assert [c.tokens for c in found] == [None, None]
        found = find_checkpoints([tmp_path], tokens_per_step=BATCH)
    assert [c.tokens for c in found] == [2 * BATCH, 4 * BATCH]
    by = {"callback": "callback state", "trainer": "trainer state", "nothing": "tokens per step"}
    assert {c.dated_by for c in found} == {by[counted]}
    assert same_weights(open_model(found[1], device=CPU), trainer.model.eval())
    assert find_tokenizer(found[1], None).get_vocab() == tokenizer.get_vocab()


class Module(pl.LightningModule):
    """A LightningModule whose language model has a name of its own, and a config among the hyper_parameters."""

    def __init__(self, config=None):
        super().__init__()
        self.save_hyperparameters()
        self.backbone = make_llama(seed=1)

    def training_step(self, batch, _):
        return self.backbone(input_ids=batch, labels=batch).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


@pytest.mark.parametrize("save_last", [True, "link"])
@pytest.mark.parametrize("compiled", [False, True])
def test_lightnings_own_trainer(save_last, compiled, tmp_path, tokenizer, suite):
    saver = ModelCheckpoint(tmp_path, every_n_train_steps=2, save_top_k=-1, save_last=save_last)
    trainer = pl.Trainer(
        max_steps=4, accelerator="cpu", logger=False, callbacks=[saver], default_root_dir=tmp_path,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    quiet = {"console": False, "at_start": False, "at_end": False}
    trainer.callbacks.append(OLMESCallback(every="1B", suite=suite, tokenizer=tokenizer, **quiet))
    module = Module(config=make_llama().config.to_dict())
    if compiled:
        module.backbone.model.layers[0] = torch.compile(module.backbone.model.layers[0], backend="eager")
    trainer.fit(module, DataLoader(ROWS, batch_size=4))
    assert {path.name for path in tmp_path.glob("*.ckpt")} == {
        "epoch=0-step=2.ckpt",
        "epoch=0-step=4.ckpt",
        "last.ckpt",
    }
    found = find_checkpoints([tmp_path])
    assert [(c.name, c.step, c.tokens, c.dated_by) for c in found] == [
        ("epoch=0-step=2.ckpt", 2, 2 * BATCH, "callback state"),
        ("epoch=0-step=4.ckpt", 4, 4 * BATCH, "callback state"),
    ]
    trained = {name.replace("_orig_mod.", ""): value for name, value in module.backbone.state_dict().items()}
    loaded = open_model(found[1], device=CPU).state_dict()
    assert loaded.keys() == trained.keys()
    assert all(torch.equal(loaded[name], trained[name]) for name in loaded)


@pytest.mark.parametrize("level", ["flat", "model", "app"])
def test_shards_of_two_ranks_are_read_by_one_process(level, tmp_path):
    folder = tmp_path / "step3"
    run_ranks(save_dcp, 2, str(folder), level)
    whole = torch.load(tmp_path / "whole.pt")
    (tmp_path / "whole.pt").unlink()
    (found,) = find_checkpoints([tmp_path], tokens_per_step=100)
    assert (found.kind, found.step, found.tokens, found.problem) == ("dcp", 3, 300, None)
    state = read_state(found)
    assert state.keys() == whole.keys()  # and nothing of the optimizer
    assert all(torch.equal(state[name], whole[name]) for name in whole)
    config = save_folder(tmp_path / "other" / "config")
    model = open_model(found, config=config, device=CPU)
    assert all(torch.equal(value, whole[name]) for name, value in model.state_dict().items())
    shard = sorted(folder.glob("*.distcp"))[1]
    shard.write_bytes(shard.read_bytes()[:-100])
    assert "the index says" in why_incomplete(found)[0]
    shard.unlink()
    assert why_incomplete(found) == (f"its shard {shard.name} is missing", True)
    (folder / ".metadata").unlink()
    assert why_incomplete(found) == ("its index .metadata is missing (it is written last)", True)


@pytest.mark.slow  # two processes of its own: Lightning ends their process group
def test_lightnings_sharded_folders(tmp_path):
    folder = tmp_path / "ckpts"
    run_ranks(fit_lightning, 2, str(folder), fresh=True)
    whole = torch.load(folder / "whole.pt")
    (folder / "whole.pt").unlink()
    first, second = find_checkpoints([folder], tokens_per_step=72)
    assert [(c.kind, c.step, c.tokens) for c in (first, second)] == [
        ("lightning_sharded", 1, 72),
        ("lightning_sharded", 2, 144),
    ]
    config = save_folder(tmp_path / "config")
    model = open_model(first, config=config, device=CPU)
    load_state(model, read_state(second), second)
    assert all(torch.equal(value, whole[name]) for name, value in model.state_dict().items())
    # Without its last file it is half-written; the step is in its name.
    (Path(second.path) / "meta.pt").unlink()
    found = find_checkpoints([folder], tokens_per_step=72)[1]
    assert (found.step, found.problem, found.may_mend) == (2, "its meta.pt is missing", True)


def save_adapter(folder: Path, base: Path, seed: int, **settings) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_pretrained(base)
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], **settings))
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.normal_(0, 0.2)
    model.save_pretrained(folder)
    return model.eval()


@pytest.mark.parametrize("settings", [{}, {"modules_to_save": ["lm_head"]}, {"use_dora": True}])
def test_adapters_are_scored_on_their_base(settings, tmp_path):
    base = save_folder(tmp_path / "base", seed=3)
    trained = [save_adapter(tmp_path / "run" / f"checkpoint-{step}", base, step, **settings) for step in (5, 10)]
    first, second = find_checkpoints([tmp_path / "run"], tokens_per_step=100)
    assert [(c.kind, c.tokens, c.problem) for c in (first, second)] == [("peft", 500, None), ("peft", 1000, None)]
    ids = torch.arange(30)[None]
    model = open_model(first, device=CPU)
    assert torch.equal(model(ids).logits, trained[0](ids).logits)
    load_state(model, read_state(second), second)
    assert torch.equal(model(ids).logits, trained[1](ids).logits)
    assert not torch.equal(trained[1](ids).logits, make_llama(seed=3).eval()(ids).logits)
    state = read_state(first)
    lost = next(name for name in state if name.endswith("v_proj.lora_B.weight"))
    del state[lost]
    with pytest.raises(CheckpointError, match="1 missing"):
        load_state(model, state, first)
    assert torch.equal(model(ids).logits, trained[1](ids).logits)


def test_an_adapter_without_its_base_is_an_error_and_another_base_can_be_named(tmp_path):
    base = save_folder(tmp_path / "base", seed=3)
    trained = save_adapter(tmp_path / "checkpoint-5", base, 5)
    (found,) = find_checkpoints([tmp_path / "checkpoint-5"], axis="steps")
    shutil.move(base, tmp_path / "moved")
    with pytest.raises(CheckpointError, match=r"adapter of .*base.*--base"):
        open_model(found, device=CPU)
    ids = torch.arange(30)[None]
    model = open_model(found, base=str(tmp_path / "moved"), device=CPU)
    assert torch.equal(model(ids).logits, trained(ids).logits)
    # A base of another size has no place for the adapter.
    with pytest.raises(CheckpointError, match="of another shape"):
        open_model(found, base=str(save_folder(tmp_path / "wide", hidden_size=64)), device=CPU)
    named = (tmp_path / "checkpoint-5" / "adapter_config.json").read_text()
    (tmp_path / "checkpoint-5" / "adapter_config.json").write_text(named.replace(f'"{base}"', "null"))
    with pytest.raises(CheckpointError, match=r"does not say of which model.*--base"):
        open_model(found, device=CPU)


def test_learned_prompts_are_refused(tmp_path):
    base = save_folder(tmp_path / "base", seed=3)
    model = AutoModelForCausalLM.from_pretrained(base)
    prompts = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    peft.get_peft_model(model, prompts).save_pretrained(tmp_path / "checkpoint-5")
    (found,) = find_checkpoints([tmp_path / "checkpoint-5"], axis="steps")
    with pytest.raises(CheckpointError, match="learned prompt"):
        open_model(found, base=str(base), device=CPU)
