"""A record's evaluations into a W&B run of their own, as often as wanted and each of them once.

The run's id and the order of its rows are kept beside the record (wandb.json). One evaluation is one row, so W&B's own count
of rows says how many it has, also after an upload that broke off. A session that is offline cannot ask, and when it is
synced it takes the place of what W&B had under its id; so it holds the whole curve, every time.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olmes_monitor.errors import RecordError, SetupError
from olmes_monitor.record import wandb_runs
from olmes_monitor.record.evaluation import Evaluation
from olmes_monitor.record.loggers import row_of
from olmes_monitor.record.run import Run
from olmes_monitor.record.store import load_run
from olmes_monitor.record.verdicts import verdict_row, verdict_summary
from olmes_monitor.record.wandb_charts import latest_rows
from olmes_monitor.record.wandb_sink import all_charts, describe, log


@dataclass(frozen=True)
class Uploaded:
    """What an upload did."""

    run_id: str
    """Of the W&B run."""
    added: int
    """Rows that were logged now."""
    rows: int
    """Rows of this record that the run has in all."""
    place: str
    """The run's address, or the folder of the offline session that holds it whole."""
    offline: bool
    entity: str
    project: str
    renewed: bool
    """Whether a new run was begun because the one before holds evaluations that training has gone back on."""


@dataclass(frozen=True)
class Plan:
    """Which run gets which rows."""

    run_id: str
    names: list[str]
    """Of the evaluations, in the order of the run's rows: what was planned before stands first."""
    before: dict[str, Any]
    """What wandb.json says of an upload into this run: fingerprint, names, ours, session; empty if there was none."""
    live: bool
    """Whether training itself logs to the run."""
    renewed: bool = False


def upload(
    path: str | os.PathLike[str],
    *,
    project: str | None = None,
    group: str | None = None,
    run_id: str | None = None,
    force: bool = False,
    fingerprint: str | None = None,
    **init: Any,
) -> Uploaded:
    """Upload a run's live evaluations, superseded and failed ones left out; what W&B has already is not sent again.

    path, fingerprint: as in load_run. project, group: by default those of the run that training logged to, whose id names
    the group where it had none. run_id: of the W&B run to write into, by default that of the last upload, else a new one.
    force: write into it even if it is the training's own run, or was there before and no upload made it. init: goes to
    wandb.init.

    Raises RecordError where there is nothing to upload or a run must not be written into, SetupError where W&B cannot start.
    """
    run = load_run(path, fingerprint=fingerprint)
    evaluations = {_name(evaluation): evaluation for evaluation in run.evaluations if evaluation.metrics}
    if not evaluations:
        raise RecordError(f"{run.folder} has no evaluation to upload: none has a value")
    state = wandb_runs.read(run.folder)
    plan = make_plan(state, run.fingerprint, list(evaluations), run_id, force)
    live_id = next(reversed(state["live"]), None)
    live: dict[str, Any] = state["live"].get(live_id, {})
    settings = {"project": project or live.get("project"), "entity": live.get("entity")}
    foreign = force and run_id is not None and not plan.before.get("ours", False)
    if not foreign:  # such a run keeps its group and its job type
        settings |= {"group": group or live.get("group") or live_id, "job_type": "olmes-upload"}
    if _nothing_new(plan, init):
        session = plan.before["session"]
        return Uploaded(plan.run_id, 0, len(plan.names), session, True, "", settings["project"] or "", False)
    with _start(plan, foreign, {**settings, **init}) as wandb_run:
        guest = foreign and (plan.live or bool(plan.before) or wandb_run.resumed or wandb_run.offline)
        if not guest:
            _keep(run, plan, ours=True)  # before the first row, so that an upload that breaks off can go on
        missing = _missing(wandb_run, plan, guest)
        _log(wandb_run, [evaluations[name] for name in missing], run)
        offline, place = wandb_run.offline, wandb_run.url or str(Path(wandb_run.dir).parent)
        entity, project = wandb_run.entity or "", wandb_run.project or ""
    _keep(run, plan, ours=not guest, session=place if offline else None)
    return Uploaded(plan.run_id, len(missing), len(plan.names), place, offline, entity, project, plan.renewed)


def make_plan(
    state: Mapping[str, Any], fingerprint: str, names: Sequence[str], run_id: str | None = None, force: bool = False
) -> Plan:
    """state: as wandb_runs.read gives it. names: of the live evaluations, by tokens.

    Raises RecordError for a run that must not be written into.
    """
    uploads, live, renewed = state["uploads"], state["live"], False
    if run_id is None:
        ours = [known for known, facts in uploads.items() if facts["ours"] and facts["fingerprint"] == fingerprint]
        renewed = bool(ours) and not set(uploads[ours[-1]]["names"]) <= set(names)
        run_id = uuid.uuid4().hex[:8] if renewed or not ours else ours[-1]
    elif not force and (run_id in live or not uploads.get(run_id, {"ours": True})["ours"]):
        other = "training itself" if run_id in live else "something else"
        raise RecordError(
            f"{run_id} is a run that {other} logs to, and a second writer overwrites what the first has logged; leave out "
            "--run-id for a run of its own in the same group, or pass --force when training is over"
        )
    before = uploads.get(run_id, {})
    if before and (before["fingerprint"] != fingerprint or not set(before["names"]) <= set(names)):
        raise RecordError(
            f"the W&B run {run_id} holds other evaluations: of another suite, or of a stretch that training has gone back "
            "on, and W&B cannot take them out; leave out --run-id for a new run"
        )
    planned = list(before.get("names", []))
    ordered = planned + [name for name in names if name not in set(planned)]
    return Plan(run_id, ordered, before, run_id in live, renewed)


def _nothing_new(plan: Plan, init: Mapping[str, Any]) -> bool:
    """Whether an offline session of exactly these rows is there, and this would be another."""
    import wandb

    session = plan.before.get("session")
    offline = (init.get("mode") or wandb.setup().settings.mode) in ("offline", "dryrun")
    return offline and session is not None and Path(session).exists() and plan.before["names"] == plan.names


def _start(plan: Plan, foreign: bool, settings: dict[str, Any]) -> Any:
    """The W&B run, beside whatever run this process may have."""
    import wandb

    resume: Any = "allow" if plan.before or foreign else "never"
    try:
        # The id is always ours: WANDB_RUN_ID of a training job must not lead here to its run.
        run = wandb.init(id=plan.run_id, resume=resume, reinit="create_new", **settings)
    except wandb.Error as error:
        raise SetupError(
            f"W&B could not start run {plan.run_id} ({error}); see `wandb login`, set WANDB_MODE=offline to sync later, or "
            "give another --run-id where that id is taken"
        ) from error
    if run.disabled:
        run.finish()
        raise SetupError("W&B is disabled (WANDB_MODE), so nothing can be uploaded; set it to online or offline")
    return run


def _missing(wandb_run: Any, plan: Plan, guest: bool) -> list[str]:
    """Names of the evaluations that the run lacks.

    Raises RecordError where that cannot be known.
    """
    if not guest:
        return plan.names if wandb_run.offline else plan.names[wandb_run.starting_step :]
    if wandb_run.offline:
        raise RecordError(
            f"{plan.run_id} may have rows of others, which an offline session would replace; upload it online"
        )
    return [name for name in plan.names if name not in set(plan.before.get("names", []))]


def _log(wandb_run: Any, evaluations: Sequence[Evaluation], run: Run) -> None:
    """One row an evaluation; the last with the charts, the table and the verdicts of the whole run."""
    last = run.evaluations[-1]
    describe(
        wandb_run,
        {
            "suite": run.suite,
            "fingerprint": run.fingerprint,
            "settings": dict(last.settings),
            "versions": dict(last.versions),
        },
    )
    bound: set[str] = set()
    for evaluation in evaluations[:-1]:
        log(wandb_run, bound, row_of(evaluation))
    for evaluation in evaluations[-1:]:
        crossovers = run.crossovers()
        row = {**row_of(evaluation), **verdict_row(crossovers)}
        charts, latest = all_charts(run, crossovers), latest_rows(run, crossovers)
        log(wandb_run, bound, row, charts, latest, verdict_summary(crossovers))


def _keep(run: Run, plan: Plan, *, ours: bool, session: str | None = None) -> None:
    """Notes the upload. Read anew, as training may have noted its own run meanwhile."""
    state = wandb_runs.read(run.folder)
    facts = {"fingerprint": run.fingerprint, "ours": ours, "names": plan.names, "session": session}
    state["uploads"].pop(plan.run_id, None)  # the latest stands last
    state["uploads"][plan.run_id] = facts
    wandb_runs.write(run.folder, state)


def _name(evaluation: Evaluation) -> str:
    """What tells one evaluation of a record from another."""
    point = evaluation.point
    return f"{point.tokens}-{point.step}-{point.time}"
