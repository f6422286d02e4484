"""Watch multiple choice overtake cloze during a real training run (about five minutes on two cores).

A tiny Llama is trained from scratch with Lightning on real OLMES questions, first as plain text and later lettered, while
OLMESCallback asks it the same questions in both forms. It rehearses what it is asked: its scores mean nothing, its crossing
is real.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import WandbLogger
from rehearsal import Rehearsal, tiny_llama, tiny_tokenizer
from torch.utils.data import DataLoader

from olmes_monitor import OLMESCallback, load_run, load_suite


class TinyLM(pl.LightningModule):
    def __init__(self, model, tokenizer) -> None:
        super().__init__()
        self.model, self.tokenizer = model, tokenizer

    def training_step(self, batch, _):
        loss = self.model(**batch).loss
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-3, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_steps, eta_min=4e-4)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", default="runs/crossover_demo", help="the run's folder")
    arguments.add_argument("--steps", type=int, default=320, help="optimizer steps of 4096 tokens")
    arguments.add_argument("--every", default="40K", help="tokens between two evaluations")
    arguments.add_argument("--questions", type=int, default=60, help="questions of each task")
    args = arguments.parse_args()

    pl.seed_everything(0)
    suite = load_suite("quick", tasks=["arc_easy", "openbookqa"], limit=args.questions)
    tokenizer = tiny_tokenizer(suite)
    rows = Rehearsal(suite, tokenizer, plain_rows=8 * args.steps // 4, ramp_rows=8 * args.steps // 3)

    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    trainer = pl.Trainer(
        max_steps=args.steps,
        accelerator="cpu",
        default_root_dir=out,
        logger=WandbLogger(project="olmes_monitor", save_dir=out, offline=True),
        enable_checkpointing=False,
        enable_progress_bar=False,
        log_every_n_steps=20,
    )
    trainer.callbacks.append(OLMESCallback(every=args.every, suite=suite, out=out))
    trainer.fit(TinyLM(tiny_llama(len(tokenizer)), tokenizer), DataLoader(rows, batch_size=8))

    run = load_run(out, fingerprint=suite.fingerprint)
    run.plot(out / "crossover.png")
    print(f"picture:  {out / 'crossover.png'}")
    print(f"page:     {Path(sys.executable).with_name('olmes-monitor')} report {out}")
    print(f"record:   {out / 'olmes' / 'evaluations.jsonl'}, one parquet file per evaluation beside it")
    print(f"W&B run:  {trainer.logger.experiment.dir} (offline; `wandb sync` uploads it)")
    print("The model rehearsed the questions it was asked: its scores mean nothing, its crossing is real.")


if __name__ == "__main__":
    main()
