"""The command `olmes-monitor`.

One `_add_<command>` function declares a command's arguments; what runs it and returns the exit code is a `_<command>`
function here or `run` of a module `cli_<command>`. Heavy imports stay inside those, so that `--help` answers at once.
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
from olmes_monitor.errors import OLMESError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command: 0 when it went well, 2 for an error told in one line, 130 when interrupted; eval: 1 in part."""
    arguments = parser().parse_args(argv)
    # force: with a second call in one process (tests, notebooks) the lines go to the present stderr. Our own lines alone:
    # other libraries tell at INFO what concerns nobody here (fontTools, a hundred lines for each PDF).
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr, force=True)
    logging.getLogger("olmes_monitor").setLevel(logging.INFO)
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
    for add in (_add_data, _add_show, _add_eval, _add_scan, _add_report, _add_follow, _add_explain, _add_upload):
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
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the list as one JSON object")
    form.add_argument("--csv", action="store_true", help="the list as one line a suite and task")
    command.set_defaults(run=_data)


def _data(arguments: argparse.Namespace) -> int:
    from olmes_monitor.suite import cache

    folder = cache.ensure(arguments.wheel)
    cache.read_manifest(folder)
    if arguments.json or arguments.csv:
        _print_suites_as_data(arguments.json)
        return 0
    print(folder)
    if arguments.list:
        _print_suites()
    return 0


def _print_suites_as_data(as_json: bool) -> None:
    """{suite: {fingerprint, tasks: {task: questions}}}, or a line for each suite and task."""
    import csv
    import json

    from olmes_monitor.suite import load_suite
    from olmes_monitor.suite.suites import SUITES

    suites = {name: load_suite(name) for name in SUITES}
    counts = {name: {task: len(t.questions) for task, t in suite.tasks.items()} for name, suite in suites.items()}
    if as_json:
        print(json.dumps({name: {"fingerprint": s.fingerprint, "tasks": counts[name]} for name, s in suites.items()}))
        return
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["suite", "fingerprint", "task", "questions"])
    for name, suite in suites.items():
        table.writerows([name, suite.fingerprint, task, count] for task, count in counts[name].items())


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
        description="Print the exact prompts of a question in both formulations, with every space visible (·) and the "
        "right answer marked; with a tokenizer, as tokens with their ids.",
    )
    command.add_argument("task", metavar="TASK", help="an OLMES task, for example arc_challenge")
    command.add_argument("id", metavar="ID", nargs="?", help="the question's id; the first question if left out")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--tokenizer", metavar="FOLDER", help="show the tokens of this tokenizer (folder or hub id)")
    form.add_argument("--plain", action="store_true", help="the text as it is, to copy")
    command.set_defaults(run=_show)


def _show(arguments: argparse.Namespace) -> int:
    from olmes_monitor import cli_show

    return cli_show.run(arguments)


def _add_eval(commands: Commands) -> None:
    command = commands.add_parser(
        "eval",
        help="score a saved model",
        description="Score a Hugging Face model, in a folder or on the hub, in both formulations and print the table. "
        "Exit code 0, or 1 where some task has no value (the table says why), or 2 for an error.",
    )
    command.add_argument("model", metavar="MODEL", help="a folder in transformers format, or a hub id")
    command.add_argument("--suite", default="monitor", help="quick, monitor (default) or standard")
    command.add_argument("--tasks", metavar="A,B", help="only these tasks")
    command.add_argument("--limit", metavar="N", type=int, help="at most N questions a task")
    command.add_argument("--device", help="cpu, cuda, cuda:1, mps; the accelerator if there is one, by default")
    command.add_argument("--dtype", default="auto", help="float32, bfloat16, float16 or float64; by default as saved")
    command.add_argument(
        "--bos", choices=("auto", "true", "false"), default="auto", help="a BOS in front (auto: as the tokenizer does)"
    )
    command.add_argument(
        "--permutations",
        choices=("none", "cyclic"),
        default="none",
        help="cyclic: ask MCF in every cyclic order of the choices too (debiased accuracy and spread)",
    )
    command.add_argument("--batch-tokens", metavar="N", type=int, help="tokens of one forward call")
    command.add_argument("--tokenizer", metavar="FOLDER", help="another tokenizer than the model's own")
    command.add_argument("--trust-remote-code", action="store_true", help="let the model's own code run")
    command.add_argument("--out", metavar="FOLDER", type=Path, help="keep every log-likelihood in FOLDER")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    form.add_argument("--csv", action="store_true", help="print one line a task instead")
    command.set_defaults(run=_eval)


def _eval(arguments: argparse.Namespace) -> int:
    from olmes_monitor import cli_eval

    return cli_eval.run(arguments)


def _add_scan(commands: Commands) -> None:
    command = commands.add_parser(
        "scan",
        help="score saved checkpoints: the same curve, after or beside training",
        description="Score every checkpoint in folders, in order of training, into the same record as a run's own "
        "evaluations; again later, only what is new. Exit code 0 if all are scored, 1 if some could not be (the account "
        "says why), 2 for an error, 130 when interrupted; what is scored is kept in any case. docs/scan.md has more.",
    )
    command.add_argument("places", metavar="DIR", nargs="+", help="a folder with checkpoints, a checkpoint, a hub id")
    command.add_argument(
        "--list", action="store_true", help="print what would be scored, in order, and what not and why"
    )
    which = command.add_argument_group("which checkpoints")
    which.add_argument("--every-nth", metavar="N", type=int, help="the first, and every Nth after it")
    which.add_argument("--last", metavar="N", type=int, help="only the last N")
    which.add_argument("--revisions", metavar="PATTERN", help="of a hub repository, for example 'stage1-step*'")
    which.add_argument(
        "--watch", metavar="SECONDS", type=float, nargs="?", const=30.0, help="go on as checkpoints land"
    )
    which.add_argument("--until-step", metavar="N", type=int, help="ends --watch once step N is scored")
    which.add_argument(
        "--find-crossover",
        metavar="TASK",
        nargs="?",
        const="average",
        help="score only the few that show where the curves cross (of a task, or average)",
    )
    asked = command.add_argument_group("what is asked")
    asked.add_argument("--suite", default="monitor", help="quick, monitor (default) or standard")
    asked.add_argument("--tasks", metavar="A,B", help="only these tasks")
    asked.add_argument("--limit", metavar="N", type=int, help="at most N questions a task")
    asked.add_argument("--bos", choices=("auto", "true", "false"), default="auto", help="as for eval")
    axis = command.add_argument_group("where they stand")
    axis.add_argument("--tokens-per-step", metavar="N", help="tokens of an optimizer step, where none are saved: 4M")
    axis.add_argument("--axis", choices=("tokens", "steps"), default="tokens", help="draw against steps instead")
    load = command.add_argument_group("how they are loaded")
    load.add_argument("--tokenizer", metavar="FOLDER", help="where neither the checkpoint nor its parent has one")
    load.add_argument("--config", metavar="FOLDER", help="config.json's folder, for weights that have none")
    load.add_argument("--model-factory", metavar="PKG.MOD:FUNC", help="makes the model, where no config does")
    load.add_argument("--base", metavar="FOLDER", help="the model that adapters belong to")
    load.add_argument("--dtype", default="auto", help="float32, bfloat16, float16 or float64; by default as saved")
    load.add_argument("--device", help="cpu, cuda, cuda:1, mps; the accelerator if there is one, by default")
    load.add_argument("--device-map", metavar="MAP", help="transformers' own, for a model beyond one device: auto")
    load.add_argument("--batch-tokens", metavar="N", type=int, help="tokens of one forward call")
    load.add_argument("--allow-pickle", action="store_true", help="read files that could run code")
    load.add_argument("--trust-remote-code", action="store_true", help="let the model's own code run")
    load.add_argument(
        "--split",
        choices=("questions", "checkpoints"),
        default="questions",
        help="what the processes of torchrun or srun share: each checkpoint's questions (default), or the checkpoints",
    )
    shown = command.add_argument_group("what comes out")
    shown.add_argument("--out", metavar="FOLDER", type=Path, help="the run's folder; by default the first DIR")
    form = shown.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object instead of the tables")
    form.add_argument("--csv", action="store_true", help="print one line an evaluation and task instead")
    shown.add_argument("--wandb", action="store_true", help="upload the curve as a W&B run, as `upload` does")
    command.set_defaults(run=_scan)


def _scan(arguments: argparse.Namespace) -> int:
    from olmes_monitor import cli_scan

    return cli_scan.run(arguments)


def _add_report(commands: Commands) -> None:
    command = commands.add_parser(
        "report",
        help="runs as one page that opens offline, with pictures and tables",
        description="Write one self-contained HTML page of a run, or of several aligned on tokens, and print the verdicts. "
        "Exit code 0, or 1 where some curve has no verdict (the table says which), or 2 for an error. docs/report.md "
        "has more.",
    )
    command.add_argument("runs", metavar="RUN", nargs="*", help="a run's folder")
    command.add_argument("--fingerprint", metavar="HEX", help="which suite, where a record holds several")
    command.add_argument(
        "--watch", metavar="SECONDS", type=float, nargs="?", const=30.0, help="go on as evaluations arrive"
    )
    table = command.add_argument_group("accuracies from elsewhere")
    table.add_argument(
        "--curves", metavar="FILE.csv", type=Path, help="with the columns tokens or step, task, cf, mcf, and n and run"
    )
    table.add_argument("--columns", metavar="OURS=THEIRS,…", help="the file's names of these columns")
    table.add_argument(
        "--questions", metavar="TASK=N,…", help="questions of a task (or N for all), where there is no column n"
    )
    table.add_argument("--tokens-per-step", metavar="N", type=float, help="where the file has steps alone")
    shown = command.add_argument_group("what comes out")
    shown.add_argument("-o", "--output", metavar="FILE", default="report.html", help="the page (report.html)")
    for kind in ("png", "svg", "pdf"):
        shown.add_argument(f"--{kind}", action="store_true", help=f"a picture beside the page, ending in .{kind}")
    shown.add_argument("--width", metavar="INCHES", type=float, help="of the pictures; 6.75 is a page of a paper")
    form = shown.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    form.add_argument("--csv", action="store_true", help="print one line an evaluation, task and normalization instead")
    command.set_defaults(run=_report)


def _report(arguments: argparse.Namespace) -> int:
    from olmes_monitor import cli_report

    return cli_report.run(arguments)


def _add_follow(commands: Commands) -> None:
    command = commands.add_parser(
        "follow",
        help="a run in the terminal, live",
        description="Show both curves of every task of a run, and its verdicts, as evaluations arrive. Ctrl-C ends.",
    )
    command.add_argument("run_folder", metavar="RUN", help="a run's folder")
    command.add_argument("--fingerprint", metavar="HEX", help="which suite, where the record holds several")
    command.add_argument("--every", metavar="SECONDS", type=float, default=5.0, help="between two looks (5)")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--once", action="store_true", help="as it stands now, and end")
    form.add_argument("--json", action="store_true", help="print one JSON object, and end")
    form.add_argument("--csv", action="store_true", help="print one line a verdict, and end")
    command.set_defaults(run=_follow)


def _follow(arguments: argparse.Namespace) -> int:
    from olmes_monitor import cli_follow

    return cli_follow.run(arguments)


def _add_explain(commands: Commands) -> None:
    command = commands.add_parser(
        "explain",
        help="why multiple choice overtook cloze on a task of a run",
        description="What turned around a task's crossing: which questions, whether multiple choice learned the form or "
        "new answers, label bias and label mass; with examples. Without a crossing the run's beginning and its end are "
        "compared. The questions' texts come from the local cache; nothing is fetched.",
    )
    command.add_argument("run_folder", metavar="RUN", help="a run's folder")
    command.add_argument("task", metavar="TASK", help="a task of the run, for example arc_easy")
    command.add_argument(
        "--examples", metavar="N", type=int, default=3, help="questions shown of each sort (default 3)"
    )
    command.add_argument("--fingerprint", metavar="HEX", help="which suite, where the record holds several")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object instead, with every question")
    form.add_argument("--csv", action="store_true", help="print one line a question instead")
    command.set_defaults(run=_explain)


def _explain(arguments: argparse.Namespace) -> int:
    from olmes_monitor import cli_explain

    return cli_explain.run(arguments)


def _add_upload(commands: Commands) -> None:
    command = commands.add_parser(
        "upload",
        help="put a run's evaluations into a W&B run",
        description="Put the evaluations of a run's record into a W&B run of their own, in the group of the run that training "
        "logs to. Again later, it adds what is new. Superseded and failed evaluations are left out. With WANDB_MODE=offline "
        "a session is written that holds them all.",
    )
    command.add_argument("run_folder", metavar="RUN", help="a run's folder")
    command.add_argument("--project", metavar="NAME", help="W&B project; the training run's by default")
    command.add_argument("--group", metavar="NAME", help="W&B group; the training run's, or its id, by default")
    command.add_argument(
        "--run-id", metavar="ID", help="W&B run to write into; the last upload's, or a new one, by default"
    )
    command.add_argument("--fingerprint", metavar="HEX", help="which suite, where the record holds several")
    command.add_argument(
        "--force",
        action="store_true",
        help="write into --run-id even if it is the training's own, or was not made here",
    )
    command.add_argument(
        "--workspace", action="store_true", help="save a ready layout in the project too (needs wandb-workspaces)"
    )
    command.set_defaults(run=_upload)


def _upload(arguments: argparse.Namespace) -> int:
    from olmes_monitor import cli_upload

    return cli_upload.run(arguments)
