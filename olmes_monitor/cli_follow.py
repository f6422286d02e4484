"""`olmes-monitor follow`: a run in the terminal, live."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from olmes_monitor.errors import RecordError, SetupError

if TYPE_CHECKING:
    from olmes_monitor.report.curves import Source


def run(arguments: argparse.Namespace) -> int:
    """Show the run until Ctrl-C, which is how it ends, or once: 0.

    Raises RecordError where there is no record and none is waited for, or it cannot be read.
    """
    if arguments.every <= 0:
        raise SetupError(f"--every {arguments.every:g} must be above 0 seconds")
    once = arguments.once or arguments.json or arguments.csv
    return _once(arguments) if once else _live(arguments)


def _once(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from olmes_monitor.record.files import plain
    from olmes_monitor.report.follow import follow_view
    from olmes_monitor.report.tables import as_json, verdict_frame

    source = read(arguments.run_folder, arguments.fingerprint)
    if arguments.json:
        print(json.dumps(plain(as_json([source])["runs"][0]), ensure_ascii=False, allow_nan=False))
    elif arguments.csv:
        found = {task: crossovers["olmes"] for task, curve in source.rows.items() if (crossovers := curve.crossovers)}
        verdict_frame(found).to_csv(sys.stdout, index=False)
    else:
        console = Console(width=None if sys.stdout.isatty() else 100)
        console.print(follow_view(source, console.width))
    return 0


def _live(arguments: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.live import Live

    from olmes_monitor.report.curves import Source
    from olmes_monitor.report.follow import follow_view
    from olmes_monitor.report.watch import changes

    console = Console()
    source = Source(arguments.run_folder, {})
    # transient: the last view is printed once more when it ends, whole even where it was higher than the screen.
    with Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop") as live:
        try:
            for changed in changes([Path(arguments.run_folder)], arguments.every):
                if changed:
                    source = _read_if_there(arguments, source)
                live.update(follow_view(source, console.width, time.time()), refresh=True)
        except KeyboardInterrupt:
            pass
    console.print(follow_view(source, console.width))
    return 0


def _read_if_there(arguments: argparse.Namespace, before: Source) -> Source:
    """The run anew; what was shown before while its folder has no record yet, or a line is just being written."""
    try:
        return read(arguments.run_folder, arguments.fingerprint)
    except RecordError as error:
        if "no record" in str(error):
            return before
        raise


def read(folder: str, fingerprint: str | None) -> Source:
    """The run in a folder under its own normalizations, named as the folder."""
    from olmes_monitor.record.store import load_run
    from olmes_monitor.report.curves import read_run

    run = load_run(folder, fingerprint)
    return read_run(run, name_of(Path(folder)), others=False)


def name_of(folder: Path) -> str:
    """What a run is called: its folder's name; of runs/x/olmes that is x."""
    place = folder.resolve()
    place = place.parent if place.is_file() else place
    return place.parent.name if place.name == "olmes" and place.parent.name else place.name
