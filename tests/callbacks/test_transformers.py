"""OLMESCallback in the real transformers Trainer, a few steps each."""

import json
from types import SimpleNamespace

import pytest
import torch
import wandb
from parts import make_llama
from transformers import Trainer, TrainingArguments, default_data_collator
from wandb_file import axes, history, offline_run

from olmes_monitor import OLMESCallback, load_run
from olmes_monitor.callbacks.transformers import ranks_per_batch
from olmes_monitor.errors import SetupError

ROWS, LENGTH = 4, 10
BATCH = ROWS * LENGTH


def dataset(count=8 * ROWS):
    ids = torch.randint(0, 300, (count, LENGTH), generator=torch.Generator().manual_seed(0)).tolist()
    return [{"input_ids": row, "labels": row} for row in ids]


class Recording(Trainer):
    """Keeps every micro-batch's loss."""

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        self.losses = [*getattr(self, "losses", []), loss.item()]
        return loss


def make_trainer(folder, tokenizer=None, model=None, eval_dataset=None, **settings):
    quiet = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "use_cpu": True, "logging_steps": 100}
    arguments = {"per_device_train_batch_size": ROWS, "num_train_epochs": 1, "learning_rate": 0.01, "seed": 7}
    args = TrainingArguments(output_dir=str(folder), **{**quiet, **arguments, **settings})
    return Recording(
        model=model or make_llama(),
        args=args,
        train_dataset=dataset(),
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        data_collator=default_data_collator,  # the default one pads, and the tokenizer has no pad token
    )


def points(folder):
    return [(e.point.tokens, e.point.step) for e in load_run(folder).evaluations]


@pytest.fixture
def callback(suite):
    return OLMESCallback(every=3 * BATCH, suite=suite, console=False)


def test_three_lines_with_default_arguments_count_tokens_themselves(tokenizer, callback, tmp_path):
    trainer = make_trainer(tmp_path, tokenizer)
    assert str(trainer.args.include_num_input_tokens_seen) in ("no", "False", "IncludeTokens.NO")
    trainer.add_callback(callback)
    trainer.train()
    assert points(tmp_path) == [(0, 0), (3 * BATCH, 3), (6 * BATCH, 6), (8 * BATCH, 8)]
    assert trainer.state.num_input_tokens_seen == 0


def test_under_accumulation_each_optimizer_step_counts_once(tokenizer, suite, tmp_path):
    trainer = make_trainer(tmp_path, tokenizer, gradient_accumulation_steps=3)
    trainer.add_callback(OLMESCallback(every=BATCH, suite=suite, console=False))
    trainer.train()
    assert points(tmp_path) == [(0, 0), (3 * BATCH, 1), (6 * BATCH, 2), (8 * BATCH, 3)]


@pytest.mark.parametrize("bf16", [False, True])
def test_training_is_bit_equal_with_and_without(tokenizer, suite, tmp_path, bf16):
    runs = []
    for with_callback in (False, True):
        model = make_llama(attention_dropout=0.3)
        trainer = make_trainer(tmp_path / str(with_callback), tokenizer, model, bf16=bf16)
        if with_callback:
            trainer.add_callback(OLMESCallback(every=BATCH, suite=suite, console=False))
        trainer.train()
        runs.append((trainer.losses, [p.clone() for p in model.parameters()]))
    assert runs[0][0] == runs[1][0]
    assert all(torch.equal(a, b) for a, b in zip(runs[0][1], runs[1][1], strict=True))
    assert len(points(tmp_path / "True")) == 9


def test_the_trainers_own_evaluation_is_not_counted_as_training(tokenizer, callback, tmp_path):
    trainer = make_trainer(tmp_path, tokenizer, eval_dataset=dataset(8), eval_strategy="steps", eval_steps=2)
    trainer.add_callback(callback)
    trainer.train()
    assert points(tmp_path)[-1] == (8 * BATCH, 8)


def test_the_counting_hook_is_gone_after_training_and_train_can_run_twice(tokenizer, suite, tmp_path):
    trainer = make_trainer(tmp_path, tokenizer)
    trainer.add_callback(OLMESCallback(every=4 * BATCH, suite=suite, console=False))
    trainer.train()
    assert not trainer.model._forward_pre_hooks
    trainer.train()
    assert points(tmp_path) == [(0, 0), (4 * BATCH, 4), (8 * BATCH, 8)]


@pytest.mark.parametrize("restore", [False, True])
def test_a_resumed_run_goes_on_and_repeats_nothing(tokenizer, suite, tmp_path, restore):
    def train(steps, **settings):
        trainer = make_trainer(tmp_path, tokenizer, max_steps=steps, save_strategy="steps", save_steps=4, **settings)
        trainer.add_callback(OLMESCallback(every=2 * BATCH, suite=suite, console=False, at_end=False))
        trainer.train(resume_from_checkpoint=steps > 4)

    train(4)
    saved = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())
    (entry,) = saved["stateful_callbacks"]["OLMESCallback"]
    assert entry["attributes"]["restored"]["tokens"] == 4 * BATCH
    train(7, restore_callback_states_from_checkpoint=restore)
    run = load_run(tmp_path)
    assert points(tmp_path) == [(0, 0), (2 * BATCH, 2), (4 * BATCH, 4), (6 * BATCH, 6)]
    assert run.superseded == []


@pytest.mark.parametrize("tokens_per_step", [None, BATCH])
def test_a_checkpoint_from_before_the_callback_can_be_resumed(tokenizer, suite, tmp_path, caplog, tokens_per_step):
    make_trainer(tmp_path, tokenizer, max_steps=4, save_strategy="steps", save_steps=4).train()
    trainer = make_trainer(tmp_path, tokenizer, max_steps=8, save_strategy="steps", save_steps=4)
    settings = {"suite": suite, "console": False, "tokens_per_step": tokens_per_step}
    trainer.add_callback(OLMESCallback(every=2 * BATCH, **settings))
    trainer.train(resume_from_checkpoint=True)
    assert (tmp_path / "checkpoint-8").exists()
    if tokens_per_step is None:
        assert "4 optimizer steps were taken before this callback was added" in caplog.text
    else:
        assert points(tmp_path) == [(4 * BATCH, 4), (6 * BATCH, 6), (8 * BATCH, 8)]


def test_the_live_wandb_run_gets_one_row_an_evaluation_on_the_token_axis(tokenizer, callback, tmp_path):
    # Ours, because wandb reads WANDB_DIR once a process; the Trainer takes a run that is there and adds its "*" rule.
    with wandb.init(mode="offline", dir=str(tmp_path), project="test"):
        trainer = make_trainer(tmp_path, tokenizer, report_to="wandb", logging_steps=1)
        trainer.add_callback(callback)
        trainer.train()
    path = offline_run(tmp_path)
    rows = [row for row in history(path) if "olmes/tokens" in row]
    assert [row["olmes/tokens"] for row in rows] == [0, 3 * BATCH, 6 * BATCH, 8 * BATCH]
    rules = axes(path)
    assert rules["*"] == "train/global_step"
    own = {name for name in rows[0] if name.startswith("olmes/")}
    assert {rules[name] for name in own - {"olmes/tokens"}} == {"olmes/tokens"}
    assert len(own) > 10


def test_a_processor_lends_its_tokenizer(tokenizer, callback, tmp_path):
    trainer = make_trainer(tmp_path, None)
    trainer.callback_handler.processing_class = SimpleNamespace(tokenizer=tokenizer)
    trainer.add_callback(callback)
    trainer.train()
    assert len(points(tmp_path)) == 4


def test_with_report_to_none_no_run_is_started_and_the_files_are_there(tokenizer, callback, tmp_path):
    trainer = make_trainer(tmp_path, tokenizer)
    trainer.add_callback(callback)
    trainer.train()
    assert wandb.run is None
    assert (tmp_path / "olmes" / "evaluations.jsonl").exists()


def test_a_callable_gets_the_rows(tokenizer, suite, tmp_path):
    trainer = make_trainer(tmp_path, tokenizer)
    trainer.add_callback(OLMESCallback(every="1B", suite=suite, console=False, log=trainer.log))
    trainer.train()
    assert any("olmes/cf/boxes" in row for row in trainer.state.log_history)


def test_set_up_errors_come_before_the_first_step(tokenizer, suite, tmp_path):
    def refuses(words, tokenizer, model=None, **settings):
        trainer = make_trainer(tmp_path, tokenizer, model)
        trainer.add_callback(OLMESCallback(suite=suite, console=False, **settings))
        with pytest.raises(SetupError, match=words):
            trainer.train()
        assert not hasattr(trainer, "losses")

    refuses(r"no tokenizer.*processing_class.*OLMESCallback\(tokenizer=", None)
    refuses("embedding has 300 rows", tokenizer, make_llama(vocabulary=300))


def test_padding_counts_as_it_is_fed(tokenizer, suite, tmp_path):
    trainer = make_trainer(tmp_path, tokenizer, per_device_train_batch_size=2)
    rows = [{"input_ids": [1] * n, "attention_mask": [1] * n, "labels": [1] * n} for n in (10, 4, 9, 3)]
    trainer.train_dataset = rows
    trainer.args.train_sampling_strategy = "sequential"

    def collate(batch):
        longest = max(len(row["input_ids"]) for row in batch)
        return {
            name: torch.tensor([row[name] + [0] * (longest - len(row[name])) for row in batch]) for name in batch[0]
        }

    trainer.data_collator = collate
    trainer.add_callback(OLMESCallback(every="1B", suite=suite, console=False, at_start=False))
    trainer.train()
    assert points(tmp_path) == [(38, 2)]


def test_ranks_of_a_tensor_parallel_group_are_fed_one_batch():
    config = SimpleNamespace(tp_size=2, dp_shard_size=4)
    assert ranks_per_batch(SimpleNamespace(parallelism_config=config), make_llama()) == 2
    assert ranks_per_batch(SimpleNamespace(parallelism_config=None), make_llama()) == 1
    assert ranks_per_batch(SimpleNamespace(), SimpleNamespace(tp_size=4)) == 4


@pytest.mark.parametrize("bf16", [False, True])
def test_the_evaluation_runs_in_the_trainers_precision_on_the_packed_path(tokenizer, callback, tmp_path, bf16):
    """accelerate's autocast sits in the model's forward, around which the packed path goes."""
    trainer = make_trainer(tmp_path, tokenizer, bf16=bf16)
    seen = set()
    trainer.model.lm_head.register_forward_hook(lambda module, _, out: seen.add((module.training, out.dtype)))
    trainer.add_callback(callback)
    trainer.train()
    assert seen == {(mode, torch.bfloat16 if bf16 else torch.float32) for mode in (True, False)}
    assert load_run(tmp_path).evaluations[0].settings["path"] == "packed"
