"""Curves in trackio, a local-first tracker with W&B's calls: `pip install trackio`, run this, then `trackio show`.

trackio.log is a callable that takes a row, so it is a sink as it is. Nothing leaves the machine.
"""

from __future__ import annotations

import argparse

import torch
import trackio
from rehearsal import Rehearsal, tiny_llama, tiny_tokenizer
from torch.utils.data import DataLoader

from olmes_monitor import Monitor, load_suite


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", default="runs/trackio_example", help="the run's folder")
    arguments.add_argument("--steps", type=int, default=10, help="optimizer steps of 4096 tokens")
    args = arguments.parse_args()

    suite = load_suite("quick", tasks=["arc_easy"], limit=20)
    tokenizer = tiny_tokenizer(suite)
    model = tiny_llama(len(tokenizer))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    rows = Rehearsal(suite, tokenizer, plain_rows=4 * args.steps, ramp_rows=4 * args.steps)

    trackio.init(project="olmes_monitor", config={"suite": suite.name, "fingerprint": suite.fingerprint})
    news = {"on_crossover": lambda event: trackio.alert(event.title, text=event.text)}
    with Monitor(model, tokenizer, every="20K", suite=suite, out=args.out, log=trackio.log, **news) as monitor:
        for _, batch in zip(range(args.steps), DataLoader(rows, batch_size=8), strict=False):
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            trackio.log({"loss": loss.item()})
            monitor.step(tokens=batch["input_ids"].numel())
    trackio.finish()


if __name__ == "__main__":
    main()
