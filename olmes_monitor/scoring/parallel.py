"""The ranks that share an evaluation: who scores what, and how they agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from olmes_monitor.errors import EvaluationError


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

    def agree(self, error: BaseException | None, where: str) -> None:
        """Raise on all ranks if any has an error, naming the first such rank, its place and its cause."""
        if not self.max(int(error is not None)):
            return
        causes: list[str | None] = [None] * self.size
        own = None if error is None else f"{type(error).__name__}: {error}"
        if self.size > 1:
            dist.all_gather_object(causes, own)
        else:
            causes = [own]
        rank, cause = next((rank, cause) for rank, cause in enumerate(causes) if cause is not None)
        raise EvaluationError(f"rank {rank} of {self.size} failed in {where}: {cause}") from error

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


def share(costs: Sequence[float], size: int) -> list[list[int]]:
    """Spread items over `size` ranks by cost: the costliest first, each to the rank with the least so far.

    Returns per rank the items' indices in ascending order. Deterministic; a rank may get none.
    """
    load = np.zeros(size)
    shares: list[list[int]] = [[] for _ in range(size)]
    for item in sorted(range(len(costs)), key=lambda item: (-costs[item], item)):
        rank = int(np.argmin(load))
        shares[rank].append(item)
        load[rank] += costs[item]
    return [sorted(items) for items in shares]
