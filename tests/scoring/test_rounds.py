"""What happens to an evaluation in which something fails: kept results, the same state as before, ranks that stay together."""

import os
import random
import signal
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
from parts import make_llama, make_task
from ranks import run_ranks

from olmes_monitor import Point, Suite, score
from olmes_monitor.errors import EvaluationError
from olmes_monitor.scoring.parallel import Failure, Ranks
from olmes_monitor.scoring.score import Scorer


def scores(evaluation):
    return [evaluation.scores[name].drop_null().to_numpy() for name in ("cf", "mcf", "unconditional")]


class Device:
    """A forward pre-hook that stands for a device's memory: forwards of more tokens than it holds fail."""

    def __init__(self, tokens, on=True):
        self.tokens, self.on, self.forwarded, self.failed = tokens, on, [], []

    def __call__(self, module, args, kwargs):
        count = kwargs["input_ids"].numel()
        if self.on and count > self.tokens:
            self.failed.append(count)
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.forwarded.append(count)


@pytest.mark.parametrize("path", ["packed", "plain"])
@pytest.mark.parametrize("first", [0, 4], ids=["at once", "half way"])
def test_out_of_memory_goes_on_from_the_failed_call(suite, tokenizer, llama, path, first):
    """Nothing that was answered is asked again, and the numbers are those of an evaluation that never failed."""
    whole = score(llama, tokenizer, suite, path=path, batch_tokens=256)
    scorer = Scorer(llama, tokenizer, suite, path=path, batch_tokens=128)
    enough = largest(scorer)
    scorer.work.plan(256)
    assert largest(scorer) > enough
    device = Device(1000)
    handle = llama.register_forward_pre_hook(device, with_kwargs=True)

    def shrink(*_):
        if len(device.forwarded) >= first:
            device.tokens = enough

    shrinks = llama.register_forward_pre_hook(shrink)
    evaluation = scorer.evaluate(Point(0))
    spent = evaluation.cost["tokens"]
    assert spent == sum(device.forwarded) + sum(device.failed)
    handle.remove(), shrinks.remove()
    for values, truth in zip(scores(evaluation), scores(whole), strict=True):
        np.testing.assert_allclose(values, truth, atol=1e-5, rtol=0)
    assert evaluation.cost["oom_retries"] == 1
    assert evaluation.settings["batch_tokens"] == scorer.batch_tokens == 128
    again = scorer.evaluate(Point(1))
    assert again.cost["oom_retries"] == 0
    # The trunk comes again, and what was half answered.
    done = sum(device.forwarded[:first])
    assert sum(device.forwarded) <= again.cost["tokens"] + 128 + 0.5 * done


def largest(scorer):
    return max(call.tokens for job in scorer.jobs for call in job.calls)


def test_a_request_read_in_several_calls_is_answered_after_the_last(tokenizer, llama):
    """WinoGrande's shared endings: a continuation may begin in the trunk. Cut anywhere, the sums are whole."""
    suite = Suite("one", [make_task("boxes", 6)])
    truth = score(llama, tokenizer, suite, batch_tokens=128)
    calls = truth.cost["forwards"]
    for at in range(0, calls, 3):
        scorer = Scorer(llama, tokenizer, suite, batch_tokens=128)
        count = []

        def unlucky(*_, at=at, count=count):
            count.append(1)
            if len(count) == at + 1:
                raise torch.OutOfMemoryError("CUDA out of memory")

        handle = llama.register_forward_pre_hook(unlucky)
        found = scorer.evaluate(Point(0))
        handle.remove()
        for values, expected in zip(scores(found)[:2], scores(truth)[:2], strict=True):
            np.testing.assert_allclose(values, expected, atol=1e-5, rtol=0)


def test_errors_that_mean_memory_are_known_by_their_words():
    for error in (
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("HIP out of memory. Tried to allocate 2 GiB"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"
        ),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
    ):
        assert Failure("", error).out_of_memory
    assert not Failure("", RuntimeError("CUDA error: device-side assert triggered")).out_of_memory


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(143)], ids=["ctrl-c", "pre-emption"])
def test_an_interrupt_passes_through_at_once_and_leaves_everything_as_before(suite, tokenizer, llama, interrupt):
    scorer = Scorer(llama.train(), tokenizer, suite, batch_tokens=64)
    llama.model.layers[0].eval()
    calls = []

    def stop(*_):
        calls.append(1)
        random.random(), torch.rand(1)
        if len(calls) == 3:
            raise interrupt

    handle = llama.model.layers[1].register_forward_pre_hook(stop)
    flags = [module.training for module in llama.modules()]
    before = random.getstate(), torch.get_rng_state(), torch.is_grad_enabled()
    with pytest.raises(type(interrupt)):
        scorer.evaluate(Point(0))
    assert len(calls) == 3
    after = random.getstate(), torch.get_rng_state(), torch.is_grad_enabled()
    assert before[0] == after[0]
    assert torch.equal(before[1], after[1])
    assert before[2] == after[2]
    assert flags == [module.training for module in llama.modules()]
    assert scorer.path.packed._trunks == {}
    assert not llama.lm_head._forward_pre_hooks
    handle.remove()
    assert scorer.evaluate(Point(1)).complete


def test_a_progress_that_fails_ends_the_evaluation_in_words(suite, tokenizer, llama):
    """On rank 0 alone there is a progress bar: its failure must reach the others as any does."""
    scorer = Scorer(llama, tokenizer, suite)
    with pytest.raises(EvaluationError, match="rank 0 of 1 failed in showing progress: OSError: no terminal"):
        scorer.evaluate(Point(0), lambda *_: (_ for _ in ()).throw(OSError("no terminal")))


def on_two_ranks(rank, tokenizer):
    """Three misfortunes of rank 1 in one job, one after another."""
    suite = Suite("tiny", [make_task("boxes", 8)])
    model = torch.nn.parallel.DistributedDataParallel(make_llama())
    truth = score(model, tokenizer, suite, batch_tokens=256)
    scorer = Scorer(model, tokenizer, suite, batch_tokens=256)
    device = Device(140, on=rank == 1)
    handle = model.module.register_forward_pre_hook(device, with_kwargs=True)
    memory = scorer.evaluate(Point(0))
    handle.remove()
    same = [np.allclose(a, b, atol=1e-5, rtol=0) for a, b in zip(scores(memory), scores(truth), strict=True)]

    handle = model.module.lm_head.register_forward_hook(lambda _, __, out: out * float("nan") if rank == 1 else out)
    scorer.path.forward.head = None  # the model's own logits, so that the hook is heard
    nan = scorer.evaluate(Point(1))
    handle.remove()
    return (memory.settings["batch_tokens"], memory.cost["oom_retries"], memory.cost["tokens"], same), nan.problems


@pytest.mark.slow
def test_memory_and_nan_on_one_rank_are_every_ranks(tokenizer):
    (memory, nan), (other_memory, other_nan) = run_ranks(on_two_ranks, 2, tokenizer, seconds=60)
    assert memory == other_memory
    assert memory[:2] == (128, 1)
    assert all(memory[3])
    assert nan == other_nan
    assert "NaN" in nan["boxes"]


def dies(rank, tokenizer, how):
    model = torch.nn.parallel.DistributedDataParallel(make_llama())
    scorer = Scorer(model, tokenizer, Suite("tiny", [make_task("boxes", 8)]), batch_tokens=64)

    def end(*_):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL) if how == "killed" else time.sleep(60)

    model.module.register_forward_pre_hook(end)
    started = time.monotonic()
    with pytest.raises(EvaluationError) as caught:
        scorer.evaluate(Point(0))
    first = time.monotonic() - started
    # The next agreement does not wait for it again.
    with pytest.raises(EvaluationError):
        scorer.ranks.agree(None)
    return str(caught.value), first, time.monotonic() - started - first, scorer.ranks.lost


@pytest.mark.slow
@pytest.mark.parametrize(("how", "most"), [("killed", 3), ("stuck", 8)])
def test_a_rank_that_dies_or_hangs_costs_the_process_groups_own_timeout_once(tokenizer, how, most):
    found = run_ranks(dies, 2, tokenizer, how, seconds=60, fresh=True, timeout=5, survivors=1)
    message, first, second, lost = found[0]
    assert message.startswith("rank 0 of 2 waited for the others in vain, one has ended or is stuck: ")
    assert first < most
    assert second < 0.5
    assert lost


def setup_fails(rank):
    ranks = Ranks.current(torch.device("cpu"))
    try:
        with ranks.together("reading the suite"):
            if rank == 1:
                raise FileNotFoundError("no such folder")
    except Exception as error:
        return f"{type(error).__name__}: {error}", dist.get_world_size()


def test_what_fails_on_one_rank_before_training_is_raised_on_all():
    first, second = run_ranks(setup_fails, 2)
    assert first[0] == "SetupError: rank 1 of 2 failed in reading the suite: FileNotFoundError: no such folder"
    assert second[0] == "FileNotFoundError: no such folder"
