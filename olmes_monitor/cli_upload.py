"""olmes-monitor upload: a record's evaluations into a W&B run."""

from __future__ import annotations

import argparse

from olmes_monitor.record.upload import Uploaded, upload


def run(arguments: argparse.Namespace) -> int:
    """Upload, and say in a few lines what was done; with --workspace a layout is saved as well."""
    from olmes_monitor.record.store import load_run

    if arguments.workspace:
        from olmes_monitor.record.workspace import make_workspace, need_library

        need_library()  # before anything is sent
    done = upload(
        arguments.run_folder,
        project=arguments.project,
        group=arguments.group,
        run_id=arguments.run_id,
        fingerprint=arguments.fingerprint,
        force=arguments.force,
    )
    print(report(done))
    if arguments.workspace:
        if done.offline:
            print("no workspace was saved: it is kept on W&B's server, and this session is offline")
            return 0
        tasks = load_run(arguments.run_folder, fingerprint=arguments.fingerprint).tasks
        print(f"workspace: {make_workspace(done.entity, done.project, tasks).save().url}")
    return 0


def report(done: Uploaded) -> str:
    """What an upload did, in words."""
    lines = []
    if done.renewed:
        lines.append(
            "training has gone back on evaluations that were uploaded, which W&B cannot take out: a new run holds"
        )
        lines.append("the curve as it is now; the run before can be deleted")
    new = "nothing new" if done.added == 0 else f"{done.added} evaluation{'s' if done.added > 1 else ''} logged"
    lines.append(f"W&B run {done.run_id}: {new}, {done.rows} in all")
    if done.offline:
        lines.append("this offline session holds all of them, also those of the sessions before it; sync it alone:")
        lines.append(f"  wandb sync {done.place}")
    elif done.place:
        lines.append(done.place)
    return "\n".join(lines)
