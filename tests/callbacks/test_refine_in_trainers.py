"""refine= in both real trainers: the same closer evaluations as in a loop by hand, also over a stop and a resume."""

import json
import sys
from pathlib import Path

import pytest
from lightning.pytorch import Callback
from test_callback_state import BATCH, ROWS, SUITE, Module, lightning_trainer, transformers_trainer
from torch.utils.data import DataLoader
from transformers import TrainerCallback

sys.path.append(str(Path(__file__).parents[1] / "record"))

from synthetic import make_evaluation

from olmes_monitor import OLMESCallback, Refine, load_run
from olmes_monitor.scoring.score import Scorer

EVERY, STEPS, CROSSING = 4 * BATCH, 48, 6.4
STOP = 26
"""Between two regular evaluations, just before the crossing; a multiple of the two steps at which transformers saves."""


@pytest.fixture(autouse=True)
def scripted(monkeypatch):
    """The model's answers are made up: MCF jumps over CF at CROSSING."""

    def evaluate(scorer, point, progress=None):
        levels = (0.5, 0.3 if point.tokens < CROSSING * EVERY else 0.7)
        if abs(point.tokens / EVERY - CROSSING) < 1:
            levels = (0.5, 0.5 + 0.2 * (point.tokens / EVERY - CROSSING))
        shares = {"arc_easy": levels}
        return make_evaluation(point.tokens, shares, n=300, step=point.step, fingerprint=scorer.suite.fingerprint)

    monkeypatch.setattr(Scorer, "evaluate", evaluate)


class StopFit(Callback):
    def on_train_batch_end(self, trainer, *args):
        trainer.should_stop = trainer.global_step == STOP


class StopTrain(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == STOP


def callback():
    return OLMESCallback(EVERY, suite=SUITE, console=False, at_end=False, refine=Refine(cap=0.6))


def fit(folder, *callbacks):
    trainer, path = lightning_trainer(folder, *callbacks, steps=STEPS), folder / "last.ckpt"
    trainer.fit(Module(), DataLoader(ROWS, batch_size=4), ckpt_path=path if path.exists() else None)
    trainer.save_checkpoint(path)


def train(folder, *callbacks):
    trainer = transformers_trainer(folder, *callbacks, steps=STEPS)
    trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")))


def points(folder):
    return [evaluation.point.step for evaluation in load_run(folder).evaluations]


@pytest.mark.parametrize(("run", "stop"), [(fit, StopFit()), (train, StopTrain())], ids=["lightning", "transformers"])
def test_a_trainer_zooms_in_and_a_resumed_one_at_the_same_steps(run, stop, tmp_path):
    run(tmp_path / "whole", callback())
    whole = points(tmp_path / "whole")
    assert set(range(0, STEPS + 1, 4)) <= set(whole)
    extra = [step for step in whole if step % 4]
    assert 3 <= len(extra) <= 0.6 * STEPS / 4
    assert all(abs(step / 4 - CROSSING) < 2 for step in extra)
    run(tmp_path / "stopped", callback(), stop)
    assert points(tmp_path / "stopped") == [step for step in whole if step <= STOP]
    run(tmp_path / "stopped", callback())
    assert points(tmp_path / "stopped") == whole
    assert load_run(tmp_path / "stopped").superseded == []


def test_transformers_keeps_the_decision_in_its_json(tmp_path):
    train(tmp_path, callback(), StopTrain())
    (state,) = json.loads((tmp_path / f"checkpoint-{STOP}" / "trainer_state.json").read_text())["stateful_callbacks"][
        "OLMESCallback"
    ]
    kept = state["attributes"]["restored"]["refine"]
    assert kept["last"] <= STOP * BATCH
    assert kept["planned"] == STEPS * BATCH
    assert kept["curves"]["arc_easy"]
