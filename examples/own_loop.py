"""A training loop of one's own with a Monitor, saved half way and resumed: a few seconds on two cores."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from rehearsal import Rehearsal, tiny_llama, tiny_tokenizer
from torch.utils.data import DataLoader

from olmes_monitor import Monitor, load_run, load_suite


def train(model, rows, monitor: Monitor, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _, batch in zip(range(steps), DataLoader(rows, batch_size=8), strict=False):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(tokens=batch["input_ids"].numel())


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", default="runs/own_loop", help="the run's folder")
    arguments.add_argument("--steps", type=int, default=10, help="optimizer steps of 4096 tokens, twice")
    args = arguments.parse_args()

    suite = load_suite("quick", tasks=["arc_easy"], limit=20)
    tokenizer = tiny_tokenizer(suite)
    model = tiny_llama(len(tokenizer))
    rows = Rehearsal(suite, tokenizer, plain_rows=8 * args.steps, ramp_rows=8 * args.steps)
    settings = {"every": "20K", "suite": suite, "out": args.out}

    monitor = Monitor(model, tokenizer, **settings)
    monitor.start()
    train(model, rows, monitor, args.steps)
    checkpoint = Path(args.out) / "half.pt"
    torch.save({"model": model.state_dict(), "monitor": monitor.state_dict()}, checkpoint)
    monitor.saved(checkpoint)  # the evaluation of this point names it

    saved = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(saved["model"])
    monitor = Monitor(model, tokenizer, **settings)
    monitor.load_state_dict(saved["monitor"])  # the token axis goes on, no point is asked twice
    with monitor:
        train(model, rows, monitor, args.steps)
    print(load_run(args.out, fingerprint=suite.fingerprint).frame()[["tokens", "step", "task", "cf", "mcf", "gap"]])


if __name__ == "__main__":
    main()
