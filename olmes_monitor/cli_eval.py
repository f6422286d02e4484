"""`olmes-monitor eval`: score one saved model and print the table a paper would."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olmes_monitor.errors import SetupError

if TYPE_CHECKING:
    import torch

    from olmes_monitor.record import Evaluation

BOS = {"auto": "auto", "true": True, "false": False}
DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "*.tiktoken")
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def run(arguments: argparse.Namespace) -> int:
    """Score the model; 0 if every task has its values, 1 if some could not be had (the table says why).

    Raises SetupError for a model, tokenizer, dtype or device that is not there, DataError, RecordError and
    EvaluationError as `load_suite`, `Recorder` and `score` do.
    """
    # Of all that is printed on the way (progress, warnings, a model's own code) nothing may end up in the JSON.
    with contextlib.redirect_stdout(sys.stderr):
        evaluation = _evaluate(arguments)
    if arguments.json:
        from olmes_monitor.record.files import plain

        line = {"model": arguments.model, **evaluation.to_json()}
        print(json.dumps(plain(line), ensure_ascii=False, allow_nan=False))
    elif arguments.csv:
        from olmes_monitor.report.tables import evaluation_frame

        evaluation_frame(evaluation).to_csv(sys.stdout, index=False)
    else:
        _print_table(evaluation, arguments.model)
    return 0 if evaluation.complete else 1


def load_tokenizer(name: str, trust_remote_code: bool = False) -> Any:
    """A tokenizer from a folder or a hub id. Raises SetupError, in one line, if there is none."""
    from transformers import AutoTokenizer

    _check_place(name)
    if Path(name).is_dir() and not any(any(Path(name).glob(kind)) for kind in TOKENIZER_FILES):
        raise SetupError(f"{name} has no tokenizer; name one with --tokenizer")
    with _in_one_line(f"{name} has no usable tokenizer", "name one with --tokenizer"):
        return AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code)


def load_model(name: str, dtype: str, device: torch.device, trust_remote_code: bool = False) -> torch.nn.Module:
    """A causal language model from a folder or a hub id, on its device.

    Raises SetupError, in one line, if there is none or the file lacks some of its weights: a model whose missing
    weights were drawn at random would have scores like any other.
    """
    import torch
    from transformers import AutoModelForCausalLM

    kind = "auto" if dtype == "auto" else getattr(torch, dtype)
    with _in_one_line(f"{name} cannot be loaded as a causal language model"):
        model, loading = AutoModelForCausalLM.from_pretrained(
            name, dtype=kind, trust_remote_code=trust_remote_code, output_loading_info=True
        )
    absent = sorted(loading["missing_keys"]) + sorted(str(key) for key in loading["mismatched_keys"])
    if absent:
        raise SetupError(f"{name} lacks {len(absent)} of the model's weights, first {absent[0]}; nothing was scored")
    with _in_one_line(f"the model cannot be put on {device}"):
        return model.to(device)


def _evaluate(arguments: argparse.Namespace) -> Evaluation:
    from rich.console import Console
    from transformers.utils import logging as transformers_logging

    from olmes_monitor.record import Point
    from olmes_monitor.record.store import Recorder
    from olmes_monitor.report.progress import show_progress
    from olmes_monitor.scoring.score import score
    from olmes_monitor.suite import load_suite

    _check_place(arguments.model)
    if arguments.dtype not in DTYPES:
        raise SetupError(f"there is no dtype {arguments.dtype!r}; it is one of {', '.join(DTYPES)}")
    device = pick_device(arguments.device)
    if Path(arguments.model).is_dir() and not (Path(arguments.model) / "config.json").is_file():
        raise SetupError(f"{arguments.model} has no config.json, so it is no model in transformers format")
    suite = load_suite(arguments.suite, arguments.tasks, arguments.limit)
    # All that can be wrong is found out before a large model is loaded, and before it is scored.
    recorder = None if arguments.out is None else Recorder(arguments.out)
    transformers_logging.disable_progress_bar()
    tokenizer = load_tokenizer(arguments.tokenizer or arguments.model, arguments.trust_remote_code)
    model = load_model(arguments.model, arguments.dtype, device, arguments.trust_remote_code)
    point = Point(tokens=0, time=time.time(), checkpoint=arguments.model)
    with show_progress(Console(stderr=True), f"{arguments.model} · {suite.name}") as progress:
        evaluation = score(
            model,
            tokenizer,
            suite,
            point=point,
            progress=progress,
            bos=BOS[arguments.bos],
            permutations=arguments.permutations,
            batch_tokens="auto" if arguments.batch_tokens is None else arguments.batch_tokens,
        )
    if recorder is not None:
        recorder.write(evaluation)
    return evaluation


def _print_table(evaluation: Evaluation, model: str) -> None:
    from rich.console import Console
    from rich.markup import escape

    from olmes_monitor.report.terminal import evaluation_table

    table = evaluation_table(evaluation)
    # The usual title says at which token of a training run; a model by itself has none.
    seconds = evaluation.cost["seconds"]
    table.title = escape(f"{model}, suite {evaluation.suite} {evaluation.fingerprint}, {seconds:.0f} s")
    Console(width=None if sys.stdout.isatty() else 100).print(table)


def _check_place(name: str) -> None:
    """A folder must be there; what could be a hub id is left to transformers."""
    path = Path(name)
    if path.is_dir():
        return
    if path.is_file():
        raise SetupError(f"{name} is a file; name the folder it is in (with config.json and the weights)")
    if not HUB_ID.fullmatch(name) or name.startswith(".") or (path.parent.is_dir() and len(path.parts) > 1):
        raise SetupError(f"there is no folder {name}")


def pick_device(name: str | None) -> torch.device:
    """The device of that name, else the accelerator, else the CPU. Raises SetupError, in one line, if it cannot be used."""
    import torch

    if name is None:
        found = torch.accelerator.current_accelerator()
        return torch.device("cpu") if found is None or not torch.accelerator.is_available() else found
    with _in_one_line(f"device {name!r} cannot be used"):
        device = torch.device(name)
        torch.empty(1, device=device)
        return device


@contextlib.contextmanager
def _in_one_line(problem: str, mend: str = "") -> Iterator[None]:
    """Turn whatever a library raises into one line that begins with `problem`."""
    try:
        yield
    except Exception as error:
        cause = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        if "trust_remote_code" in str(error):
            mend = "its code is run only with --trust-remote-code"
        raise SetupError(f"{problem}: {cause}" + (f"; {mend}" if mend else "")) from error
