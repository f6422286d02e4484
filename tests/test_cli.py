"""The command line: what it prints, its exit codes, and how fast it answers."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from olmes_monitor import cli


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
    from olmes_monitor.suite.cache import ensure
    from olmes_monitor.suite.suites import load_task

    name, *id = arguments
    assert cli.main(["show", *arguments]) == 0
    printed = capsys.readouterr().out
    task = load_task(ensure(), name)
    question = next(q for q in task.questions if q.id == id[0]) if id else task.questions[0]
    for formulation in ("cf", "mcf"):
        requests = task.requests(question, formulation)
        assert all(request.context in printed for request in requests)
        assert f"gold {requests[question.gold].continuation!r}" in printed
    marks = printed.count("\ngold ")
    assert marks == 3 if task.unconditional else marks == 2


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
