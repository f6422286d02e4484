"""Trackers inside real trainers: Lightning's own loggers read back, W&B after a resume, verdicts live from a Monitor."""

import csv
import logging

import lightning.pytorch as pl
import pytest
import torch
import wandb
from fake_wandb import FakeRun
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger
from parts import make_llama
from synthetic import RISE, make_evaluation
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments, default_data_collator
from wandb_file import artifacts, axes, config, history, offline_run

from olmes_monitor import Monitor, OLMESCallback, load_run

ROWS, LENGTH = 4, 10
BATCH = ROWS * LENGTH


class Module(pl.LightningModule):
    def __init__(self, tokenizer):
        super().__init__()
        self.model, self.tokenizer = make_llama(), tokenizer

    def training_step(self, batch, _):
        loss = self.model(input_ids=batch, labels=batch).loss
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(folder, tokenizer, suite, loggers, steps=8, checkpoint=None, **settings):
    """Eight steps of BATCH tokens, an evaluation every three; returns the trainer."""
    ids = torch.randint(0, 300, (8 * ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
    trainer = pl.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=loggers,
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    callback = OLMESCallback(every=3 * BATCH, suite=suite, console=False, out=folder, **settings)
    trainer.callbacks.append(callback)
    trainer.fit(Module(tokenizer), DataLoader(ids, batch_size=ROWS), ckpt_path=checkpoint)
    return trainer


def test_lightnings_csv_and_tensorboard_loggers_hold_what_the_record_holds(tokenizer, suite, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loggers = [CSVLogger(tmp_path, name="csv", version=0), TensorBoardLogger(tmp_path, name="tb", version=0)]
    fit(tmp_path, tokenizer, suite, loggers)
    evaluations = load_run(tmp_path).evaluations
    assert [evaluation.point.step for evaluation in evaluations] == [0, 3, 6, 8]
    with (tmp_path / "csv" / "version_0" / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["olmes/tokens"]]
    events = EventAccumulator(str(tmp_path / "tb" / "version_0")).Reload()
    for name in ("olmes/cf/boxes", "olmes/mcf/average", "olmes/stderr/gap/balls"):
        truth = {evaluation.point.step: evaluation.metrics[name] for evaluation in evaluations}
        assert {int(row["step"]): float(row[name]) for row in rows} == pytest.approx(truth)
        assert {event.step: event.value for event in events.Scalars(name)} == pytest.approx(truth)  # float32
    assert [event.value for event in events.Scalars("olmes/tokens")] == [e.point.tokens for e in evaluations]


def test_a_lightning_run_that_resumes_has_its_charts_and_axes_in_both_sessions(tokenizer, suite, tmp_path):
    for name, steps, checkpoint in (("first", 4, None), ("second", 8, tmp_path / "half.ckpt")):
        logger = WandbLogger(project="test", save_dir=tmp_path / name, offline=True, id="same", resume="allow")
        (tmp_path / name).mkdir()
        trainer = fit(
            tmp_path, tokenizer, suite, logger, steps, checkpoint, at_end=False, artifact=checkpoint is not None
        )
        trainer.save_checkpoint(tmp_path / "half.ckpt")
        logger.experiment.finish()
        path = offline_run(tmp_path / name)
        rows, rules = [row for row in history(path) if "olmes/tokens" in row], axes(path)
        assert [row["olmes/step"] for row in rows] == ([0, 3] if checkpoint is None else [6])
        own = {key for row in rows for key in row if key.startswith("olmes/")} - {"olmes/tokens"}
        assert {rules[key] for key in own} == {"olmes/tokens"}
        assert rules["*"] == "trainer/global_step"
        charts = config(path)["_wandb"]["visualize"]
        assert set(charts) == {"olmes/chart/boxes", "olmes/chart/balls", "olmes/chart/average"}
        assert config(path)["olmes"]["fingerprint"] == suite.fingerprint
        assert config(path)["olmes"]["questions"] == {"boxes": 12, "balls": 9}
        assert ("olmes-same" in artifacts(path)) is (checkpoint is not None)


def test_a_transformers_run_that_resumes_has_its_charts_and_axes_in_both_sessions(tokenizer, suite, tmp_path):
    for name, steps in (("first", 4), ("second", 8)):
        (tmp_path / name).mkdir()
        with wandb.init(mode="offline", dir=str(tmp_path / name), project="test", id="same", resume="allow"):
            arguments = TrainingArguments(
                output_dir=str(tmp_path),
                max_steps=steps,
                per_device_train_batch_size=ROWS,
                save_strategy="steps",
                save_steps=4,
                logging_steps=1,
                report_to="wandb",
                disable_tqdm=True,
                use_cpu=True,
            )
            rows = [{"input_ids": [i % 300] * LENGTH, "labels": [i % 300] * LENGTH} for i in range(8 * ROWS)]
            trainer = Trainer(make_llama(), arguments, default_data_collator, rows, processing_class=tokenizer)
            trainer.add_callback(OLMESCallback(every=3 * BATCH, suite=suite, console=False, at_end=False))
            trainer.train(resume_from_checkpoint=steps > 4)
        path = offline_run(tmp_path / name)
        rows, rules = [row for row in history(path) if "olmes/tokens" in row], axes(path)
        assert [row["olmes/step"] for row in rows] == ([0, 3] if steps == 4 else [6])
        own = {key for row in rows for key in row if key.startswith("olmes/")} - {"olmes/tokens"}
        assert {rules[key] for key in own} == {"olmes/tokens"}
        assert rules["*"] == "train/global_step"
        assert config(path)["olmes"]["fingerprint"] == suite.fingerprint
        assert config(path)["learning_rate"] == arguments.learning_rate, "the trainer's own config stays"
        assert len(config(path)["_wandb"]["visualize"]) == 3


def follow(tokenizer, suite, folder, levels, start=0, **settings):
    """A real Monitor whose evaluations are made up: the loop, the record, the sinks and the verdicts are real."""
    monitor = Monitor(make_llama(), tokenizer, every=1000, suite=suite, out=folder, console=False, **settings)
    monitor.load_state_dict({"tokens": start * 1000, "step": start})

    def evaluate(point, progress):
        shares = {"arc_easy": levels[point.step], "csqa": (0.5, 0.25)}
        return make_evaluation(point.tokens, shares, n=200, step=point.step, fingerprint=suite.fingerprint)

    monitor.scorer.evaluate = evaluate
    monitor.start()
    for _ in range(start + 1, len(levels)):
        monitor.step(tokens=1000)
    monitor.finish()
    return monitor


def test_a_crossing_is_told_when_it_is_confirmed_once_and_not_again_after_a_resume(tokenizer, suite, tmp_path, caplog):
    run, events = FakeRun(), []
    with caplog.at_level(logging.INFO, "olmes_monitor"):
        follow(tokenizer, suite, tmp_path, RISE, log=run, on_crossover=events.append)
    assert [event.new for event in events if event.task == "arc_easy"] == ["confirmed"]
    event = next(event for event in events if event.task == "arc_easy")
    assert run.alerts == [(event.title, event.text) for event in events]
    assert caplog.text.count(event.text) == 1
    assert len(run.rows) == len(RISE)
    told = next(row for row in run.rows if row["olmes/tokens"] == event.point.tokens)
    assert told["olmes/crossover/arc_easy/tokens"] == event.crossover.tokens
    assert "olmes/crossover/arc_easy/tokens" not in run.rows[0]
    assert run.summary["olmes/crossover/arc_easy/state"] == "confirmed"
    again = FakeRun()
    levels = [*RISE, (0.55, 0.85), (0.55, 0.86)]
    follow(tokenizer, suite, tmp_path, levels, start=len(RISE) - 1, log=again, on_crossover=events.append)
    assert len(again.rows) == 2
    assert [title for title, _ in again.alerts if "arc_easy" in title] == []
    assert again.summary["olmes/crossover/arc_easy/state"] == "confirmed"


def test_a_hook_and_a_verdict_that_fail_do_not_stop_training(tokenizer, suite, tmp_path, caplog, monkeypatch):
    def hook(event):
        raise ZeroDivisionError("the user's own")

    with caplog.at_level(logging.WARNING, "olmes_monitor"):
        follow(tokenizer, suite, tmp_path / "a", RISE, on_crossover=hook)
        assert "on_crossover failed for arc_easy: crossover confirmed: the user's own" in caplog.text
        run = FakeRun()
        monkeypatch.setattr("olmes_monitor.record.run.Run.crossovers", lambda self: 1 / 0)
        follow(tokenizer, suite, tmp_path / "b", RISE[:3], log=run)
    assert "no verdicts at 2000 tokens: ZeroDivisionError" in caplog.text
    assert [row["olmes/tokens"] for row in run.rows] == [0, 1000, 2000], "the numbers are there all the same"
    assert len(load_run(tmp_path / "b").evaluations) == 3
