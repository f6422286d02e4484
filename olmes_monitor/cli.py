"""The command `olmes-monitor`.

One `_add_<command>` function declares a command's arguments, one `_<command>` function runs it and returns the exit
code. Heavy imports stay inside the latter, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from olmes_monitor import __version__
from olmes_monitor.errors import OLMESError, SetupError

if TYPE_CHECKING:
    from olmes_monitor.suite import Formulation, Question, Task

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command: 0 when it went well, 2 for an error told in one line, 130 when interrupted."""
    arguments = parser().parse_args(argv)
    # force: with a second call in one process (tests, notebooks) the lines go to the present stderr.
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except OLMESError as error:
        print(f"olmes-monitor: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("olmes-monitor: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (`| head`) has seen enough. Python would complain when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="olmes-monitor",
        description="Ask a language model the OLMES questions in two forms while it trains, and see where multiple "
        "choice overtakes cloze.",
    )
    top.add_argument("--version", action="version", version=f"olmes-monitor {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (_add_data, _add_show):
        add(commands)
    return top


def _add_data(commands: Commands) -> None:
    command = commands.add_parser(
        "data",
        help="fetch the official questions once, and list the suites",
        description="Fetch and cache the official questions, unless they are cached, and print where they are. "
        "The folder is $OLMES_MONITOR_CACHE if set, else olmes_monitor in the user's cache folder.",
    )
    command.add_argument("--from", dest="wheel", metavar="FILE", type=Path, help="take the wheel FILE, fetch nothing")
    command.add_argument("--list", action="store_true", help="print the suites, their tasks and fingerprints")
    command.set_defaults(run=_data)


def _data(arguments: argparse.Namespace) -> int:
    from olmes_monitor.suite import cache

    folder = cache.ensure(arguments.wheel)
    cache.read_manifest(folder)
    print(folder)
    if arguments.list:
        _print_suites()
    return 0


def _print_suites() -> None:
    from rich.console import Console
    from rich.table import Table

    from olmes_monitor.suite import load_suite
    from olmes_monitor.suite.olmes import OLMES
    from olmes_monitor.suite.suites import SUITES

    suites = {name: load_suite(name) for name in SUITES}
    table = Table(show_footer=True)
    table.add_column("task", "fingerprint")
    for name, suite in suites.items():
        table.add_column(name, suite.fingerprint, justify="right", no_wrap=True)
    table.add_column("in the split", justify="right")
    table.add_column("split")
    table.add_column("normalization")
    for name, official in OLMES.items():
        counts = [f"{len(suite.tasks[name].questions)}" for suite in suites.values()]
        table.add_row(name, *counts, f"{official.count}", official.split, official.normalization)
    # Off a terminal rich assumes 80 columns and would cut the table; a file has no width.
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _add_show(commands: Commands) -> None:
    command = commands.add_parser(
        "show",
        help="print the exact prompts of a question",
        description="Print the exact prompts of a question in both formulations, with the right answer marked.",
    )
    command.add_argument("task", metavar="TASK", help="an OLMES task, for example arc_challenge")
    command.add_argument("id", metavar="ID", nargs="?", help="the question's id; the first question if left out")
    command.set_defaults(run=_show)


def _show(arguments: argparse.Namespace) -> int:
    from olmes_monitor.suite import FORMULATIONS, cache
    from olmes_monitor.suite.suites import check_task_name, load_task

    check_task_name(arguments.task)
    folder = cache.ensure()
    task = load_task(folder, arguments.task)
    question = task.questions[0] if arguments.id is None else _find(task, arguments.id)
    print("\n\n".join(_prompts(task, question, formulation) for formulation in FORMULATIONS))
    return 0


def _find(task: Task, id: str) -> Question:
    for question in task.questions:
        if question.id == id:
            return question
    import difflib

    near = difflib.get_close_matches(id, [question.id for question in task.questions], n=3, cutoff=0.5)
    examples = near or [question.id for question in task.questions[:3]]
    raise SetupError(f"{task.name} has no question {id!r}; ids look like {', '.join(examples)}")


def _prompts(task: Task, question: Question, formulation: Formulation) -> str:
    """One formulation of a question as text: each distinct context once, its continuations quoted under it."""
    requests = task.requests(question, formulation)
    lines: list[str] = [f"──── {task.name}  {question.id}  {formulation}"]
    context = None
    for number, request in enumerate(requests):
        if request.context != context:
            context = request.context
            lines += [context, "────"]
        mark = "gold" if number % len(question.choices) == question.gold else ""
        lines.append(f"{mark:>4} {request.continuation!r}")
    return "\n".join(lines)
