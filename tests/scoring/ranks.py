"""Runs functions in several real processes joined by gloo, and gives back what each returns."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import queue
import socket
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

_KEPT: dict[int, Ranks] = {}
"""By number: starting processes takes longer than what most tests do in them."""


class Ranks:
    """Processes that wait for functions to run, all the same one at a time."""

    def __init__(self, size: int, timeout: float) -> None:
        """`timeout`: seconds after which their process group gives a collective up."""
        context = multiprocessing.get_context("spawn")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.results = context.Queue()
        self.work = [context.Queue() for _ in range(size)]
        self.processes = [
            context.Process(target=_serve, args=(rank, size, port, timeout, self.work[rank], self.results), daemon=True)
            for rank in range(size)
        ]
        for process in self.processes:
            process.start()

    def run(self, function: Callable[..., Any], arguments: tuple, seconds: float, wanted: int) -> list[Any]:
        """What `function` returns on the first `wanted` ranks to end, by rank; None for the others."""
        for work in self.work:
            work.put((function, arguments, dict(os.environ)))
        found: dict[int, Any] = {}
        try:
            for _ in range(wanted):
                rank, value, failure = self.results.get(timeout=seconds)
                assert failure is None, f"rank {rank}:\n{failure}"
                found[rank] = value
        except queue.Empty:
            missing = sorted(set(range(len(self.work))) - set(found))
            raise AssertionError(f"ranks {missing} did not end in {seconds} s") from None
        return [found.get(rank) for rank in range(len(self.work))]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def run_ranks(
    function: Callable[..., Any],
    size: int,
    *arguments: Any,
    seconds: float = 120,
    fresh: bool = False,
    timeout: float = 1800,
    survivors: int | None = None,
) -> list[Any]:
    """Call function(rank, *arguments) on `size` ranks; AssertionError if one raises or they do not end in time.

    `fresh`: in processes of their own, for a function that leaves its process or the process group unusable; only then
    `timeout` (of the group's collectives, seconds) and `survivors` (how many ranks give an answer at all) may be told.
    """
    ranks = Ranks(size, timeout) if fresh else _KEPT.get(size) or _KEPT.setdefault(size, Ranks(size, timeout))
    try:
        found = ranks.run(function, arguments, seconds, survivors or size)
    except BaseException:
        _KEPT.pop(size, None)
        ranks.end()
        raise
    if fresh:
        ranks.end()
    return found


@atexit.register
def _end_all() -> None:
    for ranks in _KEPT.values():
        ranks.end()


def _serve(rank, size, port, timeout, work, results) -> None:
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ.update(own)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size, timeout=timedelta(seconds=timeout))
    while True:
        function, arguments, environment = work.get()
        os.environ.update(environment | own)  # a test's own cache folder, say
        try:
            results.put((rank, function(rank, *arguments), None))
        except BaseException:
            results.put((rank, None, traceback.format_exc()))
