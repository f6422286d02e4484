"""`olmes-monitor report` and `follow`: files, tables, exit codes, and both while a run goes on."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from olmes_monitor import cli, load_run

sys.path[:0] = [str(Path(__file__).parent / "record"), str(Path(__file__).parent / "report")]
from made_runs import make_run  # noqa: E402

OLMO = Path(os.environ.get("OLMES_MONITOR_CURVES", "not set"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "a", ("arc_easy", "csqa"), n=80, points=12, every=10**9)
    make_run(folder / "b", ("arc_easy", "csqa"), n=80, points=12, every=10**9, delay=0.2)
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_report_writes_a_page_and_prints_the_verdicts(runs, here, capsys):
    assert cli.main(["report", str(runs / "a")]) == 0
    table = capsys.readouterr().out
    for row in load_run(runs / "a").verdicts().to_dict("records"):
        line = next(line for line in table.splitlines() if line.split()[:1] == [row["task"]])
        assert row["state"].replace("_", " ") in line
    page = (here / "report.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "olmes-monitor report" in page


def test_several_runs_are_told_apart_also_where_their_folders_have_one_name(runs, here, capsys):
    assert cli.main(["report", str(runs / "a"), str(runs / "b"), "--csv", "-o", "two.html"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["run"] for row in rows} == {"a", "b"}
    assert cli.main(["report", str(runs / "a"), str(runs / "a"), "--csv", "-o", "two.html"]) == 0
    assert {row["run"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))} == {str(runs / "a")}


def test_json_is_one_object_and_pictures_lie_beside_the_page(runs, here, capsys):
    arguments = ["report", str(runs / "a"), "--json", "--png", "--svg", "--pdf", "--width", "6.75", "-o", "x.html"]
    assert cli.main(arguments) == 0
    printed = capsys.readouterr()
    (run,) = json.loads(printed.out)["runs"]
    assert run["verdicts"][0]["task"] == "arc_easy"
    # the four files and nothing of what the libraries that write them have to tell
    assert sorted(line.split()[0] for line in printed.err.splitlines()) == ["x.html", "x.pdf", "x.png", "x.svg"]
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "html": b"<!DOC"}
    for kind, start in starts.items():
        assert (here / f"x.{kind}").read_bytes().startswith(start)


def test_a_table_of_accuracies_gives_the_same_page_beside_a_run(runs, here, capsys):
    frame = load_run(runs / "a").frame().query("task != 'average'")
    frame[["tokens", "step", "task", "cf", "mcf", "n"]].to_csv("copy.csv", index=False)
    assert cli.main(["report", str(runs / "a"), "--curves", "copy.csv", "--json"]) == 0
    mine, copy = json.loads(capsys.readouterr().out)["runs"]
    assert copy["name"] == "copy"
    states = [{row["task"]: row["state"] for row in run["verdicts"]} for run in (mine, copy)]
    assert states[0].keys() == states[1].keys()
    frame.rename(columns={"cf": "cloze"}).drop(columns="n").to_csv("other.csv", index=False)
    arguments = ["report", "--curves", "other.csv", "--columns", "cf=cloze", "--questions", "arc_easy=80,csqa=80"]
    assert cli.main([*arguments, "--json"]) == 0
    (other,) = json.loads(capsys.readouterr().out)["runs"]
    assert other["verdicts"] == copy["verdicts"]


@pytest.mark.skipif(
    not OLMO.exists(),
    reason="measured curves: OLMES_MONITOR_CURVES is not set (a CSV with run,step,tokens,task,cf,mcf)",
)
def test_published_curves_are_read_as_they_are(here, capsys):
    assert cli.main(["report", "--curves", str(OLMO), "--json"]) == 0
    found = {run["name"]: run for run in json.loads(capsys.readouterr().out)["runs"]}
    verdicts = {row["task"]: row for row in found["olmo2_7b"]["verdicts"]}
    assert all(row["stderr"] is not None for row in verdicts.values())
    assert verdicts["hellaswag"]["state"] == verdicts["piqa"]["state"] == "not_reached"
    assert 65_000 <= verdicts["openbookqa"]["step"] <= 75_000


def test_exit_codes(runs, here, capsys):
    (here / "x.csv").write_text("tokens,task,cf,mcf\n1,a,0.31,0.22\n2,a,0.3,0.4\n")
    assert cli.main(["report", "--curves", "x.csv"]) == 1, "no verdict without a number of questions"
    assert "no verdict" in capsys.readouterr().out
    for arguments, message in (
        (["report"], "name a run's folder"),
        (["report", "nowhere"], "no record of evaluations"),
        (["report", "--curves", "none.csv"], "cannot read the table"),
        (["report", str(runs / "a"), "--curves", "x.csv", "--questions", "a=many"], "not a number of questions"),
        (["report", str(runs / "a"), "--watch", "--json"], "leave out --json"),
        (["report", "--curves", "x.csv", "--watch"], "--watch follows runs"),
        (["report", str(runs / "a"), "-o", "no/where.html"], "cannot write the page"),
        (["follow", "nowhere", "--once"], "no record of evaluations"),
        (["follow", str(runs / "a"), "--every", "0"], "must be above 0"),
    ):
        assert cli.main(arguments) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        cli.main(["report", str(runs / "a"), "--json", "--csv"])
    assert stopped.value.code == 2


def test_follow_once_shows_the_run_as_table_csv_or_json(runs, capsys):
    assert cli.main(["follow", str(runs / "a"), "--once"]) == 0
    text = capsys.readouterr().out
    assert "arc_easy" in text
    assert "█" in text
    assert cli.main(["follow", str(runs / "a"), "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["state"] for row in rows] == load_run(runs / "a").verdicts()["state"].tolist()
    assert cli.main(["follow", str(runs / "a"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "a"


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)


def test_a_watched_page_is_rewritten_as_evaluations_arrive_and_rests_when_interrupted(tmp_path):
    """The record does not exist yet when the watching begins."""
    page = tmp_path / "live.html"
    command = [
        sys.executable,
        "-m",
        "olmes_monitor",
        "report",
        str(tmp_path / "run"),
        "--watch",
        "0.2",
        "-o",
        str(page),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as watching:
        try:
            time.sleep(1)
            make_run(tmp_path / "run", ("arc_easy",), n=40, points=3, every=10**9)
            wait_for(lambda: page.exists() and "3 evaluations" in page.read_text())
            assert 'data-refresh="0.2"' in page.read_text()
            make_run(tmp_path / "run", ("arc_easy",), n=40, start=3, points=4, every=10**9)
            wait_for(lambda: "4 evaluations" in page.read_text())
            watching.send_signal(signal.SIGINT)
            assert watching.wait(60) == 0
        finally:
            watching.kill()
    assert "data-refresh" not in page.read_text()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a pseudo-terminal")
def test_follow_waits_for_a_run_shows_it_live_and_ends_with_ctrl_c(tmp_path):
    import pty

    folder, shown = tmp_path / "run", []
    child, terminal = pty.fork()
    if child == 0:
        os.environ |= {"COLUMNS": "100", "LINES": "40", "TERM": "xterm"}
        os.execv(sys.executable, [sys.executable, "-m", "olmes_monitor", "follow", str(folder), "--every", "0.2"])

    def has(text):
        shown.append(os.read(terminal, 65536).decode(errors="replace"))
        return text in "".join(shown)

    wait_for(lambda: has("waiting for the first evaluation"))
    make_run(folder, ("arc_easy",), n=40, points=5, every=10**9)
    wait_for(lambda: has("5 evaluations"))
    os.kill(child, signal.SIGINT)
    wait_for(lambda: has("upper line CF, lower MCF"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_suites_come_as_data_too(capsys):
    from olmes_monitor import load_suite

    assert cli.main(["data", "--json"]) == 0
    quick = json.loads(capsys.readouterr().out)["quick"]
    suite = load_suite("quick")
    assert quick == {
        "fingerprint": suite.fingerprint,
        "tasks": {name: len(task.questions) for name, task in suite.tasks.items()},
    }
    assert cli.main(["data", "--csv"]) == 0
    rows = [row for row in csv.DictReader(io.StringIO(capsys.readouterr().out)) if row["suite"] == "quick"]
    assert {row["task"]: int(row["questions"]) for row in rows} == quick["tasks"]


def test_a_saved_models_scores_come_as_csv(tmp_path, tokenizer, capsys):
    from parts import make_llama

    make_llama().save_pretrained(tmp_path / "tiny")
    tokenizer.save_pretrained(tmp_path / "tiny")
    arguments = ["eval", str(tmp_path / "tiny"), "--suite", "quick", "--tasks", "piqa,csqa", "--limit", "3"]
    assert cli.main([*arguments, "--device", "cpu", "--csv", "--out", str(tmp_path / "out")]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    facts = load_run(tmp_path / "out").evaluations[0].tasks
    assert [row["task"] for row in rows] == [*facts, "average"]
    for row in rows[:-1]:
        assert float(row["cf"]) == facts[row["task"]]["cf"]
        assert int(row["n"]) == 3
