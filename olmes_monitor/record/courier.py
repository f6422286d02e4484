"""A thread that carries calls to a tracker, so that one which hangs costs training seconds and not minutes."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

logger = logging.getLogger("olmes_monitor")

PATIENCE = 5.0
"""Seconds that whoever hands a call over waits for it to return."""


class Courier:
    """Makes calls one after the other, in the order given, on a thread of its own; an error becomes a warning.

    Whoever hands a call over waits until it has returned, so in ordinary times everything happens as if there were no
    thread. Once a call has taken longer than `patience`, nobody waits any more until the courier has caught up.
    """

    def __init__(self, name: str, patience: float = PATIENCE) -> None:
        """`name`: of the tracker, for the log. The thread starts with the first call and ends with the process."""
        self.name, self.patience = name, patience
        # Made at the first call: trainers that spawn their ranks pickle what they are given before.
        self._calls: queue.SimpleQueue[tuple[Callable[[], None], str, threading.Event]] | None = None
        self._last: threading.Event | None = None

    def call(self, action: Callable[[], None], what: str) -> None:
        """Hand a call over. `what`: what the tracker is to get, for the warning if it refuses."""
        if self._calls is None:
            self._calls = queue.SimpleQueue()
            name = f"olmes_monitor to {self.name}"
            threading.Thread(target=self._work, args=(self._calls,), name=name, daemon=True).start()
        behind = self._last is not None and not self._last.is_set()
        done = self._last = threading.Event()
        self._calls.put((action, what, done))
        if not behind and not done.wait(self.patience):
            logger.warning(
                "%s has not answered for %g seconds; training goes on, and what it should get waits for it in order",
                self.name,
                self.patience,
            )

    def drain(self, seconds: float) -> bool:
        """Wait until all calls have returned, at most so long; False (and a warning) where some have not."""
        if self._last is None or self._last.wait(seconds):
            return True
        logger.warning("%s has not answered after %g seconds more; the local record has everything", self.name, seconds)
        return False

    def _work(self, calls: queue.SimpleQueue[tuple[Callable[[], None], str, threading.Event]]) -> None:
        while True:
            action, what, done = calls.get()
            try:
                action()
            except Exception as error:
                logger.warning(
                    "%s refused %s (%s: %s); the local record has it", self.name, what, type(error).__name__, error
                )
            finally:
                done.set()
