"""Every example runs, as a user starts it, in a short form."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from wandb_file import history, offline_run

from olmes_monitor import load_run

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, *arguments, cwd):
    # A W&B service of this process would resolve the example's folder from its own working directory.
    environment = {**os.environ, "COLUMNS": "100"}
    environment.pop("WANDB_SERVICE", None)
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=cwd, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
def test_the_crossover_demo_leaves_records_a_wandb_run_and_a_picture(tmp_path):
    shown = run("crossover_demo.py", "--steps", "12", "--every", "20K", "--questions", "8", cwd=tmp_path)
    out = tmp_path / "runs" / "crossover_demo"
    record = load_run(out)
    assert [e.point.step for e in record.evaluations] == [0, 5, 10, 12]
    assert set(record.tasks) == {"arc_easy", "openbookqa"}
    rows = [row["olmes/tokens"] for row in history(offline_run(out)) if "olmes/tokens" in row]
    assert rows == [e.point.tokens for e in record.evaluations]
    assert (out / "crossover.png").read_bytes().startswith(b"\x89PNG")
    assert "scores mean nothing" in shown
    assert "crossover.png" in shown


@pytest.mark.slow
def test_the_twin_in_transformers(tmp_path):
    shown = run("transformers_trainer.py", "--steps", "6", "--every", "10K", "--questions", "6", cwd=tmp_path)
    record = load_run(tmp_path / "runs" / "transformers_trainer")
    assert [e.point.step for e in record.evaluations] == [0, 3, 5, 6]
    assert "average" in shown


@pytest.mark.slow
def test_a_loop_of_ones_own_resumes(tmp_path):
    run("own_loop.py", "--steps", "7", cwd=tmp_path)
    record = load_run(tmp_path / "runs" / "own_loop")
    assert [e.point.step for e in record.evaluations] == [0, 5, 10, 14]
    assert record.superseded == []


def test_examples_are_short():
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) < 100, path.name
