"""`olmes-monitor report`: runs as one page, a picture, and tables."""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from olmes_monitor.errors import RecordError, SetupError

if TYPE_CHECKING:
    from olmes_monitor.report.curves import Source

logger = logging.getLogger("olmes_monitor")
PICTURES = ("png", "svg", "pdf")


def run(arguments: argparse.Namespace) -> int:
    """Write the page, print the verdicts: 0, or 1 where some curve has no verdict (the table says which).

    Raises SetupError for options that do not go together, RecordError and DataError for what cannot be read or written.
    """
    if not arguments.runs and arguments.curves is None:
        raise SetupError("name a run's folder, or a table of accuracies with --curves FILE.csv")
    if arguments.watch is not None:
        return _watch(arguments)
    sources = _read(arguments)
    _write(arguments, sources)
    _print(arguments, sources)
    return 0 if all(curve.crossovers for source in sources for curve in source.curves.values()) else 1


def _read(arguments: argparse.Namespace) -> list[Source]:
    from olmes_monitor.cli_follow import name_of
    from olmes_monitor.record.store import load_run
    from olmes_monitor.report.curves import read_run
    from olmes_monitor.report.curves_file import read_curves

    sources = [
        read_run(load_run(folder, arguments.fingerprint), name)
        for folder, name in zip(
            arguments.runs, _distinct([name_of(Path(folder)) for folder in arguments.runs], arguments.runs), strict=True
        )
    ]
    if arguments.curves is not None:
        counts = {
            task: _count(text, "--questions") for task, text in _pairs(arguments.questions, "--questions").items()
        }
        columns = _pairs(arguments.columns, "--columns")
        sources += read_curves(arguments.curves, columns, counts, arguments.tokens_per_step)
    if not any(source.curves for source in sources):
        raise RecordError(f"no evaluation with a value yet in {', '.join(arguments.runs)}")
    return sources


def _distinct(names: list[str], folders: list[str]) -> list[str]:
    """The short names where they tell the runs apart, else the folders as they were given."""
    return names if len(set(names)) == len(names) else folders


def _pairs(text: str | None, option: str) -> dict[str, str]:
    """ "a=b,c=d" as a dict; a value alone is that of ""."""
    found = {}
    for part in (text or "").split(","):
        name, mark, value = part.strip().rpartition("=")
        if part.strip() and not value:
            raise SetupError(f"{option} {text}: {part.strip()!r} is not NAME=VALUE")
        if part.strip():
            found[name if mark else ""] = value
    return found


def _count(text: str, option: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise SetupError(f"{option}: {text!r} is not a number of questions")
    return int(text)


def _write(arguments: argparse.Namespace, sources: list[Source], refresh: float | None = None) -> None:
    """The page, and pictures beside it."""
    from olmes_monitor.report.page import write_page

    path = write_page(arguments.output, sources, refresh=refresh, repeat=_command(arguments))
    logger.info("%s (%.1f MB)", path, path.stat().st_size / 1e6)
    for kind in PICTURES:
        if getattr(arguments, kind):
            from olmes_monitor.report.plot import plot_sources, save_figure

            picture = Path(arguments.output).with_suffix(f".{kind}")
            save_figure(plot_sources(sources, width=arguments.width), picture)
            logger.info("%s", picture)


def _print(arguments: argparse.Namespace, sources: list[Source]) -> None:
    from olmes_monitor.record.files import plain
    from olmes_monitor.report.tables import as_json, curve_frame, verdict_table

    if arguments.json:
        print(json.dumps(plain(as_json(sources)), ensure_ascii=False, allow_nan=False))
    elif arguments.csv:
        curve_frame(sources).to_csv(sys.stdout, index=False)
    else:
        from rich.console import Console

        Console(width=None if sys.stdout.isatty() else 120).print(verdict_table(sources))


def _watch(arguments: argparse.Namespace) -> int:
    """Write the page anew whenever a record has changed, until interrupted; then once more, at rest."""
    from olmes_monitor.report.watch import changes

    if arguments.watch <= 0:
        raise SetupError(f"--watch {arguments.watch:g} must be above 0 seconds")
    if not arguments.runs or arguments.json or arguments.csv:
        raise SetupError("--watch follows runs and prints no table; leave out --json and --csv")
    sources: list[Source] = []
    folders = [Path(folder) for folder in arguments.runs]
    try:
        for changed in changes(folders, arguments.watch):
            if not changed:
                continue
            try:
                sources = _read(arguments)
            except RecordError as error:
                logger.warning("%s; looking again in %g s", error, arguments.watch)
                continue
            _write(arguments, sources, refresh=arguments.watch)
    except KeyboardInterrupt:
        if sources:
            _write(arguments, sources)
        logger.info("ended; the page no longer loads itself anew")
    return 0


def _command(arguments: argparse.Namespace) -> str:
    """The command that makes this page again, without what only concerned this time."""
    words = ["olmes-monitor", "report", *(os.path.relpath(folder) for folder in arguments.runs)]
    for option in ("curves", "columns", "questions", "tokens_per_step", "fingerprint", "output"):
        value = getattr(arguments, option)
        if value is not None:
            words += [f"--{option.replace('_', '-')}", str(value)]
    return shlex.join(words)
