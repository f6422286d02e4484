"""Rows, charts, verdicts and alerts into a W&B run. Nothing here starts one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from olmes_monitor.measure.crossover import Crossover
from olmes_monitor.record import wandb_runs
from olmes_monitor.record.courier import Courier
from olmes_monitor.record.run import Run
from olmes_monitor.record.store import LINES
from olmes_monitor.record.verdicts import verdict_summary
from olmes_monitor.record.wandb_charts import COLUMNS, Lines, chart_lines, chart_title, charted, latest_rows

TOKENS = "olmes/tokens"
"""The axis every metric is drawn against."""

CHART = "chart/"
"""olmes/chart/<task>: one key a task, the same at every evaluation, so that each is one panel that is redrawn."""

LATEST = "latest"
"""olmes/latest: the table of the latest evaluation."""

CONFIG = "olmes"
"""The run's config has its facts under this key, or under olmes_monitor where the user has put this to a use of his own."""

ALWAYS_DRAWN = 30
GROWTH = 1.05
"""A chart holds the whole curve, so drawing all of them every time would store a long run's curves squared: beyond so many
evaluations they are drawn when the curve has grown by a twentieth, at a change of a verdict, and at the end."""

AT_THE_END = 30.0
"""Seconds that the end of training waits for W&B to take what it was sent."""

TITLE = 63
"""Characters of an alert's title that W&B takes."""


def live_wandb_run() -> Any:
    """The run of this process, if wandb was imported and has one; never starts one."""
    return getattr(sys.modules.get("wandb"), "run", None)


class WandbSink:
    """Logs to a W&B run, each metric bound to the token axis by its exact name.

    By exact name, because a rule for "*" (Lightning and transformers both make one) wins over any other pattern. `step=` is
    never passed: W&B drops a row whose step is behind the run's own counter, and the trainer drives that counter.

    The run's methods are called on a thread (see Courier): W&B's calls are messages to another process, safe from any
    thread, and a run whose service hangs must not hold up training.
    """

    def __init__(
        self,
        find_run: Callable[[], Any] = live_wandb_run,
        *,
        artifact: bool = False,
        courier: Courier | None = None,
    ) -> None:
        """`find_run` gives the live run or None; asked every time, since a trainer may start its run late. `artifact`: put
        the record's files into the run as an artifact when training ends. `courier`: for tests of its patience."""
        self._find_run = find_run
        self._artifact = artifact
        self._courier = courier or Courier("W&B")
        self._config: Mapping[str, Any] = {}
        self._name = ""
        self._folder: Path | None = None
        self._run: Any = None
        self._bound: set[str] = set()
        self._drawn = 0
        self._states: dict[str, str] = {}

    def start(self, config: Mapping[str, Any], folder: Path | None = None) -> None:
        """What is measured, for the run's config; `name` in it is that of a monitor among several. `folder`: the record's,
        where the run's id is kept beside it."""
        self._config, self._folder, self._name = config, folder, str(config.get("name", ""))
        self._send(lambda run, bound: describe(run, config), "its config")

    def __call__(self, row: Mapping[str, float]) -> None:
        """One row, without charts."""
        self._send(lambda run, bound: log(run, bound, row), f"the evaluation at {row.get(TOKENS)} tokens")

    def curves(self, row: Mapping[str, float], run: Run, crossovers: Mapping[str, Crossover]) -> None:
        """One row, with the charts and the table in it, and the verdicts in the summary."""
        charts = self._charts(run, crossovers)
        latest, summary, name = latest_rows(run, crossovers), verdict_summary(crossovers), self._name
        self._send(
            lambda wandb_run, bound: log(wandb_run, bound, row, charts, latest, summary, name),
            f"the evaluation at {row.get(TOKENS)} tokens",
        )

    def alert(self, title: str, text: str) -> None:
        """One of W&B's alerts: a message to whoever watches the run."""
        self._send(lambda run, bound: run.alert(title=title[:TITLE], text=text), f"the alert {title!r}")

    def finish(self, run: Run, crossovers: Mapping[str, Crossover]) -> None:
        """The end of training: charts that lag behind, the artifact if wanted, and a bounded wait for W&B to take it all."""
        if self._drawn and self._drawn < len(run.evaluations):
            charts, name = all_charts(run, crossovers), self._name
            self._send(lambda wandb_run, bound: log(wandb_run, bound, {}, charts, name=name), "the last charts")
        if self._artifact:
            self._send(lambda wandb_run, bound: log_record(wandb_run, run.folder), "the record as an artifact")
        self._courier.drain(AT_THE_END)

    def _charts(self, run: Run, crossovers: Mapping[str, Crossover]) -> dict[str, tuple[str, Lines]]:
        count, states = len(run.evaluations), {task: crossover.state for task, crossover in crossovers.items()}
        if count > ALWAYS_DRAWN and count < GROWTH * self._drawn and states == self._states:
            return {}
        self._drawn, self._states = count, dict(states)
        return all_charts(run, crossovers)

    def _send(self, action: Callable[[Any, set[str]], None], what: str) -> None:
        # Looked up here and not on the thread: a logger's `experiment` may start its run, which belongs to this thread.
        run = self._find_run()
        if run is None:
            return
        if run is not self._run:
            # Its rules and its config are its own, also where it resumes or forks another and has that one's id.
            self._run, self._bound, config = run, set(), self._config
            self._courier.call(lambda: describe(run, config), "its config")
            if self._folder is not None:
                wandb_runs.remember_live(self._folder, run)
        bound = self._bound
        self._courier.call(lambda: action(run, bound), what)


def log(
    run: Any,
    bound: set[str],
    row: Mapping[str, float],
    charts: Mapping[str, tuple[str, Lines]] | None = None,
    latest: list[list[Any]] | None = None,
    summary: Mapping[str, Any] | None = None,
    name: str = "",
) -> None:
    """One row of history with what is drawn from it. `bound`: the names that have their axis already; grows. `name`: of a
    monitor among several, in front of what is drawn and of the summary; the row has it already."""
    media: dict[str, Any] = {}
    keys = list(row)
    under = f"olmes/{name}/" if name else "olmes/"
    if charts or latest:
        import wandb

        for task, (title, lines) in (charts or {}).items():
            xs, ys = zip(*lines.values(), strict=True)
            key = under + CHART + task
            media[key] = wandb.plot.line_series(xs, ys, keys=list(lines), title=title, xname="tokens")
            keys.append(f"{key}_table")  # W&B keeps a chart's lines under this name
        if latest:
            keys.append(under + LATEST)
            media[under + LATEST] = wandb.Table(columns=list(COLUMNS), data=latest, allow_mixed_types=True)
    for key in keys:
        if key not in bound:
            run.define_metric(key, **({} if key == TOKENS else {"step_metric": TOKENS}))
            bound.add(key)
    run.log({**row, **media})
    if summary:
        run.summary.update({key.replace("olmes/", under, 1): value for key, value in summary.items()})


def all_charts(run: Run, crossovers: Mapping[str, Crossover]) -> dict[str, tuple[str, Lines]]:
    """Task → title and lines of its chart, for each that has any."""
    charts = {task: (crossovers.get(task), chart_lines(run, task, crossovers.get(task))) for task in charted(run)}
    return {task: (chart_title(task, crossover), lines) for task, (crossover, lines) in charts.items() if lines}


def describe(run: Any, config: Mapping[str, Any]) -> None:
    """Puts what is measured into the run's config, and touches nothing else there."""
    if not config:
        return
    present = dict(run.config).get(CONFIG)
    ours = present is None or (isinstance(present, Mapping) and "fingerprint" in present)
    key = "/".join(filter(None, (CONFIG if ours else "olmes_monitor", config.get("name"))))
    run.config.update({key: dict(config)}, allow_val_change=True)


def log_record(run: Any, folder: Path) -> None:
    """The record's files as an artifact of the run."""
    import wandb

    artifact = wandb.Artifact(f"olmes-{run.id}", type="olmes-record")
    artifact.add_file(str(folder / LINES))
    artifact.add_dir(str(folder / "scores"), name="scores")
    run.log_artifact(artifact)
