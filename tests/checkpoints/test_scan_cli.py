"""`olmes-monitor scan` in real processes: what it prints, its exit codes, signals at any moment, watching a run."""

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from made import save_ckpt
from parts import make_tokenizer
from scan_parts import TOKENS, same, save

from olmes_monitor import cli, load_run, load_suite
from olmes_monitor.checkpoints import scan

ASKED = ("--suite", "quick", "--tasks", "arc_easy,csqa", "--limit", "4", "--batch-tokens", "512", "--device", "cpu")
LONG = {"max_position_embeddings": 2048}


@pytest.fixture(scope="module")
def quick():
    return load_suite("quick", "arc_easy,csqa", 4)


@pytest.fixture(scope="module")
def words(quick):
    return make_tokenizer(quick)


@pytest.fixture(scope="module")
def saved(words, tmp_path_factory):
    """Six checkpoints, not to be written to."""
    folder = tmp_path_factory.mktemp("saved")
    for step in (1, 2, 3, 4, 9, 10):
        save(folder, step, words, **LONG)
    return folder


@pytest.fixture(scope="module")
def scanned(saved, tmp_path_factory):
    """The record of a scan that nothing disturbed."""
    out = tmp_path_factory.mktemp("scanned")
    assert cli.main(["scan", str(saved), *ASKED, "--out", str(out)]) == 0
    return load_run(out)


def start(*arguments, **options) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "olmes_monitor", "scan", *map(str, arguments), *ASKED]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **options
    )


def wait_for(process: subprocess.Popen, words: str, times: int = 1) -> None:
    """Read stderr until `words` was there."""
    for line in process.stderr:
        times -= words in line
        if not times:
            return
    raise AssertionError(f"the scan ended and never said {words!r}")


def equal_runs(one, other) -> None:
    assert [e.point.tokens for e in one.evaluations] == [e.point.tokens for e in other.evaluations]
    for i in range(len(one.evaluations)):
        same(one.scores(i), other.scores(i))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=["KILL", "TERM", "INT"])
def test_a_signal_loses_at_most_the_checkpoint_in_hand(saved, scanned, tmp_path, number):
    process = start(saved, "--out", tmp_path)
    wait_for(process, ": CF ", times=2)
    time.sleep(0.05)  # somewhere in the third
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == (130 if number != signal.SIGKILL else -signal.SIGKILL)
    kept = load_run(tmp_path)
    assert 2 <= len(kept.evaluations) < 6
    if number != signal.SIGKILL:
        assert f"{len(kept.evaluations)} scored" in out
        assert f"olmes-monitor report {tmp_path}" in out
    assert cli.main(["scan", str(saved), *ASKED, "--out", str(tmp_path)]) == 0
    run = load_run(tmp_path)
    assert run.superseded == []
    equal_runs(run, scanned)


def test_the_last_table_says_what_was_scored_and_what_not_and_the_exit_code_too(saved, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(scan, "PAUSE", 0.1)
    folder = tmp_path / "run"
    shutil.copytree(saved, folder)
    (folder / "checkpoint-2" / "trainer_state.json").write_text("{")
    config = folder / "checkpoint-3" / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    assert cli.main(["scan", str(folder), *ASKED]) == 1
    out = capsys.readouterr().out
    assert "4 scored, 1 incomplete, 1 failed" in out
    assert re.search(r"checkpoint-2: incomplete: its trainer_state.json", out)
    assert re.search(r"checkpoint-3: failed: .*layers\.2", out)
    row = next(line for line in out.splitlines() if "checkpoint-10" in line)
    assert re.search(r"10[kK] +10 +checkpoint-10 +\d.* ± .* scan \(now\)", row)
    assert re.search(r"not yet on average|average", out)
    assert f"record: {folder / 'olmes'}; the page: olmes-monitor report {folder}" in out
    assert cli.main(["scan", str(folder), *ASKED]) == 1
    assert "4 scored already, 1 incomplete, 1 failed" in capsys.readouterr().out


def test_list_shows_what_would_be_scored_in_order_and_scores_nothing(saved, tmp_path, capsys):
    assert cli.main(["scan", str(saved), *ASKED, "--out", str(tmp_path), "--last", "1"]) == 0
    capsys.readouterr()
    before = (tmp_path / "olmes" / "evaluations.jsonl").read_bytes()
    assert cli.main(["scan", str(saved), *ASKED, "--out", str(tmp_path), "--list"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip().startswith("checkpoint-")]
    assert [row[0] for row in rows] == [f"checkpoint-{step}" for step in (1, 2, 3, 4, 9, 10)]
    assert [row[3] for row in rows] == ["1,000", "2,000", "3,000", "4,000", "9,000", "10,000"]
    assert [" ".join(row[-3:]) for row in rows] == ["to be scored"] * 5 + ["state scored already"]
    assert (tmp_path / "olmes" / "evaluations.jsonl").read_bytes() == before


def test_json_and_csv_are_all_of_stdout(saved, tmp_path, capfd):
    assert cli.main(["scan", str(saved), *ASKED, "--out", str(tmp_path), "--every-nth", "3", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [c["step"] for c in found["checkpoints"]] == [1, 4]
    assert [c["state"] for c in found["checkpoints"]] == ["scored", "scored"]
    assert [e["point"]["tokens"] for e in found["curve"]] == [TOKENS, 4 * TOKENS]
    assert set(found["crossovers"]) == {"arc_easy", "csqa", "average"}
    assert cli.main(["scan", str(saved), *ASKED, "--out", str(tmp_path), "--every-nth", "3", "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capfd.readouterr().out)))
    assert [(row["tokens"], row["task"]) for row in rows][:3] == [("1000", t) for t in ("arc_easy", "csqa", "average")]
    assert len(rows) == 6


def test_steps_are_the_axis_only_on_request(saved, tmp_path, capsys, words):
    folder = tmp_path / "run"
    for step in (1, 2):
        (save(folder, step, words, **LONG) / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    assert cli.main(["scan", str(folder), *ASKED]) == 2
    error = capsys.readouterr().err
    assert all(way in error for way in ("--tokens-per-step", "OLMESCallback", "--axis steps"))
    assert not (folder / "olmes").exists()
    assert cli.main(["scan", str(folder), *ASKED, "--axis", "steps"]) == 0
    assert "checkpoint-2" in capsys.readouterr().out
    assert [(e.point.tokens, e.point.axis) for e in load_run(folder).evaluations] == [(1, "steps"), (2, "steps")]
    assert cli.main(["scan", str(folder), *ASKED, "--tokens-per-step", "4M"]) == 2
    assert "one curve has one axis" in capsys.readouterr().err
    assert cli.main(["scan", str(folder), *ASKED, "--tokens-per-step", "4M", "--out", str(tmp_path / "b")]) == 0
    assert [e.point.tokens for e in load_run(tmp_path / "b").evaluations] == [4_000_000, 8_000_000]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["/nowhere/at all"], "there is no"),
        ([".", "--watch", "--last", "3"], "--watch takes every checkpoint"),
        ([".", "--until-step", "3"], "give --watch too"),
        ([".", "--last", "0"], "--last takes a number from 1"),
        ([".", "--find-crossover", "--split", "checkpoints"], "one checkpoint after another"),
        (["{saved}", "--dtype", "int4"], "there is no dtype 'int4'"),
        (["{saved}", "--find-crossover", "piqa"], "--find-crossover takes average, arc_easy, csqa"),
    ],
)
def test_what_makes_no_sense_is_an_error_in_one_line(saved, tmp_path, capsys, arguments, expected):
    given = [argument.format(saved=saved) for argument in arguments]
    assert cli.main(["scan", *given, *ASKED, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert len(error.strip().splitlines()) == 1


def test_a_folder_of_lightnings_checkpoints_goes_into_the_runs_record(tmp_path):
    from olmes_monitor.cli_scan import folder_of

    checkpoints = tmp_path / "version_0" / "checkpoints"
    checkpoints.mkdir(parents=True)
    assert folder_of([str(checkpoints)], None) == checkpoints / "olmes"
    (tmp_path / "version_0" / "olmes").mkdir()
    assert folder_of([str(checkpoints)], None) == tmp_path / "version_0" / "olmes"
    assert folder_of([str(checkpoints)], tmp_path) == tmp_path / "olmes"
    assert folder_of([str(tmp_path / "version_0")], None) == tmp_path / "version_0" / "olmes"


@pytest.mark.slow
def test_watching_takes_each_once_in_order_however_they_land(saved, scanned, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()

    def land(step, whole=True):
        part = folder / f"tmp-checkpoint-{step}"
        shutil.copytree(saved / f"checkpoint-{step}", part)
        if not whole:
            (part / "trainer_state.json").write_text("{")
        part.rename(folder / f"checkpoint-{step}")

    process = start(folder, "--watch", "0.2", "--until-step", "10")
    time.sleep(0.5)
    land(1)
    wait_for(process, "checkpoint-1, ")
    land(3, whole=False)
    for step in (2, 4):  # several at once, one half-written
        land(step)
    wait_for(process, "checkpoint-4, ")
    shutil.copy(saved / "checkpoint-3" / "trainer_state.json", folder / "checkpoint-3")
    wait_for(process, "checkpoint-3, ")
    land(9)
    land(10)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "6 scored" in out
    run = load_run(folder)
    equal_runs(run, scanned)
    lines = [json.loads(line) for line in (folder / "olmes" / "evaluations.jsonl").read_text().splitlines()]
    assert [line["point"]["step"] for line in lines] == [1, 2, 4, 3, 9, 10]


@pytest.mark.slow
def test_a_scan_beside_a_live_loop_and_two_scans_at_once_disturb_nobody(saved, scanned, tmp_path):
    """The training loop writes its own lines into the same record meanwhile."""
    from olmes_monitor.record import Evaluation, Point, Recorder

    recorder, ended = Recorder(tmp_path / "olmes"), threading.Event()

    def loop():
        tokens = 100_000
        while not ended.is_set():
            recorder.write(Evaluation(Point(tokens), "quick", scanned.fingerprint, None, problems={"evaluation": "x"}))
            tokens += 1
            time.sleep(0.01)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        scans = [start(saved, "--out", tmp_path) for _ in range(2)]
        assert [process.communicate(timeout=100) and process.returncode for process in scans] == [0, 0]
    finally:
        ended.set()
        thread.join()
    run = load_run(tmp_path)
    mine = [e for e in run.evaluations if e.point.origin == "scan"]
    assert [e.point.step for e in mine] == [1, 2, 3, 4, 9, 10]
    assert [e for e in run.superseded if e.point.origin == "scan"] == []  # neither wrote what the other had
    assert len(run.evaluations) > 20


def test_wandb_gets_a_run_of_its_own(saved, tmp_path, monkeypatch, capsys):
    import wandb
    from wandb_file import history, offline_run

    wandb.teardown()  # older versions keep the folder that the process' first run went to
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    assert cli.main(["scan", str(saved), *ASKED, "--out", str(tmp_path / "out"), "--last", "2", "--wandb"]) == 0
    rows = [row for row in history(offline_run(Path(tmp_path))) if "olmes/tokens" in row]
    assert sorted({row["olmes/tokens"] for row in rows}) == [9000, 10000]


def test_find_crossover_scores_few_and_a_full_scan_the_rest(words, tmp_path, capsys):
    folder = tmp_path / "run"
    for step in range(1, 21):
        save(folder, step, words, **LONG)
    assert cli.main(["scan", str(folder), *ASKED, "--find-crossover", "csqa"]) == 0
    few = load_run(folder)
    assert 2 <= len(few.evaluations) <= 15
    assert f"{len(few.evaluations)} scored" in capsys.readouterr().out
    assert cli.main(["scan", str(folder), *ASKED]) == 0
    assert f"{20 - len(few.evaluations)} scored, {len(few.evaluations)} scored already" in capsys.readouterr().out
    assert load_run(folder).superseded == []


def test_two_runs_in_one_scan_are_warned_of(saved, words, tmp_path):
    save(tmp_path, 2, words, **LONG, initializer_range=0.3)
    with pytest.warns(UserWarning, match="differ and both stand at 2,000.*scan each by itself"):
        cli.main(["scan", str(saved), str(tmp_path), *ASKED, "--out", str(tmp_path / "out"), "--list"])


def test_a_checkpoint_that_only_a_pickle_dates_is_listed_with_the_way_out_and_dated_with_leave(tmp_path, capsys):
    save_ckpt(tmp_path / "last.ckpt", hyper_parameters={"place": Path}, step=2)  # a class that no safe reader admits
    arguments = ["scan", str(tmp_path), "--axis", "steps", "--list", "--json"]
    assert cli.main(arguments) == 0
    (listed,) = json.loads(capsys.readouterr().out)["checkpoints"]
    assert "--allow-pickle" in listed["problem"]
    cli.main([*arguments, "--allow-pickle"])
    (listed,) = json.loads(capsys.readouterr().out)["checkpoints"]
    assert (listed["step"], listed["problem"]) == (2, None)
    # All of them undated: one error for the command and not a failed row each.
    assert cli.main(["scan", str(tmp_path), "--axis", "steps"]) == 2


def test_a_list_is_data_too(saved, scanned, capsys):
    arguments = ["scan", str(saved), *ASKED, "--out", str(scanned.folder.parent), "--list"]
    assert cli.main([*arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["checkpoints"]
    assert [(row["step"], row["scored"], row["problem"]) for row in rows] == [
        (s, True, None) for s in (1, 2, 3, 4, 9, 10)
    ]
    assert cli.main([*arguments, "--csv"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(line["step"], line["scored"]) for line in lines] == [(str(row["step"]), "True") for row in rows]
