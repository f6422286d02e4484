"""The weights that an FSDP2 model's forward gathers from all ranks: put back afterwards, completed where a forward breaks.

Every `fully_shard`ed module gathers its weights when its forward begins: a collective. A forward that raises half way on
one rank leaves the others waiting for the gathers it did not come to. They are known (the same in every forward), so this
rank can make up for them: gather, and let go.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from olmes_monitor.scoring.mesh import kind_of


class Gathers:
    """Follows the gathers of an FSDP2 model. Where the model is none, nothing here does anything."""

    def __init__(self, model: nn.Module) -> None:
        from torch.distributed.fsdp import FSDPModule

        self.modules: list[Any] = [module for module in model.modules() if isinstance(module, FSDPModule)]
        self.completes = bool(self.modules)
        """Whether a broken forward's gathers are made up for. (Under tensor parallel they are not all that is waited for.)"""
        self._order: list[Any] = []
        """The modules in the order in which the last whole forward gathered them."""
        self._stay: set[int] = set()
        """Those (by id) that it left gathered, as FSDP2 does with the outermost one."""
        self._seen: list[Any] = []
        self._weights = {id(module): _a_weight(module) for module in self.modules}

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Within: forwards are followed. After, also on an error: weights that were not gathered before are not now."""
        apart = [module for module in self.modules if not self._is_whole(module)]
        with ExitStack() as stack:
            for module in self.modules:
                # FSDP's own hook runs before this one: what is noted has been gathered.
                stack.callback(module.register_forward_pre_hook(lambda module, _: self._seen.append(module)).remove)
            try:
                yield
            finally:
                # While they are gathered, the module's parameters are other tensors: the training's own code between two
                # steps (clipping, averages) must find those it knows.
                for module in apart:
                    module.reshard()

    @contextmanager
    def one_forward(self) -> Iterator[None]:
        """Around one forward, within `followed`: if it raises, the gathers that the other ranks wait for are made."""
        self._seen.clear()
        try:
            yield
        except Exception:
            if self.completes:
                self._complete()
            raise
        self._order = list(self._seen)
        self._stay = {id(module) for module in self.modules if self._is_whole(module)}

    def _complete(self) -> None:
        """Gather what the broken forward did not come to."""
        seen = len(self._seen)
        if self._seen != self._order[:seen]:
            return  # another way through the model: what the others wait for is not known; the group's timeout ends it
        for module in self._seen:
            if id(module) not in self._stay:
                module.reshard()
        for module in self._order[seen:]:
            module.unshard()
            if id(module) not in self._stay:
                module.reshard()

    def _is_whole(self, module: Any) -> bool:
        """Whether a module's weights are gathered now (those split by tensor parallel stay DTensors even then)."""
        from torch.distributed.tensor import DTensor

        owner, name = self._weights[id(module)]
        weight = None if owner is None else owner._parameters.get(name)
        if not isinstance(weight, DTensor):
            return weight is not None
        return all(kind_of(name) == "tensor" for name in weight.device_mesh.mesh_dim_names or ("",))


def _a_weight(module: nn.Module) -> tuple[nn.Module | None, str]:
    """(owner, name) of one parameter that this FSDP2 module gathers itself; (None, "") if it has none of its own."""
    from torch.distributed.fsdp import FSDPModule

    waiting: list[nn.Module] = [module]
    while waiting:
        owner = waiting.pop()
        for name, parameter in owner._parameters.items():
            if parameter is not None:
                return owner, name
        waiting.extend(child for child in owner.children() if not isinstance(child, FSDPModule))
    return None, ""
