"""The processes that scan together: what torchrun, srun or mpirun say in the environment."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from olmes_monitor.errors import SetupError

if TYPE_CHECKING:
    import torch

SLURM_PORTS = 15_000
"""First of the ports that jobs of Slurm take where MASTER_PORT is not set, 20,000 of them by the job's number."""


@dataclass(frozen=True)
class Job:
    """This process among those of its job."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Among the processes on this machine."""


def find_job(environment: Mapping[str, str] | None = None) -> Job:
    """From what torchrun sets (RANK, WORLD_SIZE, LOCAL_RANK), else from a step of Slurm's srun.

    Raises SetupError where several machines of Slurm's have no MASTER_ADDR to meet at.
    """
    env = os.environ if environment is None else environment
    if "RANK" in env and "WORLD_SIZE" in env:
        return Job(int(env["RANK"]), int(env["WORLD_SIZE"]), int(env.get("LOCAL_RANK", env["RANK"])))
    # Of a step, not of the job: a plain command in a batch script is one process, however many tasks the job may have.
    if int(env.get("SLURM_STEP_NUM_TASKS", "1")) > 1 and "SLURM_PROCID" in env:
        if int(env.get("SLURM_STEP_NUM_NODES", "1")) > 1 and "MASTER_ADDR" not in env:
            raise SetupError(
                "srun's processes on several machines need one to meet at: "
                "export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)"
            )
        return Job(int(env["SLURM_PROCID"]), int(env["SLURM_STEP_NUM_TASKS"]), int(env.get("SLURM_LOCALID", "0")))
    return Job()


def join(job: Job, device: torch.device) -> None:
    """Meet the job's other processes in torch's default group: nccl on CUDA, gloo elsewhere."""
    import torch.distributed as dist

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(SLURM_PORTS + int(os.environ.get("SLURM_JOB_ID", "0")) % 20_000))
    settings: dict[str, Any] = {"rank": job.rank, "world_size": job.size}
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", **settings)


def name_of(job: Job, device: torch.device) -> str:
    """A name for this run of the job that no other has: every process gets the same. They meet once and part again."""
    import torch.distributed as dist

    join(job, device)
    held = [uuid.uuid4().hex[:12]]
    dist.broadcast_object_list(held, src=0, device=device if device.type == "cuda" else None)
    dist.barrier()
    dist.destroy_process_group()
    return held[0]
