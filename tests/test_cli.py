"""The command line: what it prints, its exit codes, and how fast it answers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time

import pytest
from parts import make_llama
from transformers import AutoModelForCausalLM, AutoTokenizer

from olmes_monitor import Task, cli
from olmes_monitor.suite.cache import ensure
from olmes_monitor.suite.suites import load_task


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "olmes_monitor", *arguments], capture_output=True, text=True, **options
    )


def test_help_answers_at_once_and_names_the_commands():
    times = []
    for _ in range(3):
        started = time.perf_counter()
        done = run("--help")
        times.append(time.perf_counter() - started)
        assert done.returncode == 0
    assert "data" in done.stdout
    assert "show" in done.stdout
    assert "eval" in done.stdout
    assert min(times) < 0.5


def test_help_imports_nothing_heavy():
    program = (
        "import sys\nfrom olmes_monitor.cli import parser\nparser().format_help()\n"
        "print([m for m in ('torch', 'datasets', 'pyarrow', 'rich', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_data_prints_the_folder_alone_on_stdout():
    done = run("data", check=True)
    assert len(done.stdout.splitlines()) == 1
    assert done.stdout.strip().endswith("v1-61b08ab60c")


def test_data_list_has_every_count_and_fingerprint(capsys):
    from olmes_monitor.suite import load_suite

    assert cli.main(["data", "--list"]) == 0
    table = capsys.readouterr().out
    for name in ("standard", "monitor", "quick"):
        suite = load_suite(name)
        assert suite.fingerprint in table
        for task in suite.tasks:
            assert task in table
    mmlu = next(line for line in table.splitlines() if " mmlu " in line)
    assert [cell.strip() for cell in mmlu.strip("│").split("│")] == [
        "mmlu", "14042", "1000", "100", "14042", "test", "char",
    ]  # fmt: skip


@pytest.mark.parametrize("arguments", [["winogrande"], ["arc_challenge", "Mercury_SC_409171"], ["boolq", "7"]])
def test_show_prints_the_exact_prompts_with_gold_marked(arguments, capsys):
    name, *id = arguments
    task = load_task(ensure(), name)
    question = next(q for q in task.questions if q.id == id[0]) if id else task.questions[0]
    printed = {}
    for form in ("--plain", None):
        assert cli.main(["show", *arguments, *([form] if form else [])]) == 0
        printed[form] = capsys.readouterr().out
    for formulation in ("cf", "mcf"):
        requests = task.requests(question, formulation)
        assert all(request.context in printed["--plain"] for request in requests)
        assert f"gold {requests[question.gold].continuation}" in printed["--plain"]
        assert f"gold {requests[question.gold].continuation.replace(' ', '·')}" in printed[None]
        assert all(request.context.replace(" ", "·").replace("\n", "⏎\n") in printed[None] for request in requests)
    for text in printed.values():
        assert text.count("\ngold ") == (3 if task.unconditional else 2)


def test_show_with_a_tokenizer_prints_every_token_and_its_id(folder, capsys):
    from olmes_monitor.scoring.encode import Encoder

    assert cli.main(["show", "piqa", "--tokenizer", str(folder)]) == 0
    printed = capsys.readouterr().out
    task = load_task(ensure(), "piqa")
    encoder = Encoder(AutoTokenizer.from_pretrained(folder))
    single = Task("piqa", task.questions[:1], task.shots, task.template)
    for formulation in ("cf", "mcf"):
        text = printed.split(f" {formulation}\n")[1].split("\n──── ")[0]
        context, answers = text.split("\n────\n")
        lines = context.split("\n")
        request = encoder.encode_task(single, formulation).requests[0]
        assert [int(id) for line in lines[1::2] for id in line.split()] == request.ids[: request.start].tolist()
        shown = "".join(lines[0::2]).replace("|", "").replace("·", " ").replace("⏎", "\n")
        assert shown == task.requests(task.questions[0], formulation)[0].context
        first = answers.splitlines()[0]
        assert first.split("   ")[-1].split() == [str(id) for id in request.ids[request.start :]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    """A tiny random Llama with its tokenizer, saved as users have it."""
    path = tmp_path_factory.mktemp("model") / "tiny"
    make_llama().save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


QUICK = ["--suite", "quick", "--tasks", "openbookqa,piqa", "--limit", "3"]


def test_eval_prints_the_table_and_keeps_the_record(folder, tmp_path, capsys):
    from olmes_monitor import load_run, load_suite, score

    out = tmp_path / "run"
    assert cli.main(["eval", str(folder), *QUICK, "--device", "cpu", "--out", str(out)]) == 0
    table = capsys.readouterr().out
    for word in ("openbookqa", "piqa", "average", "†", "±", "CF", "MCF", "suite quick"):
        assert word in table
    kept = load_run(out).evaluations[0]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    expected = score(model, tokenizer, load_suite("quick", "openbookqa,piqa", 3))
    assert kept.metrics == pytest.approx(expected.metrics)
    assert kept.point.checkpoint == str(folder)
    assert kept.settings["dtype"] == "torch.float32"


def test_eval_json_is_one_object_and_nothing_else_on_stdout(folder):
    done = run(
        "eval",
        str(folder),
        *QUICK,
        "--json",
        "--dtype",
        "bfloat16",
        "--bos",
        "false",
        "--batch-tokens",
        "4096",
        "--permutations",
        "cyclic",
        check=True,
    )
    line = json.loads(done.stdout)
    assert line["model"] == str(folder)
    assert line["settings"]["dtype"] == "torch.bfloat16"
    assert line["settings"]["batch_tokens"] == 4096
    assert {"olmes/cf/piqa", "olmes/mcf/average"} <= set(line["metrics"])
    assert line["tasks"]["piqa"]["n"] == 3
    assert line["tasks"]["piqa"]["cyclic"]["questions"] == [3, 3]


def test_eval_says_which_weights_are_missing_instead_of_scoring_random_ones(folder, tmp_path, capsys):
    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    weights = load_file(broken / "model.safetensors")
    weights.pop("model.norm.weight")
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    assert cli.main(["eval", str(broken), *QUICK]) == 2
    captured = capsys.readouterr()
    assert "lacks 1 of the model's weights, first model.norm.weight; nothing was scored" in captured.err
    assert captured.out == ""


def test_eval_exits_with_1_where_a_task_has_no_value(folder, tmp_path, capsys):
    import torch

    model = AutoModelForCausalLM.from_pretrained(folder)
    torch.nn.init.constant_(model.lm_head.weight, float("nan"))
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    assert cli.main(["eval", str(tmp_path), *QUICK]) == 1
    assert "–" in capsys.readouterr().out


def test_eval_tells_what_is_wrong_in_one_line(folder, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "bare").mkdir()
    shutil.copy(folder / "config.json", tmp_path / "bare")
    (tmp_path / "taken").write_text("")
    tiny, empty, bare = str(folder), str(tmp_path / "empty"), str(tmp_path / "bare")
    for arguments, message in [
        ([str(tmp_path / "absent")], f"there is no folder {tmp_path}/absent"),
        (["./absent"], "there is no folder ./absent"),
        ([str(folder / "config.json")], "is a file; name the folder"),
        ([empty], "has no config.json"),
        ([bare], "has no tokenizer; name one with --tokenizer"),
        ([bare, "--tokenizer", tiny], "cannot be loaded as a causal language model"),
        ([tiny, "--tokenizer", empty], "has no tokenizer"),
        (["no-one/nothing"], "no-one/nothing has no usable tokenizer"),
        ([tiny, "--dtype", "int3"], "there is no dtype 'int3'; it is one of auto, float32"),
        ([tiny, "--device", "abacus"], "device 'abacus' cannot be used"),
        ([tiny, "--suite", "quik"], "did you mean quick"),
        ([tiny, "--tasks", "bool"], "did you mean boolq"),
        ([tiny, "--limit", "0"], "limit must be at least 1"),
        ([tiny, "--bos", "true"], "has no bos_token"),
        ([tiny, "--batch-tokens", "0"], "batch_tokens takes a positive int"),
        ([tiny, "--out", str(tmp_path / "taken")], "cannot make the record's folder"),
    ]:
        suite = [] if {"--suite", "--tasks", "--limit"} & set(arguments) else QUICK
        assert cli.main(["eval", *arguments, *suite]) == 2, arguments
        captured = capsys.readouterr()
        errors = [line for line in captured.err.splitlines() if line.startswith("olmes-monitor: error: ")]
        assert len(errors) == 1
        assert message in errors[0]
        assert captured.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "arc_chalenge"], "did you mean arc_challenge"),
        (["show", "piqa", "-x"], None),
        (["show", "piqa", "18380"], "piqa has no question '18380'; ids look like"),
        (["data", "--from", "absent.whl"], "there is no file absent.whl"),
        ([], None),
        (["nonsense"], None),
    ],
)
def test_errors_are_one_line_and_exit_code_2(arguments, message):
    done = run(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    if message:
        assert done.stderr.startswith("olmes-monitor: error: ")
        assert len(done.stderr.splitlines()) == 1
        assert message in done.stderr


def test_an_interrupt_exits_130(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("olmes_monitor.suite.cache.ensure", interrupted)
    assert cli.main(["data"]) == 130
    assert capsys.readouterr().err == "olmes-monitor: interrupted\n"


def test_a_reader_that_stops_early_is_no_error():
    command = f"{sys.executable} -m olmes_monitor show boolq | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""
