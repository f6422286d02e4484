"""Every example runs, as a user starts it, in a short form."""

import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from wandb_file import history, offline_run

from olmes_monitor import load_run

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, *arguments, cwd, **variables):
    # A W&B service of this process would resolve the example's folder from its own working directory.
    environment = {**os.environ, "COLUMNS": "100", **variables}
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


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_fabric_on_one_process_and_two(devices, tmp_path):
    run("fabric.py", "--steps", "6", "--devices", str(devices), cwd=tmp_path)
    record = load_run(tmp_path / "runs" / "fabric")
    assert [(e.point.tokens, e.point.step) for e in record.evaluations] == [(0, 0), (20480, 5), (24576, 6)]
    last = record.evaluations[-1]
    assert last.cost["ranks"] == devices
    assert last.settings["path"] == "packed"
    assert last.point.checkpoint == "runs/fabric/last.ckpt"


@pytest.mark.slow
def test_trackio_gets_every_row(tmp_path):
    """The real trackio where it is installed, else a stand-in with its calls (its pins are not ours, see docs/wandb.md)."""
    stand_in = """
import json
rows = []
def init(project, config): assert config["fingerprint"]
def log(metrics): rows.append(metrics)
def alert(title, text): pass
def finish(): json.dump(rows, open("rows.json", "w"))
"""
    if importlib.util.find_spec("trackio") is None:
        (tmp_path / "trackio.py").write_text(stand_in)
    environment = {"PYTHONPATH": str(tmp_path), "TRACKIO_DIR": str(tmp_path / "trackio")}
    run("trackio_example.py", "--steps", "6", cwd=tmp_path, **environment)
    evaluations = load_run(tmp_path / "runs" / "trackio_example").evaluations
    assert [e.point.step for e in evaluations] == [0, 5, 6]
    if (tmp_path / "rows.json").exists():
        rows = json.loads((tmp_path / "rows.json").read_text())
    else:
        with sqlite3.connect(tmp_path / "trackio" / "olmes_monitor.db") as database:
            rows = [json.loads(row) for (row,) in database.execute("select metrics from metrics order by id")]
    assert len(rows) == 6 + 3
    mine = [row for row in rows if "olmes/tokens" in row]
    assert [row["olmes/cf/arc_easy"] for row in mine] == [e.metrics["olmes/cf/arc_easy"] for e in evaluations]


def test_examples_are_short():
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) < 100, path.name
