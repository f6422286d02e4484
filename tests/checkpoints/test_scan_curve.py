"""One curve from the loop and from a scan: train with the callback and save, scan the saves, compare every log-likelihood.

Stated tolerance: 1e-4 nats a choice in float32. (The numbers are equal where both use the same forward calls; a scan on
another device or with another budget rounds differently.)
"""

import sys
from pathlib import Path

import lightning.pytorch
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from parts import make_llama
from scan_parts import Told, same, values
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments, default_data_collator

from olmes_monitor import OLMESCallback, load_run
from olmes_monitor.checkpoints.find import find_checkpoints
from olmes_monitor.checkpoints.scan import Scan
from olmes_monitor.checkpoints.skeleton import Loading, Skeleton
from olmes_monitor.checkpoints.store import Results
from olmes_monitor.record.files import read_table
from olmes_monitor.report.scan import agreement

TOLERANCE = 1e-4
ROWS, LENGTH, STEPS = 4, 10, 8
BATCH = ROWS * LENGTH


def batches():
    return torch.randint(0, 300, (STEPS * ROWS, LENGTH), generator=torch.Generator().manual_seed(0)).tolist()


def scan(folder, suite, out, **loading):
    skeleton = Skeleton(suite, Loading(torch.device("cpu"), **loading))
    done = Scan(skeleton, Results(out / "olmes", suite), lambda: find_checkpoints([folder]), Told())
    done.once()
    assert {outcome.state for outcome in done.outcomes.values()} == {"scored"}, done.watcher.outcomes
    return load_run(out)


def check_one_curve(run, loop_at, saved_at):
    """Each point once, the loop's where both have it; every log-likelihood of both the same."""
    assert [e.point.tokens for e in run.evaluations] == sorted({*loop_at, *saved_at})
    origins = {e.point.tokens: e.point.origin for e in run.evaluations}
    assert origins == {tokens: "loop" if tokens in loop_at else "scan" for tokens in origins}
    assert [e.point.tokens for e in run.others] == sorted({*loop_at} & {*saved_at})
    assert {e.point.origin for e in run.others} == {"scan"}
    index = {e.point.tokens: i for i, e in enumerate(run.evaluations)}
    for evaluation, file in zip(run.others, run.others_files, strict=True):
        same(run.scores(index[evaluation.point.tokens]), read_table(run.folder / file), TOLERANCE)
        assert evaluation.metrics == pytest.approx(run.evaluations[index[evaluation.point.tokens]].metrics, abs=1e-6)
    points, worst = agreement(run)
    assert (points, worst <= TOLERANCE) == (len(run.others), True)
    first, last = values(run.scores(0)), values(run.scores(len(run.evaluations) - 1))
    assert np.nanmax(np.abs(first["cf"] - last["cf"])) > 100 * TOLERANCE  # training moved them
    assert run.correct("boxes").tokens.tolist() == sorted({*loop_at, *saved_at})


def test_transformers_trainer_and_a_scan_of_its_saves_make_one_curve(tokenizer, suite, tmp_path):
    arguments = {"num_train_epochs": 1, "learning_rate": 0.01, "per_device_train_batch_size": ROWS, "seed": 7}
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "logging_steps": 100}
    trainer = Trainer(
        model=make_llama(),
        args=TrainingArguments(str(tmp_path), save_strategy="steps", save_steps=1, **arguments, **quiet),
        train_dataset=[{"input_ids": row, "labels": row} for row in batches()],
        processing_class=tokenizer,
        data_collator=default_data_collator,
    )
    trainer.add_callback(OLMESCallback(every=2 * BATCH, suite=suite, console=False))
    trainer.train()
    run = scan(tmp_path, suite, tmp_path)
    check_one_curve(run, [step * BATCH for step in (0, 2, 4, 6, 8)], [step * BATCH for step in range(1, 9)])
    assert run.superseded == []


class Module(lightning.pytorch.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = make_llama()

    def training_step(self, ids, _):
        logits = self.model(ids).logits
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_lightning_and_a_scan_of_its_checkpoints_make_one_curve(tokenizer, suite, tmp_path):
    saves = ModelCheckpoint(tmp_path / "checkpoints", save_top_k=-1, every_n_train_steps=2, save_last=True)
    trainer = lightning.pytorch.Trainer(
        default_root_dir=tmp_path,
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        callbacks=[saves],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.callbacks.insert(0, OLMESCallback(every=4 * BATCH, suite=suite, console=False, tokenizer=tokenizer))
    trainer.fit(Module(), DataLoader([torch.tensor(row) for row in batches()], batch_size=ROWS))
    tokenizer.save_pretrained(tmp_path)
    Module().model.config.save_pretrained(tmp_path / "config")
    run = scan(tmp_path / "checkpoints", suite, tmp_path, config=str(tmp_path / "config"))
    check_one_curve(run, [step * BATCH for step in (0, 4, 8)], [step * BATCH for step in (2, 4, 6, 8)])


def factory():
    return Module().model


def test_a_lightning_modules_inner_model_comes_from_a_factory_too(tokenizer, suite, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parent)])
    torch.save({"state_dict": Module().state_dict(), "global_step": 5}, tmp_path / "tokens1000-step=5.ckpt")
    tokenizer.save_pretrained(tmp_path)
    done = scan(tmp_path, suite, tmp_path, model_factory="test_scan_curve:factory")
    assert len(done.evaluations) == 1
