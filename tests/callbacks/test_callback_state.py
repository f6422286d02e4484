"""What a checkpoint holds of a callback, and what is done where it holds nothing: in both real trainers."""

import json

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from parts import make_llama, make_task, make_tokenizer
from ranks import run_ranks
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments, default_data_collator

from olmes_monitor import Monitor, OLMESCallback, Suite, load_run
from olmes_monitor.errors import SetupError

SUITE = Suite("tiny", [make_task("boxes", 2)])
OTHER = Suite("other", [make_task("balls", 2, seed=1)])
TOKENIZER = make_tokenizer(Suite("both", [make_task("boxes", 2), make_task("balls", 2, seed=1)]))
BATCH = 4 * 10
IDS = torch.randint(0, 300, (32, 10), generator=torch.Generator().manual_seed(0))
ROWS = [{"input_ids": row, "labels": row} for row in IDS]


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model, self.tokenizer = make_llama(num_hidden_layers=1), TOKENIZER

    def training_step(self, batch, _):
        return self.model(**batch).loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def lightning_trainer(folder, *callbacks, steps=4, **settings):
    quiet = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "accelerator": "cpu",
    }
    trainer = pl.Trainer(max_steps=steps, default_root_dir=folder, **{"logger": False, **quiet, **settings})
    trainer.callbacks.extend(callbacks)
    return trainer


def fit(folder, *callbacks, steps=4, **settings):
    """Train to `steps`, from the checkpoint that an earlier call left."""
    trainer, path = lightning_trainer(folder, *callbacks, steps=steps, **settings), folder / "last.ckpt"
    trainer.fit(Module(), DataLoader(ROWS, batch_size=4), ckpt_path=path if path.exists() else None)
    trainer.save_checkpoint(path)


def transformers_trainer(folder, *callbacks, steps=4, tokenizer=TOKENIZER, **settings):
    args = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=4, max_steps=steps, save_strategy="steps", save_steps=2,
        use_cpu=True, report_to="none", disable_tqdm=True, logging_steps=100, **settings,
    )  # fmt: skip
    model = make_llama(num_hidden_layers=1)
    trainer = Trainer(model, args, default_data_collator, ROWS, processing_class=tokenizer)
    for callback in callbacks:
        trainer.add_callback(callback)
    return trainer


def train(folder, *callbacks, steps=4, **settings):
    resume = any(folder.glob("checkpoint-*"))
    transformers_trainer(folder, *callbacks, steps=steps, **settings).train(resume_from_checkpoint=resume)


BOTH = pytest.mark.parametrize("run", [fit, train])


def callback(**settings):
    return OLMESCallback(**{"every": 2 * BATCH, "suite": SUITE, "console": False, **settings})


def points(folder, suite=SUITE):
    return [(e.point.tokens, e.point.step) for e in load_run(folder, suite.fingerprint).evaluations]


def every_second(steps):
    return [(step * BATCH, step) for step in range(0, steps + 1, 2)]


def forget(folder):
    """Take the callbacks' states out of all checkpoints, as if they had been saved without."""
    for path in folder.glob("checkpoint-*/trainer_state.json"):
        state = json.loads(path.read_text())
        state["stateful_callbacks"].pop("OLMESCallback")
        path.write_text(json.dumps(state))
    for path in folder.glob("*.ckpt"):
        saved = torch.load(path, weights_only=False)
        saved["callbacks"] = {}
        torch.save(saved, path)


@BOTH
def test_a_callback_whose_state_was_not_saved_finds_its_place_in_the_record(run, tmp_path, caplog):
    run(tmp_path, callback())
    forget(tmp_path)
    run(tmp_path, callback(), steps=8)
    assert points(tmp_path) == every_second(8)
    assert "about" not in caplog.text  # the fourth step was evaluated: its tokens are known


@BOTH
def test_between_two_points_of_the_record_the_tokens_are_estimated_aloud(run, tmp_path, caplog):
    run(tmp_path, callback(every=3 * BATCH, at_end=False))  # evaluated at 0 and 3, saved at 4
    forget(tmp_path)
    run(tmp_path, callback(every=3 * BATCH), steps=8)
    assert points(tmp_path) == [(0, 0), (3 * BATCH, 3), (6 * BATCH, 6), (8 * BATCH, 8)]
    assert "goes on at step 4 without a saved token count; from the record it is about 160 tokens" in caplog.text
    noted = [e.settings.get("tokens") for e in load_run(tmp_path).evaluations]
    assert noted == [None, None, *["estimated from the record"] * 2]


@BOTH
def test_another_suite_goes_on_with_the_tokens_of_the_one_before(run, tmp_path):
    run(tmp_path / "run", callback(out=tmp_path / "a"))
    run(tmp_path / "run", callback(out=tmp_path / "b", suite=OTHER), steps=8)
    assert points(tmp_path / "b", OTHER) == [(4 * BATCH, 4), (6 * BATCH, 6), (8 * BATCH, 8)]


@BOTH
def test_two_monitors_in_one_trainer_keep_apart(run, tmp_path):
    rows = []

    def both():
        own = {"every": 3 * BATCH, "suite": OTHER, "name": "other", "at_end": False, "log": rows.append}
        return callback(at_end=False, log=rows.append), callback(**own)

    run(tmp_path, *both())
    run(tmp_path, *both(), steps=8)
    assert points(tmp_path) == every_second(8)
    assert points(tmp_path, OTHER) == [(0, 0), (3 * BATCH, 3), (6 * BATCH, 6)]
    for suite in (SUITE, OTHER):
        run_ = load_run(tmp_path, suite.fingerprint)
        assert run_.superseded == []
    first = [row for row in rows if "olmes/cf/boxes" in row]
    second = [row for row in rows if "olmes/other/cf/balls" in row]
    assert len(first) + len(second) == len(rows) == 5 + 3
    assert not {name for row in first for name in row if "other" in name}
    axes = {"olmes/tokens", "olmes/step"}
    assert {name for row in second for name in row if not name.startswith("olmes/other/")} == axes


@BOTH
def test_namesakes_and_one_callback_twice_are_refused_before_the_first_step(run, tmp_path):
    once = callback()
    for pair in [(callback(), callback(suite=OTHER)), (once, once), (callback(name="a"), callback(name="a"))]:
        with pytest.raises(SetupError, match=r"2 OLMESCallbacks in one trainer .*OLMESCallback\(name="):
            run(tmp_path, *pair)
    assert not (tmp_path / "olmes").exists() or points(tmp_path) == [(0, 0)] * (run is train)


@pytest.mark.parametrize("name", ["cf", "a b", "1x", "olmes/x", "tokens"])
def test_a_name_that_would_hide_a_metric_is_refused(name, tmp_path):
    with pytest.raises(SetupError, match="name takes letters"):
        train(tmp_path, callback(name=name))


@pytest.mark.parametrize("restore", [False, True])
def test_transformers_restores_the_state_and_keeps_the_users_objects(restore, tmp_path):
    """restore_callback_states_from_checkpoint makes every stateful callback anew from JSON, which holds no tokenizer."""
    rows, models = [], []

    def made():
        return callback(tokenizer=TOKENIZER, log=rows.append, model=models[-1], name="mine")

    for steps in (4, 8):
        trainer = transformers_trainer(
            tmp_path, steps=steps, tokenizer=None, restore_callback_states_from_checkpoint=restore
        )
        models.append(trainer.model)
        user = made()
        trainer.add_callback(user)
        trainer.train(resume_from_checkpoint=steps == 8)
        assert user.monitor.tokens == steps * BATCH  # the handle in the user's hand is the callback that ran
        assert user.monitor.scorer.model is trainer.model
    assert points(tmp_path) == every_second(8)
    assert [row["olmes/step"] for row in rows] == [0, 2, 4, 6, 8]
    saved = json.loads((tmp_path / "checkpoint-8" / "trainer_state.json").read_text())["stateful_callbacks"]
    assert [entry["attributes"]["restored"]["tokens"] for entry in saved["OLMESCallback"]] == [8 * BATCH]


@pytest.mark.parametrize("restore", [False, True])
def test_transformers_gives_each_of_two_callbacks_its_own_state(restore, tmp_path):
    def both():
        return callback(save_checkpoint="best"), callback(every=3 * BATCH, suite=OTHER, name="other", at_end=False)

    train(tmp_path, *both())
    pair = both()
    train(tmp_path, *pair, steps=6, restore_callback_states_from_checkpoint=restore)
    assert [c.monitor.schedule.every for c in pair] == [2 * BATCH, 3 * BATCH]
    assert points(tmp_path) == every_second(6)
    assert points(tmp_path, OTHER) == [(0, 0), (3 * BATCH, 3), (6 * BATCH, 6)]
    assert pair[0].saving.best is not None


def test_transformers_train_twice_begins_a_curve_of_its_own(tmp_path):
    trainer = transformers_trainer(tmp_path, callback())
    trainer.train()
    trainer.train()
    run = load_run(tmp_path)
    assert points(tmp_path) == every_second(4)
    assert [e.attempt for e in run.evaluations] == [2, 2, 2]
    assert {e.attempt for e in run.superseded} == {1}


def test_lightning_fit_twice_goes_on(tmp_path):
    user = callback()
    trainer, module = lightning_trainer(tmp_path, user), Module()
    trainer.fit(module, DataLoader(ROWS, batch_size=4))
    trainer.fit_loop.epoch_loop.max_steps = 8
    trainer.fit(module, DataLoader(ROWS, batch_size=4))
    assert points(tmp_path) == every_second(8)


def test_lightning_keeps_one_curve_though_a_logger_gives_the_resumed_run_a_folder_of_its_own(tmp_path):
    for steps in (4, 8):
        fit(tmp_path, callback(), steps=steps, logger=CSVLogger(tmp_path, name="csv"))
    assert (tmp_path / "csv" / "version_1").exists()
    assert points(tmp_path / "csv" / "version_0") == every_second(8)


def test_lightning_checkpoints_of_a_step_hold_what_was_counted_in_it(tmp_path):
    """ModelCheckpoint, made with the Trainer, stands before a callback that is appended."""
    saver = pl.callbacks.ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=2, save_top_k=-1)
    fit(tmp_path, callback(), enable_checkpointing=True, callbacks=[saver])
    saved = torch.load(tmp_path / "step=2.ckpt", weights_only=False)["callbacks"]["OLMESCallback[tiny]"]
    assert (saved["tokens"], saved["step"], saved["evaluated"]) == (2 * BATCH, 2, 2 * BATCH)


def half_on_a_rank(rank, folder):
    settings = {"every": 100, "suite": SUITE, "out": folder, "console": False}
    monitor = Monitor(make_llama(num_hidden_layers=1), TOKENIZER, **settings)
    monitor.start()
    for _ in range(3):
        monitor.step(tokens=40)
    return monitor.state_dict()


@pytest.mark.slow
def test_a_run_goes_on_with_another_world_size(tmp_path):
    states = run_ranks(half_on_a_rank, 2, tmp_path)
    assert states[0] == states[1]
    settings = {"every": 100, "suite": SUITE, "out": tmp_path, "console": False}
    monitor = Monitor(make_llama(num_hidden_layers=1), TOKENIZER, **settings)
    monitor.load_state_dict(states[0])
    with monitor:
        for _ in range(2):
            monitor.step(tokens=40)
    run = load_run(tmp_path)
    assert points(tmp_path) == [(0, 0), (160, 2), (240, 3), (320, 5)]
    assert [e.cost["ranks"] for e in run.evaluations] == [2, 2, 2, 1]
    assert run.superseded == []
