"""Where the curves go: W&B, Lightning's loggers, a callable. Local files are the truth; these are copies."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

logger = logging.getLogger("olmes_monitor")

Row = Mapping[str, float]
Sink = Callable[[Row], None]

TOKENS = "olmes/tokens"
"""The axis every metric is drawn against."""


class WandbSink:
    """Logs rows to a W&B run, each metric bound to the token axis by its exact name.

    By exact name, because a rule for "*" (Lightning and transformers both make one) wins over any other pattern. `step=` is
    never passed: W&B drops a row whose step is behind the run's own counter, and the trainer drives that counter.
    """

    def __init__(self, find_run: Callable[[], Any]) -> None:
        """`find_run` gives the live run or None; asked at every row, since a trainer may start its run late."""
        self._find_run = find_run
        self._defined: set[tuple[Any, str]] = set()

    def __call__(self, row: Row) -> None:
        run = self._find_run()
        if run is None:
            return
        for name in row:
            key = (getattr(run, "id", None), name)
            if key not in self._defined:
                run.define_metric(name, **({} if name == TOKENS else {"step_metric": TOKENS}))
                self._defined.add(key)
        run.log(dict(row))


def live_wandb_run() -> Any:
    """The run of this process, if wandb was imported and has one; never starts one."""
    return getattr(sys.modules.get("wandb"), "run", None)


class LightningSink:
    """Logs rows to every logger of a Lightning Trainer; a WandbLogger's run is written to directly."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._wandb: dict[int, WandbSink] = {}

    def __call__(self, row: Row) -> None:
        for target in self._trainer.loggers:
            attempt(self._sink_of(target), row)

    def _sink_of(self, target: Any) -> Sink:
        if any(base.__name__ == "WandbLogger" for base in type(target).__mro__):
            # Its log_metrics would add trainer/global_step to the row, and with it that axis' rule.
            if id(target) not in self._wandb:
                self._wandb[id(target)] = WandbSink(lambda: target.experiment)
            return self._wandb[id(target)]
        return lambda row: target.log_metrics(dict(row), self._trainer.global_step)


def attempt(sink: Sink, row: Row) -> None:
    """Call a sink; a tracker that fails must not stop a training run, so its error becomes a warning."""
    try:
        sink(row)
    except Exception as error:
        logger.warning(
            "a tracker refused the evaluation at %s tokens (%s: %s); the local record has it",
            row.get(TOKENS),
            type(error).__name__,
            error,
        )


def log_everywhere(sinks: Iterable[Sink], row: Row) -> None:
    """One row to every sink."""
    for sink in sinks:
        attempt(sink, row)
