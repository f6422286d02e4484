"""Which path scores a model: packed where it is proved to give the plain path's numbers, plain elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from olmes_monitor.scoring.encode import Encoded, shape_of
from olmes_monitor.scoring.forward import Forward, innermost
from olmes_monitor.scoring.head import head_of, replaced_logits
from olmes_monitor.scoring.jobs import Job
from olmes_monitor.scoring.pack import PackedRow, pack
from olmes_monitor.scoring.packed import PackedForward, maskable_attention, why_not_packed
from olmes_monitor.scoring.parallel import Ranks
from olmes_monitor.scoring.plan import Batch, plan

logger = logging.getLogger("olmes_monitor")

Choice = Literal["auto", "packed", "plain"]

CHECK_TOKENS = 64
"""Row budget of the check: small, so that a few questions already need trunks and several rows."""
EXACT = 1e-3
"""Largest difference of a log-likelihood in float32 arithmetic, in nats; sums reach 60 nats and differ by some 2e-4."""
ROUGH = 0.3
"""Largest difference per continuation token, in nats, in bfloat16, float16 or TF32 arithmetic, whose rounding differs with
a kernel's shapes; the median must be below a sixth of it. A wrong mask moves a trained model by several nats."""


@dataclass
class Path:
    """How the forward calls are made, and why so."""

    name: Literal["packed", "plain"]
    reason: str
    forward: Forward
    packed: PackedForward | None = None

    def run(self, calls: Sequence[Batch] | Sequence[PackedRow], index: int, device: torch.device) -> Tensor:
        """ln p of every target of calls[index]: (targets,), on the device."""
        call = calls[index]
        with self.forward.gathers.one_forward():
            if isinstance(call, PackedRow):
                assert self.packed is not None
                return self.packed.run(calls, index, device)  # type: ignore[arg-type]
            return self.forward.run(call, device)

    def fill(self, call: Batch | PackedRow, device: torch.device) -> None:
        """A call of the same shapes whose result nobody needs: in a tensor-parallel group the shapes must be the others'."""
        with self.forward.gathers.one_forward():
            self.forward.run(Batch(np.zeros_like(call.ids), call.reads), device)

    def attention(self) -> AbstractContextManager:
        """The context that evaluation's forwards need: an attention that takes masks, on the packed path."""
        return nullcontext() if self.packed is None else maskable_attention(self.packed.model)

    def clear(self) -> None:
        """Hold no device memory between evaluations."""
        if self.packed is not None:
            self.packed.clear()


def choose_path(
    wanted: Choice, model: nn.Module, jobs: Sequence[Job], ranks: Ranks, device: torch.device, max_length: int
) -> Path:
    """The packed path if a sample of questions comes out as on the plain path, on every rank; else the plain one.

    Made within `preserved` and the training's own context. Every rank forwards the same sample, so that a sharded model
    gets the same number of calls from each. A collective.
    """
    plain = Path("plain", "as asked", Forward(model))
    asked = sample(jobs)
    batches = plan(asked, 1, max_length)
    with plain.forward.gathers.followed():
        with ranks.together("scoring a sample of questions"):
            truth = _sums(lambda i: plain.run(batches, i, device), batches, len(asked))
        why_whole = choose_head(plain, batches[-1], device)
        if ranks.max(int(why_whole is not None)):
            plain.forward.head = None
            logger.debug("the LM head runs on all positions of a call: %s", why_whole or "another rank's check failed")
        if wanted == "plain":
            return plain
        reason = why_not_packed(model)
        if reason is None:
            packed = Path(
                "packed",
                "the same numbers as the plain path on a sample of questions",
                plain.forward,
                PackedForward(plain.forward),
            )
            reason = differs(packed, asked, truth, device)
    # One rank's rounding may differ from another's; they must still make the same calls.
    if ranks.max(int(reason is not None)):
        plain.reason = reason or "another rank's check failed"
        level = logging.WARNING if wanted == "packed" else logging.INFO
        logger.log(level, "the plain path is used: %s", plain.reason)
        return plain
    return packed


def choose_head(path: Path, batch: Batch, device: torch.device) -> str | None:
    """Run the LM head in slices from now on, if nothing comes after it; else say in words why not.

    Tried twice: with made-up logits, large enough for any cap or scale to show, which must leave the model unchanged;
    and on a batch of the sample, whose log-likelihoods must be those of the model's own logits.
    """
    forward, head = path.forward, head_of(innermost(path.forward.model))
    if head is None:
        return f"{type(forward.model).__name__} names no LM head"
    try:
        truth = path.run([batch], 0, device).double()
        with forward.gathers.one_forward(), replaced_logits(head) as made:
            logits = forward(torch.from_numpy(batch.ids[:1, :1]).to(device))
        if len(made) != 1 or not torch.equal(logits.to(made[0].dtype), made[0]):
            return "the model changes its logits after the head"
        forward.head = head
        found = path.run([batch], 0, device).double()
        allowed = ROUGH if low_precision(forward, device) else EXACT
        if not torch.allclose(found, truth, rtol=0, atol=allowed, equal_nan=True):
            raise ValueError("its numbers differ")
    except Exception as error:
        forward.head = None
        return f"{type(error).__name__}: {error}"
    return None


def sample(jobs: Sequence[Job]) -> list[Encoded]:
    """Requests that a wrong mask, position or cache would show in: per formulation the question with the longest prompt
    (sliding windows end somewhere) and the first two of the first task, unconditional requests included."""
    chosen: list[Encoded] = []
    for formulation in dict.fromkeys(job.formulation for job in jobs):
        mine = [job for job in jobs if job.formulation == formulation]
        longest = max(mine, key=lambda job: int(shape_of(job.encoded.requests).length.max()))
        lengths = shape_of(longest.encoded.requests).length
        for job, questions in ((mine[0], [0, 1]), (longest, [int(longest.question[int(np.argmax(lengths))])])):
            requests = job.requests
            chosen += [requests[i] for i in np.flatnonzero(np.isin(job.question, questions))]
    return chosen


def differs(packed: Path, requests: Sequence[Encoded], truth: np.ndarray, device: torch.device) -> str | None:
    """How the packed path's numbers on these requests differ from the plain path's, float64 (requests,); None if they
    agree."""
    rows = pack(requests, CHECK_TOKENS)
    try:
        with packed.attention():
            found = _sums(lambda i: packed.run(rows, i, device), rows, len(requests))
    except Exception as error:
        return f"the model refuses it ({type(error).__name__}: {error})"
    finally:
        packed.clear()
    tokens = np.array([len(request.ids) - request.start for request in requests])
    return compare(found, truth, tokens, low_precision(packed.forward, device))


def compare(found: np.ndarray, truth: np.ndarray, tokens: np.ndarray, rough: bool) -> str | None:
    """In words how two arrays of log-likelihoods differ (float64, nats, with the tokens of each); None if they agree."""
    if not np.array_equal(np.isnan(found), np.isnan(truth)):
        return "some log-likelihoods are NaN on one path only"
    difference = np.abs(np.nan_to_num(found) - np.nan_to_num(truth))
    if not rough:
        allowed = EXACT * np.maximum(1.0, np.abs(np.nan_to_num(truth)) / 10)
        worst = float(difference.max())
        return f"log-likelihoods differ by up to {worst:.2g} nats" if (difference > allowed).any() else None
    per_token = difference / tokens
    if per_token.max() > ROUGH or np.median(per_token) > ROUGH / 6:
        return f"log-likelihoods differ by up to {per_token.max():.2g} nats a token"
    return None


def low_precision(forward: Forward, device: torch.device) -> bool:
    """Whether the model computes in bfloat16, float16 or TF32 here, so that only rough agreement can be asked."""
    if torch.is_autocast_enabled(device.type):
        return True
    dtype = next((p.dtype for p in forward.model.parameters() if p.is_floating_point()), torch.float32)
    tf32 = device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
    return tf32 or dtype not in (torch.float32, torch.float64)


def _sums(run: Callable[[int], Tensor], calls: Sequence[Batch] | Sequence[PackedRow], requests: int) -> np.ndarray:
    """float64 (requests,): the log-likelihood of each."""
    found = torch.cat([run(i) for i in range(len(calls))]).cpu().numpy().astype(np.float64)
    return np.bincount(np.concatenate([call.reads.request for call in calls]), weights=found, minlength=requests)
