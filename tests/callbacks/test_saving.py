"""Evaluations know their checkpoints, ask for them, and steer the trainers' own tools; in both real trainers."""

from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from parts import make_llama, make_task, make_tokenizer
from torch.utils.data import DataLoader
from transformers import EarlyStoppingCallback, Trainer, TrainingArguments, default_data_collator

from olmes_monitor import Evaluation, OLMESCallback, Point, Suite, load_run
from olmes_monitor.callbacks.saving import SavePolicy
from olmes_monitor.errors import SetupError

SUITE = Suite("tiny", [make_task("boxes", 8)])
TOKENIZER = make_tokenizer(SUITE)
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
        return torch.optim.SGD(self.parameters(), lr=0.5)


def fit(folder, callback, *others, steps=8, epochs=-1, **settings):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    saves = any(isinstance(other, pl.callbacks.ModelCheckpoint) for other in others)
    trainer = pl.Trainer(
        max_steps=steps,
        max_epochs=epochs,
        default_root_dir=folder,
        callbacks=[*others],
        enable_checkpointing=saves,
        **quiet,
    )
    trainer.callbacks.append(callback)
    trainer.fit(Module(), DataLoader(ROWS, batch_size=4), **settings)
    return trainer


def train(folder, callback, *others, steps=8, resume=False, rate=0.02, **settings):
    args = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=4, max_steps=steps, learning_rate=rate, use_cpu=True,
        report_to="none", disable_tqdm=True, logging_steps=100, **{"save_strategy": "no", **settings},
    )  # fmt: skip
    model = make_llama(num_hidden_layers=1)
    trainer = Trainer(model, args, default_data_collator, ROWS, ROWS[:4], TOKENIZER, callbacks=[callback, *others])
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def made(**settings):
    return OLMESCallback(**{"every": 2 * BATCH, "suite": SUITE, "console": False, **settings})


def saved(folder):
    return {e.point.step: e.point.checkpoint for e in load_run(folder).evaluations}


def averages(folder):
    return {e.point.step: e.metrics["olmes/score/average"] for e in load_run(folder).evaluations}


def test_transformers_checkpoints_are_named_by_the_evaluation_of_their_step(tmp_path):
    train(tmp_path, made(), save_strategy="steps", save_steps=4)
    assert saved(tmp_path) == {
        0: None, 2: None, 4: str(tmp_path / "checkpoint-4"), 6: None, 8: str(tmp_path / "checkpoint-8"),
    }  # fmt: skip


def test_lightning_checkpoints_are_named_by_the_evaluation_of_their_step(tmp_path):
    saver = pl.callbacks.ModelCheckpoint(tmp_path / "kept", "{step}", every_n_train_steps=4, save_top_k=-1)
    fit(tmp_path, made(), saver)
    kept = tmp_path / "kept"
    assert saved(tmp_path) == {0: None, 2: None, 4: str(kept / "step=4.ckpt"), 6: None, 8: str(kept / "step=8.ckpt")}


def test_lightnings_last_checkpoint_comes_after_all_else_and_is_named_too(tmp_path):
    saver = pl.callbacks.ModelCheckpoint(tmp_path / "kept", "{step}")  # at the end of an epoch
    fit(tmp_path, made(), saver, steps=-1, epochs=1)
    assert saved(tmp_path)[8] == str(tmp_path / "kept" / "step=8.ckpt")


def test_transformers_saves_at_each_evaluation_if_asked(tmp_path):
    train(tmp_path, made(every=3 * BATCH, save_checkpoint=True))
    assert saved(tmp_path) == {0: None} | {step: str(tmp_path / f"checkpoint-{step}") for step in (3, 6, 8)}
    assert len(list(tmp_path.glob("checkpoint-*"))) == 3
    train(tmp_path, made(every=3 * BATCH, save_checkpoint=True), steps=12, resume=True)
    assert list(saved(tmp_path)) == [0, 3, 6, 8, 9, 12]


def test_lightning_saves_at_each_evaluation_if_asked(tmp_path):
    fit(tmp_path, made(every=3 * BATCH, save_checkpoint=True))
    names = {
        step: str(tmp_path / "checkpoints" / f"olmes-step={step}-tokens={step * BATCH}.ckpt") for step in (3, 6, 8)
    }
    assert saved(tmp_path) == {0: None} | names
    assert all(Path(path).exists() for path in names.values())
    fit(tmp_path, made(every=3 * BATCH, save_checkpoint=True), steps=9, ckpt_path=names[6])
    assert list(saved(tmp_path)) == [0, 3, 6, 9]
    assert [e.point.step for e in load_run(tmp_path).superseded] == [8]


@pytest.mark.parametrize("run", [fit, train])
def test_the_best_are_saved_and_no_others(run, tmp_path):
    run(tmp_path, made(every=BATCH, save_checkpoint="best"), **({"rate": 1.0} if run is train else {}))
    scores = averages(tmp_path)
    best = [step for step in scores if step > 0 and scores[step] > max(scores[before] for before in range(step))]
    assert [step for step, path in saved(tmp_path).items() if path is not None] == best
    assert 0 < len(best) < 8, "the run must have both kinds"


def evaluation(cf, mcf, tokens=1):
    metrics = {"cf": cf, "mcf": mcf, "score": max(cf, mcf), "gap": mcf - cf}
    logged = {f"olmes/{name}/average": value for name, value in metrics.items()}
    return Evaluation(Point(tokens), "tiny", "f", None, logged, tasks={"boxes": {"floor": 0.25}})


@pytest.mark.parametrize(
    ("at", "wanted"),
    [
        (False, [0, 0, 0, 0, 0, 0, 0]),
        (True, [0, 1, 1, 1, 1, 1, 1]),
        ("best", [0, 1, 0, 0, 1, 0, 1]),
        # The second has MCF ahead below its floor; the fifth overtakes, the sixth stays, the seventh overtakes no more.
        ("crossover", [0, 0, 0, 0, 1, 0, 0]),
    ],
)
def test_where_a_checkpoint_is_wanted(at, wanted):
    pairs = [(0.2, 0.1), (0.21, 0.24), (0.24, 0.2), (0.24, 0.2), (0.3, 0.4), (0.3, 0.4), (0.4, 0.5)]
    policy, found = SavePolicy(at), []
    for step, pair in enumerate(pairs):
        found.append(policy.wants(evaluation(*pair, tokens=step)))
        again = SavePolicy(at)  # as if resumed after each
        again.load_state_dict(policy.state_dict())
        policy = again
    assert found == list(map(bool, wanted))


def test_a_wrong_wish_is_refused():
    with pytest.raises(SetupError, match='save_checkpoint takes True, False, "best" or "crossover"'):
        OLMESCallback(save_checkpoint="last")


def test_lightnings_model_checkpoint_keeps_the_best_by_our_score(tmp_path):
    saver = pl.callbacks.ModelCheckpoint(
        tmp_path, "{step}", monitor="olmes/score/average", mode="max", every_n_train_steps=1, save_top_k=1
    )
    fit(tmp_path, made(every=BATCH), saver)
    scores = averages(tmp_path)
    best = max(scores[step] for step in range(1, 9))
    assert saver.best_model_score.item() == pytest.approx(best, abs=1e-6)
    assert saver.best_model_path == str(tmp_path / f"step={next(s for s in range(1, 9) if scores[s] == best)}.ckpt")


def test_lightnings_early_stopping_works_on_our_metrics(tmp_path):
    stopper = pl.callbacks.EarlyStopping("olmes/tokens", mode="min", patience=1, check_on_train_epoch_end=True)
    trainer = fit(tmp_path, made(at_start=False), stopper, steps=-1, epochs=5)
    # Eight steps an epoch. More tokens is never better: the first epoch sets the mark, the second ends it.
    assert trainer.global_step == 16
    assert trainer.callback_metrics["olmes/tokens"].item() == 16 * BATCH


def test_transformers_history_has_each_evaluation_once(tmp_path):
    trainer = train(tmp_path, made())
    rows = [row for row in trainer.state.log_history if "olmes/tokens" in row]
    assert [(row["step"], row["olmes/tokens"]) for row in rows] == [(step, step * BATCH) for step in (0, 2, 4, 6, 8)]
    assert [row["olmes/score/average"] for row in rows] == list(averages(tmp_path).values())


def test_transformers_keeps_the_best_model_by_our_score_and_the_last_point_is_the_last_models(tmp_path):
    """eval_steps and the callback's interval differ: the metric is measured where the Trainer asks for it."""
    settings = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 3, "save_steps": 3}
    best = {"metric_for_best_model": "olmes/score/average", "load_best_model_at_end": True}
    trainer = train(tmp_path, made(), **settings, **best)
    scores = averages(tmp_path)
    assert list(scores) == [0, 2, 3, 4, 6, 8]
    assert trainer.state.best_metric == max(scores[step] for step in (3, 6, 8))
    assert trainer.state.best_global_step == next(s for s in (3, 6, 8) if scores[s] == trainer.state.best_metric)
    steps = [row["step"] for row in trainer.state.log_history if "olmes/tokens" in row]
    assert steps == [0, 2, 3, 4, 6, 8]


def test_transformers_early_stopping_ends_on_a_point_of_its_own_model(tmp_path):
    """The Trainer loads the best model before on_train_end: what is evaluated there would not be the last model."""
    settings = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 3, "save_steps": 3}
    best = {"metric_for_best_model": "olmes/tokens", "greater_is_better": False, "load_best_model_at_end": True}
    callback = made(every=5 * BATCH)
    trainer = train(tmp_path, callback, EarlyStoppingCallback(1), **settings, **best)
    assert trainer.state.global_step == 6
    assert list(saved(tmp_path)) == [0, 3, 5, 6]


@pytest.mark.skipif(not hasattr(pl.callbacks, "WeightAveraging"), reason="came with lightning 2.6")
def test_lightnings_weight_average_is_not_taken_for_the_model_at_the_end(tmp_path):
    """WeightAveraging copies the average over the weights in on_train_end."""
    points = []
    for others in ([], [pl.callbacks.WeightAveraging()]):
        folder = tmp_path / str(len(others))
        fit(folder, made(every=None, at_start=False), *others)
        points.append(load_run(folder).scores(0)["cf"].to_numpy())
    np.testing.assert_array_equal(*points)
