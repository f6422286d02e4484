"""The ranks that share an evaluation: who scores what, and how they agree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from olmes_monitor.errors import EvaluationError, SetupError

OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""What errors say that are not a torch.OutOfMemoryError and mean the same."""


@dataclass(frozen=True)
class Failure:
    """What went wrong on this rank."""

    where: str
    """Task, formulation and questions."""
    error: Exception
    alone: bool = False
    """Whether the process group failed after it, so that the others cannot be told."""

    @property
    def cause(self) -> str:
        return f"{type(self.error).__name__}: {self.error}"

    @property
    def out_of_memory(self) -> bool:
        """Whether smaller forward calls may help."""
        known = isinstance(self.error, torch.OutOfMemoryError | MemoryError)
        return known or any(words in str(self.error) for words in OUT_OF_MEMORY)

    @property
    def lost(self) -> bool:
        """Whether the process group failed: another rank is gone or stuck, and no collective can be waited for."""
        return self.alone or isinstance(self.error, getattr(dist, "DistError", ())) or "gloo" in str(self.error)


@dataclass(frozen=True)
class Ranks:
    """The processes of the job, or this one alone. Every method is a collective: all ranks call it, in the same order."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where the collectives' tensors live: the backend decides (nccl takes no CPU tensors, gloo does)."""
    part: int = 0
    parts: int = 1
    """Questions are shared among the parts. A part is one rank, or a tensor-parallel group: its ranks score the same rows."""
    leads: bool = True
    """Whether this rank brings its part's results."""
    _lost: list[str] = field(default_factory=list, compare=False, repr=False)

    @classmethod
    def current(cls, device: torch.device) -> Ranks:
        """The default process group, if there is one. `device`: the model's."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        takes_cpu = "gloo" in dist.get_backend() or "mpi" in dist.get_backend() or "cpu" in dist.get_backend()
        rank, size = dist.get_rank(), dist.get_world_size()
        return cls(rank, size, torch.device("cpu") if takes_cpu else device, rank, size)

    def grouped(self, group: tuple[int, ...] | None) -> Ranks:
        """These ranks, with the ones of each `group` (this rank's own: global ranks, ascending; None: it alone) a part.

        Raises SetupError on all ranks where the groups do not divide the job.
        """
        if self.size == 1:
            return self
        groups: list[Any] = [None] * self.size
        dist.all_gather_object(groups, group or (self.rank,))
        parts = sorted(set(groups))
        if sorted(rank for part in parts for rank in part) != list(range(self.size)):
            raise SetupError(f"the model's groups of ranks, {parts}, do not divide the job's {self.size} ranks")
        own = groups[self.rank]
        return replace(self, part=parts.index(own), parts=len(parts), leads=own[0] == self.rank)

    @property
    def lost(self) -> bool:
        """Whether the process group has failed: nothing that needs the other ranks, training included, can go on."""
        return bool(self._lost)

    @property
    def copies(self) -> int:
        """How many ranks are fed one and the same row."""
        return self.size // self.parts

    def sum(self, value: int) -> int:
        """Sum of one integer over the ranks."""
        return self._reduce(value, dist.ReduceOp.SUM)

    def total(self, value: int) -> int:
        """Sum of one integer over the parts: what a tensor-parallel group does together counts once."""
        return self.sum(value if self.leads else 0)

    def max(self, value: int) -> int:
        """Largest of one integer over the ranks."""
        return self._reduce(value, dist.ReduceOp.MAX)

    def agree(self, failure: Failure | None) -> None:
        """Raise EvaluationError on all ranks if any has a failure, naming the first such rank, its place and its cause.

        Once the process group has failed nothing is waited for again: every later agreement raises at once.
        """
        here = f"rank {self.rank} of {self.size}"
        if failure is not None and failure.alone:
            self._lost.append(f"{here} failed in {failure.where}, half way, and lost the other ranks: {failure.cause}")
        elif failure is not None and failure.lost:
            self._lost.append(f"{here} lost the other ranks in {failure.where}: {failure.cause}")
        if self._lost:
            raise EvaluationError(self._lost[0]) from (None if failure is None else failure.error)
        try:
            causes = self._causes(failure)
        except Exception as broken:
            self._lost.append(f"{here} waited for the others in vain, one has ended or is stuck: {broken}")
            raise EvaluationError(self._lost[0]) from (broken if failure is None else failure.error)
        if not any(causes):
            return
        rank, first = next((rank, cause) for rank, cause in enumerate(causes) if cause is not None)
        error = EvaluationError(f"rank {rank} of {self.size} failed in {first[0]}: {first[1]}")
        error.out_of_memory = any(cause is not None and cause[2] for cause in causes)
        raise error from (None if failure is None else failure.error)

    @contextmanager
    def together(self, what: str) -> Iterator[None]:
        """Within: work that may fail on one rank, without collectives of ours. Then all ranks raise: its own error where it
        failed, a SetupError that names the first such rank elsewhere."""
        failure = None
        try:
            yield
        except Exception as error:
            if self.size == 1:
                raise
            failure = Failure(what, error)
        try:
            self.agree(failure)
        except EvaluationError as error:
            raise (failure.error if failure is not None else SetupError(str(error))) from None

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
        own = own & self.leads
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

    def _causes(self, failure: Failure | None) -> list[tuple[str, str, bool] | None]:
        """Per rank its place, cause and whether it ran out of memory; None where all is well."""
        own = None if failure is None else (failure.where, failure.cause, failure.out_of_memory)
        if self.size == 1 or not self.max(int(failure is not None)):
            return [own]
        causes: list[tuple[str, str, bool] | None] = [None] * self.size
        dist.all_gather_object(causes, own)
        return causes

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
