"""Models whose forward is a collective: called through their wrapper, in step on every rank, left as they were found."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from parts import make_llama, make_task
from ranks import run_ranks
from torch import nn

from olmes_monitor import Point, Suite, score
from olmes_monitor.errors import EvaluationError, SetupError
from olmes_monitor.scoring.forward import innermost
from olmes_monitor.scoring.score import Scorer

SUITE = Suite("tiny", [make_task("boxes", 7), make_task("balls", 2, seed=1, normalization="pmi")])


def sharded():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = make_llama(num_hidden_layers=3)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(rank, tokenizer, failure):
    """Three steps of FSDP2 training, with an evaluation after the first that fails on rank 1 within layer 2."""
    model = sharded()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    known = list(model.parameters())
    scorer, message, losses = None, "", []
    if failure is not None:
        scorer = Scorer(model, tokenizer, SUITE, batch_tokens=200)
    for step in range(3):
        ids = torch.randint(0, 300, (2, 20), generator=torch.Generator().manual_seed(10 * step + rank))
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        if scorer is None or step != 0:
            continue
        calls = []

        def unlucky(*_, calls=calls):
            calls.append(1)
            if rank == 1 and len(calls) == 2:
                raise failure

        handle = model.model.layers[1].mlp.register_forward_pre_hook(unlucky)
        try:
            scorer.evaluate(Point(0))
        except EvaluationError as error:
            message = str(error)
        handle.remove()
        assert all(a is b for a, b in zip(model.parameters(), known, strict=True)), "some weights were left gathered"
        assert not any(m._forward_pre_hooks for m in model.modules() if isinstance(m, nn.Linear))
        message = message or scorer.evaluate(Point(1)).cost["oom_retries"]
    weights = [parameter.full_tensor().detach() for parameter in model.parameters()]
    return losses, torch.cat([weight.flatten() for weight in weights]).tolist(), message


@pytest.mark.slow
@pytest.mark.parametrize("failure", [ValueError("no luck"), torch.OutOfMemoryError("CUDA out of memory")], ids=type)
def test_a_failure_deep_inside_a_forward_keeps_fsdp2_in_step_and_training_bit_equal(tokenizer, failure):
    results = run_ranks(train, 2, tokenizer, failure, seconds=60)
    expected = run_ranks(train, 2, tokenizer, None, seconds=60)
    for (losses, weights, message), (true_losses, true_weights, _) in zip(results, expected, strict=True):
        assert losses == true_losses
        assert weights == true_weights
        if isinstance(failure, ValueError):
            assert message.startswith("rank 1 of 2 failed in boxes mcf (questions q")
            assert message.endswith("ValueError: no luck")
        else:
            assert message == 0, "the next evaluation ran out of memory too"


class FullyShardedDataParallel(nn.Module):
    """Stands for FSDP1, which starts on accelerators only: its module must be called through it, by all ranks at once."""

    def __init__(self, module):
        super().__init__()
        self.module, self.calls, self._inside = module, 0, False
        module.register_forward_pre_hook(self._check)

    def _check(self, *_):
        if not self._inside:
            raise RuntimeError("'weight' must be 2-D")  # what a flat parameter gives

    def forward(self, *args, **kwargs):
        self.calls += 1
        dist.all_reduce(torch.zeros(1))
        self._inside = True
        try:
            return self.module(*args, **kwargs)
        finally:
            self._inside = False


class DeepSpeedEngine(FullyShardedDataParallel):
    """Stands for DeepSpeed's engine with ZeRO-3: each leaf's weights are split over the ranks while it does not run."""

    def __init__(self, module):
        super().__init__(module)
        for leaf in module.modules():
            for parameter in leaf.parameters(recurse=False):
                parameter.ds_id, parameter.ds_shape, parameter.whole = id(parameter), parameter.shape, parameter.data
                parameter.data = torch.empty(0)
            if leaf._parameters:
                leaf.register_forward_pre_hook(self._gather)
                leaf.register_forward_hook(self._release)

    @staticmethod
    def _gather(leaf, *_):
        dist.all_reduce(torch.zeros(1))
        for parameter in leaf.parameters(recurse=False):
            parameter.data = parameter.whole

    @staticmethod
    def _release(leaf, *_):
        for parameter in leaf.parameters(recurse=False):
            parameter.data = torch.empty(0)


def through_wrappers(rank, tokenizer):
    found = {}
    for wrapper in (FullyShardedDataParallel, DeepSpeedEngine):
        for suite in (SUITE, Suite("one", [make_task("boxes", 1)])):
            model = wrapper(make_llama())
            calls = []
            innermost(model).register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
            evaluation = score(model, tokenizer, suite, batch_tokens=200)
            assert evaluation.settings["path"] == "packed", evaluation.settings["path_reason"]
            found[wrapper.__name__, suite.name] = model.calls, len(calls), evaluation.scores["cf"].to_numpy()
            with pytest.raises(SetupError, match="does not take token ids"):
                Scorer(model.module, tokenizer, suite)  # the wrapped module bypasses its wrapper
    return found


@pytest.mark.slow
def test_fsdp1_and_deepspeed_are_called_through_their_wrapper_as_often_on_each_rank(tokenizer):
    first, second = run_ranks(through_wrappers, 2, tokenizer, seconds=60)
    for name, suite in (("tiny", SUITE), ("one", Suite("one", [make_task("boxes", 1)]))):
        alone = score(make_llama(), tokenizer, suite).scores["cf"].to_numpy()
        for wrapper in ("FullyShardedDataParallel", "DeepSpeedEngine"):
            for calls, inner, values in (first[wrapper, name], second[wrapper, name]):
                assert calls == inner == first[wrapper, name][0] > 3
                np.testing.assert_allclose(values, alone, atol=1e-5, rtol=0)


def without_collectives(rank, tokenizer):
    """Which collectives run during DDP's evaluation: how often, and whether any within a forward."""
    model = nn.parallel.DistributedDataParallel(make_llama())
    seen, inside = [], []
    real = {name: getattr(dist, name) for name in ("all_reduce", "all_gather_object", "broadcast", "barrier")}
    for name, call in real.items():
        setattr(dist, name, lambda *a, n=name, c=call, **k: (seen.append((n, bool(inside))), c(*a, **k))[1])
    model.module.register_forward_pre_hook(lambda *_: inside.append(1))
    model.module.register_forward_hook(lambda *_: inside.clear())
    model.forward = None  # DDP's own forward is not called
    try:
        scorer = Scorer(model, tokenizer, SUITE, batch_tokens=40)
        seen.clear()
        calls = scorer.evaluate(Point(0)).cost["forwards"]
    finally:
        for name, call in real.items():
            setattr(dist, name, call)
    return seen, calls


def test_a_ddp_forward_holds_no_collective(tokenizer):
    for seen, calls in run_ranks(without_collectives, 2, tokenizer, seconds=60):
        assert calls >= 16
        # The agreements, the last one after the results have come, and the results themselves.
        assert seen == [("all_reduce", False)] * (8 + 1 + 2)
