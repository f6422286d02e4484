"""Where the curves go: W&B, Lightning's loggers, a callable. Local files are the truth; these are copies.

A sink is a callable that takes a row. It may have any of these methods as well, found by their names:

    start(config, folder)          once, before training: what is measured, and the record's folder
    curves(row, run, crossovers)   instead of the plain call, wherever the record could be read: the row, every evaluation
                                   so far as a Run, and the verdicts on them
    alert(title, text)             when a verdict becomes confirmed or is reverted
    finish(run, crossovers)        when training ends

Rank 0 calls them, on the training thread; WandbSink hands its own calls to a thread, see there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olmes_monitor.record.evaluation import Evaluation
from olmes_monitor.record.wandb_sink import TOKENS, WandbSink, live_wandb_run

if TYPE_CHECKING:
    from olmes_monitor.measure.crossover import Crossover
    from olmes_monitor.record.run import Run

__all__ = ["LightningSink", "Row", "Sink", "WandbSink", "live_wandb_run", "row_of", "sinks_of"]

logger = logging.getLogger("olmes_monitor")

Row = Mapping[str, float]
Sink = Callable[[Row], None]


def row_of(evaluation: Evaluation) -> dict[str, float]:
    """The row that trackers get: the metrics, and where training stood."""
    return {
        **evaluation.metrics,
        TOKENS: evaluation.point.tokens,
        "olmes/step": evaluation.point.step,
        **{f"olmes/{name}": evaluation.cost[name] for name in ("seconds", "overhead") if name in evaluation.cost},
    }


def sinks_of(log: Any) -> list[Sink]:
    """What `log=` may be: a callable, a live W&B run, or several of them."""
    if callable(log):
        return [log]
    if hasattr(log, "define_metric") and hasattr(log, "log"):
        return [WandbSink(lambda: log)]
    return [sink for one in log for sink in sinks_of(one)]


class LightningSink:
    """Logs to every logger of a Lightning Trainer: rows by log_metrics, as any logger takes them.

    A WandbLogger's run is written to directly, with charts and alerts: its log_metrics would add trainer/global_step to the
    row, and with it that axis' rule.
    """

    def __init__(self, trainer: Any, *, artifact: bool = False) -> None:
        """`artifact`: as in WandbSink."""
        self._trainer = trainer
        self._artifact = artifact
        self._wandb: dict[int, WandbSink] = {}

    def start(self, config: Mapping[str, Any], folder: Path | None = None) -> None:
        """As a sink's."""
        start_everywhere(self._sinks(), config, folder)

    def __call__(self, row: Row) -> None:
        """As a sink's."""
        log_everywhere(self._sinks(), row)

    def curves(self, row: Row, run: Run, crossovers: Mapping[str, Crossover]) -> None:
        """As a sink's."""
        log_everywhere(self._sinks(), row, run, crossovers)

    def alert(self, title: str, text: str) -> None:
        """As a sink's."""
        alert_everywhere(self._sinks(), title, text)

    def finish(self, run: Run, crossovers: Mapping[str, Crossover]) -> None:
        """As a sink's."""
        finish_everywhere(self._sinks(), run, crossovers)

    def _sinks(self) -> list[Sink]:
        return [self._sink_of(target) for target in self._trainer.loggers]

    def _sink_of(self, target: Any) -> Sink:
        if any(base.__name__ == "WandbLogger" for base in type(target).__mro__):
            if id(target) not in self._wandb:
                self._wandb[id(target)] = WandbSink(lambda: target.experiment, artifact=self._artifact)
            return self._wandb[id(target)]
        return lambda row: target.log_metrics(dict(row), self._trainer.global_step)


def start_everywhere(sinks: Iterable[Sink], config: Mapping[str, Any], folder: Path | None = None) -> None:
    """What is measured, to every sink that wants to know."""
    for sink in sinks:
        attempt(getattr(sink, "start", None), config, folder, what="what is measured")


def log_everywhere(
    sinks: Iterable[Sink], row: Row, run: Run | None = None, crossovers: Mapping[str, Crossover] | None = None
) -> None:
    """One row to every sink, once; with the run and its verdicts to those that take them."""
    for sink in sinks:
        curves = getattr(sink, "curves", None) if run is not None else None
        arguments = (row,) if curves is None else (row, run, crossovers or {})
        attempt(curves or sink, *arguments, what=f"the evaluation at {row.get(TOKENS)} tokens")


def alert_everywhere(sinks: Iterable[Sink], title: str, text: str) -> None:
    """A message to every sink that can pass one on."""
    for sink in sinks:
        attempt(getattr(sink, "alert", None), title, text, what=f"the alert {title!r}")


def finish_everywhere(sinks: Iterable[Sink], run: Run, crossovers: Mapping[str, Crossover]) -> None:
    """The end of training, to every sink that wants to know."""
    for sink in sinks:
        attempt(getattr(sink, "finish", None), run, crossovers, what="the end of training")


def attempt(call: Callable[..., Any] | None, *arguments: Any, what: str) -> None:
    """Make a call if there is one; a tracker that fails must not stop a training run, so its error becomes a warning."""
    if call is None:
        return
    try:
        call(*arguments)
    except Exception as error:
        logger.warning("a tracker refused %s (%s: %s); the local record has it", what, type(error).__name__, error)
