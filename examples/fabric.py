"""Lightning's Fabric with a Monitor: a few seconds on two cores.

fabric.setup wraps the model; what the Monitor asks is the module inside, in the precision that Fabric trains in.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from lightning.fabric import Fabric
from rehearsal import Rehearsal, tiny_llama, tiny_tokenizer
from torch.utils.data import DataLoader

from olmes_monitor import Monitor, load_run, load_suite


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", default="runs/fabric", help="the run's folder")
    arguments.add_argument("--steps", type=int, default=10, help="optimizer steps of 4096 tokens")
    arguments.add_argument("--devices", type=int, default=1, help="processes")
    args = arguments.parse_args()

    fabric = Fabric(accelerator="cpu", devices=args.devices, precision="bf16-mixed")
    fabric.launch()
    suite = load_suite("quick", tasks=["arc_easy"], limit=20)
    tokenizer = tiny_tokenizer(suite)
    model = tiny_llama(len(tokenizer))
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=2e-3))
    rows = Rehearsal(suite, tokenizer, plain_rows=8 * args.steps, ramp_rows=8 * args.steps, seed=fabric.global_rank)
    batches = fabric.setup_dataloaders(DataLoader(rows, batch_size=8 // args.devices))

    monitor = Monitor(model.module, tokenizer, every="20K", suite=suite, out=args.out, context=fabric.autocast)
    checkpoint = Path(args.out) / "last.ckpt"
    with monitor:
        for _, batch in zip(range(args.steps), batches, strict=False):
            fabric.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
            monitor.step(tokens=batch["input_ids"].numel())  # this rank's; the ranks' are added up
        fabric.save(checkpoint, {"model": model, "optimizer": optimizer, "monitor": monitor.state_dict()})
        monitor.saved(checkpoint)
    if fabric.is_global_zero:
        print(load_run(args.out, fingerprint=suite.fingerprint).frame()[["tokens", "step", "task", "cf", "mcf", "gap"]])
    if args.devices > 1:
        torch.distributed.destroy_process_group()  # a process that ends with a live group may abort in its last moments


if __name__ == "__main__":
    main()
