"""Leave the model and the process as they were: training must not notice an evaluation (DESIGN: safety rules 1, 2)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn


@contextmanager
def preserved(model: nn.Module) -> Iterator[None]:
    """Within: eval mode, no gradients, compiled code run eagerly. After, also on an error: everything as before.

    Restored are every submodule's train flag, buffers that the forward wrote to, and the random states of python, numpy,
    torch and the model's devices. Gradients, parameters, config and autocast state are not written at all.
    """
    flags = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer._version, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    states = _random_states(model)
    try:
        # no_grad, not inference_mode: what a forward caches (rotary tables) must stay usable in training.
        # force_eager: shapes of the evaluation must not enter the caches of the training's compiled graphs.
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            for module, _ in flags:
                # Not module.eval(): a module may override train(), and frozen parts have flags of their own.
                module.training = False
            yield
    finally:
        # Casts that autocast has cached without a gradient would be found again by a training forward in the same region,
        # which then has none either (torch before 2.10, pytorch/pytorch#158232).
        torch.clear_autocast_cache()
        for module, flag in flags:
            module.training = flag
        with torch.no_grad():
            for module, name, buffer, version, copy in buffers:
                if buffer._version != version:
                    buffer.copy_(copy)
                module._buffers[name] = buffer
        _restore_random_states(states)


def _random_states(model: nn.Module) -> dict:
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    accelerators = {device: torch.get_device_module(device) for device in devices if device.type not in ("cpu", "meta")}
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 (the training's global generator is what must be kept)
        "torch": torch.get_rng_state(),
        "devices": [(device, module, module.get_rng_state(device)) for device, module in accelerators.items()],
    }


def _restore_random_states(states: dict) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002
    torch.set_rng_state(states["torch"])
    for device, module, state in states["devices"]:
        module.set_rng_state(state, device)
