"""`olmes-monitor scan`: a directory of checkpoints becomes the same curve."""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import logging
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olmes_monitor.errors import OLMESError, SetupError

if TYPE_CHECKING:
    import torch

    from olmes_monitor.checkpoints.checkpoint import Checkpoint
    from olmes_monitor.checkpoints.job import Job
    from olmes_monitor.checkpoints.scan import Outcome, Scan
    from olmes_monitor.checkpoints.search import Lead
    from olmes_monitor.checkpoints.store import Results
    from olmes_monitor.record import Run

logger = logging.getLogger("olmes_monitor")


def run(arguments: argparse.Namespace) -> int:
    """Scan; 0 if every checkpoint is scored, 1 if some are not (the account says why), 130 if interrupted.

    Raises SetupError, DataError and RecordError for what concerns them all.
    """
    check(arguments)
    from olmes_monitor.checkpoints.job import find_job

    job = find_job()
    with contextlib.redirect_stdout(sys.stderr):  # nothing that is said on the way may end up in JSON or CSV
        listed = _list(arguments, job) if arguments.list else None
        if not arguments.list:
            with _terminable():
                scan, interrupted = _scan(arguments, job)
            if arguments.wandb and job.rank == 0:
                _upload(scan)
    if listed is not None:
        if job.rank == 0:
            _tell_list(arguments, *listed)
        return 0
    if job.rank == 0:
        _tell(arguments, scan)
    bad = any(not outcome.good for outcome in scan.outcomes.values())
    return 130 if interrupted else int(bad)


def check(arguments: argparse.Namespace) -> None:
    """Options that do not go together. Raises SetupError."""
    searching = arguments.find_crossover is not None
    if arguments.watch is not None and (arguments.last or arguments.every_nth or searching):
        raise SetupError(
            "--watch takes every checkpoint as it lands; leave out --last, --every-nth and --find-crossover"
        )
    if arguments.until_step is not None and arguments.watch is None:
        raise SetupError("--until-step says when --watch ends; give --watch too")
    if searching and arguments.split == "checkpoints":
        raise SetupError("--find-crossover takes one checkpoint after another; use it with --split questions")
    for name in ("last", "every_nth"):
        if getattr(arguments, name) is not None and getattr(arguments, name) < 1:
            raise SetupError(f"--{name.replace('_', '-')} takes a number from 1 on, got {getattr(arguments, name)}")


def folder_of(places: Sequence[str], out: Path | None) -> Path:
    """The record's folder: `out`/olmes, else that of the first place; a run's where the place is its folder `checkpoints`.

    Raises SetupError where the first place is no folder and nothing else was said.
    """
    if out is not None:
        return out / "olmes"
    first = Path(places[0])
    if not first.exists():
        raise SetupError(f"there is no folder {places[0]}; of a hub repository, say with --out where the record goes")
    base = first if first.is_dir() else first.parent
    above = base.absolute().parent / "olmes"
    if base.absolute().name == "checkpoints" and not (base / "olmes").exists() and above.is_dir():
        return above
    return base / "olmes"


def finder(arguments: argparse.Namespace) -> Callable[[], list[Checkpoint]]:
    """Looks for what the arguments name, as they choose among it. Raises SetupError where nothing of it is dated."""
    from olmes_monitor.checkpoints.dates import UNKNOWN, UNKNOWN_STEP
    from olmes_monitor.checkpoints.find import find_checkpoints
    from olmes_monitor.schedule import parse_tokens

    per_step = arguments.tokens_per_step
    settings = {
        "tokens_per_step": None if per_step is None else parse_tokens(per_step, "--tokens-per-step"),
        "revisions": arguments.revisions,
        "axis": arguments.axis,
        "allow_pickle": arguments.allow_pickle,
    }

    def find() -> list[Checkpoint]:
        try:
            found = find_checkpoints(arguments.places, **settings)
        except SetupError:
            if arguments.watch is not None and all(Path(place).is_dir() for place in arguments.places):
                return []  # the first is still to land
            raise
        undated = [(checkpoint.problem or "").startswith((UNKNOWN, UNKNOWN_STEP)) for checkpoint in found]
        if found and not arguments.list and all(undated):
            raise SetupError(f"{found[0].path}{f' and {len(found) - 1} more' if found[1:] else ''}: {found[0].problem}")
        _warn_of_two_runs(found)
        found = found[:: arguments.every_nth or 1]
        return found[-arguments.last :] if arguments.last else found

    return find


def _warn_of_two_runs(found: Sequence[Checkpoint]) -> None:
    """Of two checkpoints at the same tokens a curve can hold only one. Said once."""
    first: dict[int, Checkpoint] = {}
    for checkpoint in found:
        if checkpoint.tokens is None or checkpoint.problem is not None:
            continue
        other = first.setdefault(checkpoint.tokens, checkpoint)
        if other is not checkpoint:
            message = (
                f"{other.path} and {checkpoint.path} differ and both stand at {checkpoint.tokens:,}: the curve holds"
            )
            warnings.warn(f"{message} the latter. If they are of two runs, scan each by itself", stacklevel=2)
            return


def _list(arguments: argparse.Namespace, job: Job) -> tuple[list[Checkpoint], list[Checkpoint]]:
    """What is found, in order, and which of it is scored already; both empty on other ranks than 0."""
    from olmes_monitor.checkpoints.store import Results
    from olmes_monitor.record.store import LINES
    from olmes_monitor.suite import load_suite

    if job.rank != 0:
        return [], []
    found = finder(arguments)()
    folder = folder_of(arguments.places, arguments.out)
    known: list[Checkpoint] = []
    if (folder / LINES).exists():
        results = Results(folder, load_suite(arguments.suite, arguments.tasks, arguments.limit), arguments.axis)
        known = [checkpoint for checkpoint in found if checkpoint.tokens is not None and results.has(checkpoint)]
    return found, known


def _tell_list(arguments: argparse.Namespace, found: list[Checkpoint], known: list[Checkpoint]) -> None:
    """What would be scored and what not and why, as the arguments ask for it."""
    from olmes_monitor.report.scan import found_rows, found_table

    rows = found_rows(found, known)
    if arguments.json:
        print(json.dumps({"checkpoints": rows}, ensure_ascii=False))
    elif arguments.csv:
        writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        _stdout().print(found_table(found, known, arguments.axis))


def _scan(arguments: argparse.Namespace, job: Job) -> tuple[Scan, bool]:
    """The scan as it ended, and whether it was interrupted."""
    from rich.console import Console

    from olmes_monitor.checkpoints.scan import Scan
    from olmes_monitor.checkpoints.skeleton import Skeleton
    from olmes_monitor.checkpoints.store import Results
    from olmes_monitor.report.scan import ScanProgress
    from olmes_monitor.scoring.parallel import Ranks
    from olmes_monitor.suite import load_suite

    folder = folder_of(arguments.places, arguments.out)
    find = finder(arguments)
    if arguments.watch is None and job.rank == 0:
        find()  # what is wrong with the places is told before models and questions are loaded
    device = _device(job, arguments.device)
    suite = load_suite(arguments.suite, arguments.tasks, arguments.limit)
    results = Results(folder, suite, arguments.axis)
    together = job.size > 1 and arguments.split == "questions"
    if together:
        from olmes_monitor.checkpoints.job import join

        join(job, device)
    skeleton = Skeleton(
        suite,
        _loading(arguments, device),
        Ranks.current(device) if together else None,
        bos={"auto": "auto", "true": True, "false": False}[arguments.bos],
        batch_tokens="auto" if arguments.batch_tokens is None else arguments.batch_tokens,
    )
    progress = ScanProgress(Console(stderr=True) if job.rank == 0 or not together else None, arguments.axis)
    scan = Scan(skeleton, results, find, progress)
    interrupted = False
    try:
        _go(arguments, job, scan, results, device)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        progress.close()
    if together and not interrupted:
        import torch.distributed as dist

        dist.destroy_process_group()
    return scan, interrupted


def _go(arguments: argparse.Namespace, job: Job, scan: Scan, results: Results, device: torch.device) -> None:
    """One pass, a watch, a search, or a worker's share."""
    if arguments.watch is not None:
        from olmes_monitor.checkpoints.watch import watch

        upload = (lambda: _upload(scan)) if arguments.wandb and job.rank == 0 else None
        watch(scan, arguments.watch, arguments.until_step, idle=upload)
    elif arguments.find_crossover is not None:
        _search(arguments.find_crossover, scan, results)
    elif job.size > 1 and arguments.split == "checkpoints":
        from olmes_monitor.checkpoints.job import name_of
        from olmes_monitor.checkpoints.split import Leases, open_store, share_checkpoints

        name = name_of(job, device)
        share_checkpoints(scan, Leases(lambda: open_store(results.recorder.folder, name)), job.size)
    else:
        scan.once()


def _search(task: str, scan: Scan, results: Results) -> None:
    """Score few checkpoints, so that the crossing is found."""
    from olmes_monitor.checkpoints.scan import from_first
    from olmes_monitor.checkpoints.search import lead_of, search
    from olmes_monitor.record.run import AVERAGE
    from olmes_monitor.record.store import load_run

    if task != AVERAGE and task not in results.suite.tasks:
        raise SetupError(
            f"the suite has no task {task!r}: --find-crossover takes average, {', '.join(results.suite.tasks)}"
        )
    found = [checkpoint for checkpoint in scan.find() if checkpoint.tokens is not None]

    def known() -> Mapping[int, Lead]:
        if not results.recorder.lines.exists():
            return {}
        curve = load_run(results.recorder.folder, results.suite.fingerprint).evaluations if results.any else []
        leads = {evaluation.point.tokens: lead_of(evaluation, task) for evaluation in curve}
        at = ((position, leads.get(checkpoint.tokens or 0)) for position, checkpoint in enumerate(found))
        return {position: lead for position, lead in at if lead is not None}

    search(scan, found, known, lambda choose: from_first(scan.ranks, choose))


def _tell(arguments: argparse.Namespace, scan: Scan) -> None:
    """The account, the curve, the verdicts and where they are: on stdout, as asked."""
    from olmes_monitor.record.store import load_run

    folder, suite = scan.results.recorder.folder, scan.results.suite
    run: Run | None = None
    with contextlib.suppress(OLMESError):  # nothing was scored: the account says so
        run = load_run(folder, suite.fingerprint)
    outcomes = sorted(scan.outcomes.values(), key=lambda outcome: outcome.checkpoint.tokens or 0)
    if arguments.json:
        from olmes_monitor.report.scan import as_json

        print(json.dumps(as_json(run, outcomes, folder, suite), ensure_ascii=False, allow_nan=False))
    elif arguments.csv:
        if run is not None:
            run.frame().to_csv(sys.stdout, index=False)
    else:
        _print(arguments, run, outcomes, folder)


def _print(arguments: argparse.Namespace, run: Run | None, outcomes: list[Outcome], folder: Path) -> None:
    from olmes_monitor.report.scan import account, agreement, curve_table
    from olmes_monitor.report.terminal import crossover_lines

    console = _stdout()

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    if run is not None:
        console.print(curve_table(run, outcomes, arguments.axis))
        for line in crossover_lines(run.crossovers()):
            console.print(line, highlight=False)
        if (same := agreement(run)) is not None:
            say(
                f"{same[0]} points were asked by the training loop too: log-likelihoods differ by at most {same[1]:.2g} nats "
                "(the curve has the loop's)"
            )
    for line in account(outcomes):
        say(line)
    say(f"record: {folder}; the page: olmes-monitor report {folder.parent}")


def _stdout() -> Any:
    from rich.console import Console

    # Off a terminal rich assumes 80 columns and would cut the table; a file has no width.
    return Console(width=None if sys.stdout.isatty() else 120)


def _upload(scan: Scan) -> None:
    """The curve as a W&B run of its own, in the training run's group. What fails is told; the record has everything."""
    from olmes_monitor.record.upload import upload

    try:
        done = upload(scan.results.recorder.folder, fingerprint=scan.results.suite.fingerprint)
    except OLMESError as error:
        logger.warning("nothing was uploaded to W&B: %s", error)
    else:
        print(f"W&B: {done.added} rows added, {done.rows} in all: {done.place}", file=sys.stderr)


def _loading(arguments: argparse.Namespace, device: torch.device) -> Any:
    from transformers.utils import logging as transformers_logging

    from olmes_monitor.checkpoints.skeleton import Loading
    from olmes_monitor.cli_eval import DTYPES

    if arguments.dtype not in DTYPES:
        raise SetupError(f"there is no dtype {arguments.dtype!r}; it is one of {', '.join(DTYPES)}")
    transformers_logging.disable_progress_bar()
    return Loading(
        device,
        arguments.dtype,
        arguments.config,
        arguments.model_factory,
        arguments.base,
        arguments.tokenizer,
        arguments.allow_pickle,
        arguments.trust_remote_code,
        arguments.device_map,
    )


def _device(job: Job, name: str | None) -> torch.device:
    """This process's: its own accelerator among those of its machine, else the CPU."""
    from olmes_monitor.cli_eval import pick_device

    found = pick_device(name)
    if job.size > 1 and found.type != "cpu" and found.index is None:
        found = pick_device(f"{found.type}:{job.local_rank}")
    if found.type == "cuda":
        import torch

        torch.cuda.set_device(found)
    return found


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the scan as Ctrl-C does: what is scored is kept, and the account is printed."""

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
