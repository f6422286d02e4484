"""SIGTERM while an evaluation runs: training is left at once, and the resumed run makes up for the point."""

import os
import signal
import threading

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException
from parts import make_task
from test_lightning import batches, make_module, make_trainer, points

from olmes_monitor import OLMESCallback, Suite, load_run

SUITE = Suite("tiny", [make_task("boxes", 12), make_task("balls", 9, seed=1)])


class Preempting:
    """A forward hook that sends SIGTERM to this process in the n-th evaluation forward beyond a number of training ones."""

    def __init__(self, steps, forwards):
        self.steps, self.forwards, self.evaluated = steps, forwards, 0

    def __call__(self, module, args, kwargs=None):
        if module.training:
            self.steps -= 1
        elif self.steps <= 0:
            self.evaluated += 1
            if self.evaluated == self.forwards:
                os.kill(os.getpid(), signal.SIGTERM)


def test_lightnings_sigterm_ends_the_evaluation_and_the_resumed_run_makes_up_for_it(tmp_path, tokenizer):
    assert threading.current_thread() is threading.main_thread()

    def fit(hook=None, path=None):
        module = make_module(tokenizer=tokenizer)
        if hook is not None:
            module.model.register_forward_pre_hook(hook)
        # Saved before the evaluation of its step: what a pre-empted run has to go on from.
        saves = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=2, save_top_k=-1)
        trainer = make_trainer(tmp_path, enable_checkpointing=True, callbacks=[saves], num_sanity_val_steps=0)
        trainer.callbacks.append(OLMESCallback(every=160, suite=SUITE, console=False, batch_tokens=64, path="plain"))
        trainer.fit(module, batches(8), ckpt_path=path)
        return module

    hook = Preempting(steps=4, forwards=3)
    with pytest.raises(SIGTERMException):
        fit(hook)
    assert hook.evaluated == 3, "forwards went on after the signal"
    assert points(tmp_path) == [(0, 0)]  # the evaluation at 160 tokens (step 4) was left
    (saved,) = (tmp_path / "saved").glob("*step=2.ckpt")
    fit(path=saved)
    assert points(tmp_path) == [(0, 0), (160, 4), (320, 8)]
    assert all(e.scores is None or e.complete for e in load_run(tmp_path).evaluations)
