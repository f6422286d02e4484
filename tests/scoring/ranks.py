"""Runs a function in several real processes joined by gloo, and gives back what each returns."""

from __future__ import annotations

import multiprocessing
import os
import queue
import socket
import traceback
from collections.abc import Callable
from typing import Any


def run_ranks(function: Callable[..., Any], size: int, *arguments: Any, seconds: float = 120) -> list[Any]:
    """Call function(rank, *arguments) on `size` ranks; AssertionError if one raises or they do not end in time."""
    context = multiprocessing.get_context("spawn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = context.Queue()
    ranks = [
        context.Process(target=_run, args=(function, rank, size, port, results, arguments)) for rank in range(size)
    ]
    for process in ranks:
        process.start()
    found: dict[int, Any] = {}
    try:
        for _ in ranks:
            rank, value, failure = results.get(timeout=seconds)
            assert failure is None, f"rank {rank}:\n{failure}"
            found[rank] = value
    except queue.Empty:
        raise AssertionError(f"ranks {sorted(set(range(size)) - set(found))} did not end in {seconds} s") from None
    finally:
        for process in ranks:
            process.join(timeout=10)
            process.kill()
    return [found[rank] for rank in range(size)]


def _run(function, rank, size, port, results, arguments) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    try:
        results.put((rank, function(rank, *arguments), None))
    except BaseException:
        results.put((rank, None, traceback.format_exc()))
    finally:
        dist.destroy_process_group()
