"""An evaluation that fails on one rank: all leave it, training goes on in every bit, the record says what is missing."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from parts import make_llama, make_task
from ranks import run_ranks

from olmes_monitor import Monitor, OLMESCallback, Suite, load_run
from olmes_monitor.errors import EvaluationError

SCRIPT = Path(__file__).parent / "train_on_two_ranks.py"
SUITE = Suite("tiny", [make_task("boxes", 5)])


class Unlucky:
    """A forward pre-hook that raises once, on rank 1, in the evaluation that begins after so many training forwards."""

    def __init__(self, rank, after, error):
        self.armed, self.after, self.error, self.trained = rank == 1, after, error, 0

    def __call__(self, module, _):
        self.trained += module.training
        if self.armed and not module.training and self.trained == self.after:
            self.armed = False
            raise self.error


def loop(rank, folder, tokenizer, kind, error, **settings):
    """Four steps by hand, an evaluation before the first and after each; that after the second fails on rank 1."""
    inner = make_llama()
    inner.model.layers[1].register_forward_pre_hook(Unlucky(rank, 2, error))
    if kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(inner)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2,))
        for layer in inner.model.layers:
            fully_shard(layer, mesh=mesh)
        model = fully_shard(inner, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    monitor = folder and Monitor(model, tokenizer, every=80, suite=SUITE, out=folder, console=False, **settings)
    losses, message, seconds = [], None, 0.0
    try:
        if monitor:
            monitor.start()
        for step in range(4):
            ids = torch.randint(0, 300, (2, 20), generator=torch.Generator().manual_seed(10 * step + rank))
            loss = model.train()(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            started = time.monotonic()
            if monitor:
                monitor.step(ids.numel())
            seconds = max(seconds, time.monotonic() - started)
    except EvaluationError as failure:
        message = str(failure)
    return losses, message, seconds


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_a_failed_evaluation_is_missing_and_training_goes_on_bit_equal(kind, tokenizer, tmp_path):
    expected = run_ranks(loop, 2, None, tokenizer, kind, ValueError("no luck"))
    found = run_ranks(loop, 2, tmp_path, tokenizer, kind, ValueError("no luck"))
    for (losses, message, seconds), (truth, *_) in zip(found, expected, strict=True):
        assert losses == truth
        assert message is None
        assert seconds < 20
    run = load_run(tmp_path)
    problems = {e.point.tokens: e.problems.get("evaluation") for e in run.evaluations}
    assert [tokens for tokens, problem in problems.items() if problem is None] == [0, 80, 240, 320]
    assert problems[160].startswith("rank 1 of 2 failed in boxes ")
    assert "question" in problems[160] or "the shots" in problems[160]
    assert problems[160].endswith("ValueError: no luck")


def raising(rank, folder, tokenizer, kind, error):
    return loop(rank, folder, tokenizer, kind, error, on_error="raise")


@pytest.mark.slow
def test_raise_stops_all_ranks_with_the_first_cause(tokenizer, tmp_path):
    (losses, message, _), (others, other_message, _) = run_ranks(
        raising, 2, tmp_path, tokenizer, "ddp", ValueError("no luck")
    )
    assert len(losses) == len(others) == 2
    assert message == other_message
    assert message.startswith("rank 1 of 2 failed in boxes ")


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["lightning_fsdp2", "transformers"])
def test_in_both_trainers(trainer, tmp_path):
    losses = {}
    for how in ("fails", "alone"):
        folder = tmp_path / how
        folder.mkdir()
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        arguments = [*command, str(SCRIPT), trainer, str(folder), how]
        result = subprocess.run(arguments, capture_output=True, text=True, timeout=240, env=environment, cwd=folder)
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
        losses[how] = json.loads((folder / "losses.json").read_text())
    assert losses["fails"] == losses["alone"]
    found = [(e.point.tokens, e.problems.get("evaluation", "")) for e in load_run(tmp_path / "fails").evaluations]
    assert [tokens for tokens, problem in found if not problem] == [0, 240, 320]
    ((tokens, problem),) = [each for each in found if each[1]]
    assert tokens == 160
    assert problem.startswith("rank 1 of 2 failed in b")
    assert problem.endswith("ValueError: no luck")


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(143)], ids=["ctrl-c", "pre-emption"])
def test_an_interrupt_inside_an_evaluation_is_not_a_failed_evaluation(tokenizer, tmp_path, interrupt):
    """It passes through Monitor and the trainer at once; no evaluation is recorded as failed, the model is as it was."""
    from transformers import Trainer, TrainingArguments, default_data_collator

    model = make_llama()
    hook = Unlucky(1, 1, interrupt)
    model.register_forward_pre_hook(hook)
    rows = [{"input_ids": torch.arange(10), "labels": torch.arange(10)}] * 8
    arguments = TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=2, use_cpu=True, report_to="none", disable_tqdm=True,
        save_strategy="no",
    )  # fmt: skip
    trainer = Trainer(model, arguments, default_data_collator, rows, processing_class=tokenizer)
    trainer.add_callback(OLMESCallback(every=20, suite=SUITE, console=False))
    with pytest.raises(type(interrupt)):
        trainer.train()
    assert not hook.armed
    assert all(module.training for module in model.modules())
    assert torch.is_grad_enabled()
    assert [e.point.tokens for e in load_run(tmp_path).evaluations] == [0]
