"""An evaluation leaves the model and the process as they were."""

import random

import numpy as np
import pytest
import torch
from parts import make_llama
from torch import nn

from olmes_monitor import score
from olmes_monitor.scoring.preserve import preserved


class Restless(nn.Module):
    """Draws random numbers in every forward, writes a buffer whatever its mode, and builds its rotary table late."""

    def __init__(self):
        super().__init__()
        self.inner = make_llama()
        self.frozen = nn.Dropout(0.5).eval()
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("load", torch.zeros(4))
        self.table = None

    def forward(self, input_ids):
        self.calls += 1
        self.load = self.load + 1  # a new tensor in the buffer's place
        random.random(), np.random.rand(), torch.rand(1)  # noqa: NPY002
        if self.table is None or len(self.table) < input_ids.shape[1]:
            self.table = torch.ones(input_ids.shape[1], 1)
        logits = self.inner(input_ids).logits * self.table[: input_ids.shape[1]]
        return self.frozen(logits)


def snapshot(model):
    return {
        "flags": [module.training for module in model.modules()],
        "python": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),  # noqa: NPY002
        "torch": torch.get_rng_state().tolist(),
        "weights": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "grads": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "grad_enabled": torch.is_grad_enabled(),
    }


def assert_same(before, after):
    for key in ("flags", "python", "numpy", "torch", "grad_enabled"):
        assert before[key] == after[key], key
    assert before["weights"].keys() == after["weights"].keys()
    assert all(torch.equal(value, after["weights"][name]) for name, value in before["weights"].items())
    for a, b in zip(before["grads"], after["grads"], strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


def backward(model):
    ids = torch.randint(0, 400, (2, 30), generator=torch.Generator().manual_seed(0))
    loss = nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    return loss


def test_everything_is_as_before(suite, tokenizer):
    model = Restless().train()
    model.frozen.eval()
    backward(model)  # gradients in the middle of an accumulation window
    buffers = (model.calls, model.load)
    before = snapshot(model)
    score(model, tokenizer, suite)
    assert_same(before, snapshot(model))
    assert buffers[0] is model.calls
    assert buffers[1] is model.load
    assert not model.frozen.training


def test_everything_is_as_before_also_when_it_raises(suite, tokenizer):
    model = Restless().train()
    before = snapshot(model)
    with pytest.raises(KeyError), preserved(model):  # noqa: PT012
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        model(torch.zeros(1, 8, dtype=torch.long))
        raise KeyError
    assert_same(before, snapshot(model))


def test_what_the_forward_caches_serves_training(suite, tokenizer):
    """Under inference_mode the table would be unusable in a backward pass."""
    model = Restless().train()
    score(model, tokenizer, suite)
    assert model.table is not None
    backward(model)
    assert all(parameter.grad is not None for parameter in model.inner.parameters())


def test_the_config_and_the_tokenizer_are_not_written(suite, tokenizer):
    model = make_llama()
    config, state = model.config.to_dict(), tokenizer.backend_tokenizer.to_str()
    tokenizer.truncation_side = "left"
    score(model, tokenizer, suite)
    assert model.config.to_dict() == config
    assert tokenizer.backend_tokenizer.to_str() == state
    assert tokenizer.truncation_side == "left"


@pytest.mark.parametrize("how", ["wrapper", "in_place", "part"])
def test_compiled_models_are_evaluated_eagerly(suite, tokenizer, how):
    """Training's graphs are compiled once; the evaluation's shapes never reach the compiler."""
    compiled = []

    def backend(graph, _):
        compiled.append(graph)
        return graph.forward

    model = make_llama().train()
    trained = model
    if how == "wrapper":
        trained = torch.compile(model, backend=backend)
    elif how == "in_place":
        model.compile(backend=backend)
    else:
        model.model.layers[0] = torch.compile(model.model.layers[0], backend=backend)
    ids = torch.zeros(2, 24, dtype=torch.long)
    trained(ids).logits.sum().backward()
    graphs = len(compiled)
    assert graphs > 0
    score(trained, tokenizer, suite)
    assert len(compiled) == graphs
    trained(ids).logits.sum().backward()
    assert len(compiled) == graphs, "training was compiled again"
