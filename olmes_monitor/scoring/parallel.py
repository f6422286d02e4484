"""The ranks that share an evaluation: who scores what, and how they agree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from olmes_monitor.errors import EvaluationError


@dataclass(frozen=True)
class Failure:
    """What went wrong on this rank."""

    where: str
    """Task and formulation."""
    error: Exception

    @property
    def cause(self) -> str:
        return f"{type(self.error).__name__}: {self.error}"

    @property
    def out_of_memory(self) -> bool:
        """Whether smaller forward calls may help."""
        return isinstance(self.error, torch.OutOfMemoryError)


@dataclass(frozen=True)
class Ranks:
    """The processes of the job, or this one alone. Every method is a collective: all ranks call it, in the same order."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where the collectives' tensors live: the backend decides (nccl takes no CPU tensors, gloo does)."""

    @classmethod
    def current(cls, device: torch.device) -> Ranks:
        """The default process group, if there is one. `device`: the model's."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        takes_cpu = "gloo" in dist.get_backend() or "mpi" in dist.get_backend() or "cpu" in dist.get_backend()
        return cls(dist.get_rank(), dist.get_world_size(), torch.device("cpu") if takes_cpu else device)

    def sum(self, value: int) -> int:
        """Sum of one integer over the ranks."""
        return self._reduce(value, dist.ReduceOp.SUM)

    def max(self, value: int) -> int:
        """Largest of one integer over the ranks."""
        return self._reduce(value, dist.ReduceOp.MAX)

    def agree(self, failure: Failure | None) -> None:
        """Raise EvaluationError on all ranks if any has a failure, naming the first such rank, its place and its cause."""
        if not self.max(int(failure is not None)):
            return
        causes: list[tuple[str, str, bool] | None] = [None] * self.size
        own = None if failure is None else (failure.where, failure.cause, failure.out_of_memory)
        if self.size > 1:
            dist.all_gather_object(causes, own)
        else:
            causes = [own]
        rank, first = next((rank, cause) for rank, cause in enumerate(causes) if cause is not None)
        error = EvaluationError(f"rank {rank} of {self.size} failed in {first[0]}: {first[1]}")
        error.out_of_memory = any(cause is not None and cause[2] for cause in causes)
        raise error from (None if failure is None else failure.error)

    def same_everywhere(self, value: str, what: str) -> None:
        """Raise EvaluationError on all ranks if they do not hold the same text."""
        if self.size == 1:
            return
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        if len(set(values)) > 1:
            raise EvaluationError(f"the ranks differ in {what}: {', '.join(map(str, dict.fromkeys(values)))}")

    def gather(self, values: np.ndarray, own: np.ndarray) -> np.ndarray:
        """One dense array from the ranks' parts.

        values: float64 (n,); own: bool (n,), true where this rank has filled the value in (it may be NaN: a model's own).
        Returns float64 (n,), the same on every rank. Raises EvaluationError unless each place was filled exactly once.
        """
        filled = torch.from_numpy(own.astype(np.int32))
        # Bits, not values: a sum of the other ranks' zeros leaves them as they are, NaN included.
        bits = torch.from_numpy(np.where(own, values, 0.0).view(np.int64).copy())
        if self.size > 1:
            filled, bits = filled.to(self.device), bits.to(self.device)
            dist.all_reduce(filled)
            dist.all_reduce(bits)
        counts = filled.cpu().numpy()
        if not (counts == 1).all():
            wrong = int((counts != 1).sum())
            raise EvaluationError(f"{wrong} of {len(counts)} log-likelihoods were not filled exactly once")
        return bits.cpu().numpy().view(np.float64)

    def _reduce(self, value: int, op: Any) -> int:
        if self.size == 1:
            return value
        tensor = torch.tensor([value], dtype=torch.int64, device=self.device)
        dist.all_reduce(tensor, op=op)
        return int(tensor.item())


def share(costs: np.ndarray, size: int) -> np.ndarray:
    """Cut items into `size` runs of about equal cost: int64 (items,), the rank of each, ascending.

    costs: float64 (items,), not negative. Deterministic; a rank may get none.
    """
    total = costs.sum()
    if size == 1 or total <= 0:
        return np.zeros(len(costs), dtype=np.int64)
    # An item belongs where its middle falls.
    middle = np.cumsum(costs) - costs / 2
    return np.minimum((middle * size / total).astype(np.int64), size - 1)
