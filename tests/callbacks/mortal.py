"""A short training in a process of its own, which may kill itself at a given moment; started again, it resumes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from pathlib import Path

import torch
from parts import make_llama, make_task, make_tokenizer

from olmes_monitor import Monitor, OLMESCallback, Suite

BATCH = 4 * 10
STEPS, SAVE, EVERY = 8, 3, 2
"""Optimizer steps, and of those every third is saved, every second evaluated; the sixth is both."""
SUITE = Suite("tiny", [make_task("boxes", 2)])
IDS = torch.randint(0, 300, (4 * STEPS, 10), generator=torch.Generator().manual_seed(0))
ROWS = [{"input_ids": row, "labels": row} for row in IDS]


class Death:
    """Ends the process at a moment: (where, step), where is "training", "evaluation" or "logged"."""

    def __init__(self, moment):
        self.where, self.step = moment or ("never", 0)
        self.monitor = lambda: None

    def at(self, where, step):
        if (where, step) == (self.where, self.step):
            os.kill(os.getpid(), signal.SIGKILL)

    def on_forward(self, model, _):
        monitor = self.monitor()
        if monitor is not None:  # in training, steps counts those that are done
            self.at("training" if model.training else "evaluation", monitor.steps + model.training)

    def on_row(self, row):
        self.at("logged", row["olmes/step"])


def mortal_model(death):
    model = make_llama(num_hidden_layers=1)
    model.register_forward_pre_hook(death.on_forward)
    return model


def callback(death, **settings):
    made = OLMESCallback(every=EVERY * BATCH, suite=SUITE, console=False, log=death.on_row, **settings)
    death.monitor = lambda: made.monitor
    return made


def with_transformers(folder, moment=None, change=None, **settings):
    from transformers import Trainer, TrainingArguments, default_data_collator
    from transformers.trainer_utils import get_last_checkpoint

    death = Death(moment)
    args = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=4, max_steps=STEPS, save_strategy="steps", save_steps=SAVE,
        use_cpu=True, report_to="none", disable_tqdm=True, logging_steps=100, restore_callback_states_from_checkpoint=True,
    )  # fmt: skip
    trainer = Trainer(mortal_model(death), args, default_data_collator, ROWS, processing_class=make_tokenizer(SUITE))
    trainer.add_callback(callback(death, **settings))
    last = get_last_checkpoint(str(folder)) if Path(folder).exists() else None
    trainer.train(resume_from_checkpoint=last)


def with_lightning(folder, moment=None, **settings):
    import lightning.pytorch as pl

    death = Death(moment)

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.tokenizer = mortal_model(death), make_tokenizer(SUITE)

        def training_step(self, batch, _):
            return self.model(**batch).loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    saver = pl.callbacks.ModelCheckpoint(Path(folder) / "saved", every_n_train_steps=SAVE, save_top_k=-1)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    trainer = pl.Trainer(max_steps=STEPS, callbacks=[saver], default_root_dir=folder, **quiet)
    trainer.callbacks.append(callback(death, **settings))
    saved = sorted((Path(folder) / "saved").glob("*.ckpt"), key=lambda path: path.stat().st_mtime)
    trainer.fit(Module(), torch.utils.data.DataLoader(ROWS, batch_size=4), ckpt_path=saved[-1] if saved else None)


def by_hand(folder, moment=None, **settings):
    death, path = Death(moment), Path(folder) / "saved.pt"
    model = mortal_model(death)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = Monitor(
        model,
        make_tokenizer(SUITE),
        every=EVERY * BATCH,
        suite=SUITE,
        out=folder,
        console=False,
        log=death.on_row,
        **settings,
    )
    if path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        monitor.load_state_dict(saved["monitor"])
    death.monitor = lambda: monitor
    with monitor:
        for step in range(monitor.steps, STEPS):
            model(input_ids=IDS[4 * step : 4 * step + 4], labels=IDS[4 * step : 4 * step + 4]).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.step(tokens=BATCH)
            if (step + 1) % SAVE == 0:
                torch.save({"model": model.state_dict(), "monitor": monitor.state_dict()}, path.with_suffix(".tmp"))
                path.with_suffix(".tmp").replace(path)  # whole or not at all
                monitor.saved(path)


TRAINERS = {"by hand": by_hand, "lightning": with_lightning, "transformers": with_transformers}


def _live(trainer, folder, moment, settings):
    torch.set_num_threads(1)
    TRAINERS[trainer](folder, moment, **settings)


def live(trainer, folder, moment=None, **settings) -> int:
    """Run a training in a fresh process; its exit code, −9 if it was killed."""
    # A server that has imported everything forks them: a second each, not ten.
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lightning.pytorch", "transformers", "olmes_monitor.callbacks", "mortal"])
    process = context.Process(target=_live, args=(trainer, folder, moment, settings))
    process.start()
    process.join(100)
    process.kill()
    return process.exitcode
