"""One curve from what the training loop asked and what scans asked later."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "record"))  # for the made-up evaluations in synthetic.py

from synthetic import failed_evaluation, make_evaluation

from olmes_monitor.record import Point, Recorder, load_run

LOW = {"arc_easy": (0.5, 0.4)}
HIGH = {"arc_easy": (0.5, 0.9)}


def write(recorder, tokens, origin="loop", shares=LOW):
    evaluation = make_evaluation(tokens, shares) if shares else failed_evaluation(tokens)
    recorder.write(dataclasses.replace(evaluation, point=dataclasses.replace(evaluation.point, origin=origin)))


def curve(run):
    return [(e.point.tokens, e.point.origin, e.metrics.get("olmes/mcf/arc_easy")) for e in run.evaluations]


@pytest.fixture
def recorder(tmp_path):
    return Recorder(tmp_path / "olmes")


def test_a_scan_that_adds_lower_tokens_later_takes_nothing_out(recorder, tmp_path):
    for tokens in (10, 20, 30):
        write(recorder, tokens)
    for tokens in (25, 5):
        write(recorder, tokens, "scan")
    run = load_run(tmp_path)
    assert [(tokens, origin) for tokens, origin, _ in curve(run)] == [
        (5, "scan"),
        (10, "loop"),
        (20, "loop"),
        (25, "scan"),
        (30, "loop"),
    ]
    assert run.superseded == run.others == []
    assert run.correct("arc_easy").tokens.tolist() == [5, 10, 20, 25, 30]


def test_a_live_loop_goes_on_beside_a_scan_of_later_and_earlier_points(recorder, tmp_path):
    for tokens, origin in [(10, "loop"), (100, "scan"), (20, "loop"), (15, "scan"), (30, "loop"), (20, "loop")]:
        write(recorder, tokens, origin)
    run = load_run(tmp_path)
    assert [tokens for tokens, _, _ in curve(run)] == [10, 15, 20, 100]
    assert sorted(e.point.tokens for e in run.superseded) == [20, 30]  # the loop went back to 20: its own lines only
    assert {e.point.origin for e in run.superseded} == {"loop"}


def test_where_both_have_a_point_the_curve_holds_the_loops_and_the_others_are_kept(recorder, tmp_path):
    write(recorder, 10, "scan", HIGH)
    write(recorder, 10, "loop", LOW)
    write(recorder, 20, "loop", LOW)
    write(recorder, 20, "scan", HIGH)
    run = load_run(tmp_path)
    assert [(tokens, origin) for tokens, origin, _ in curve(run)] == [(10, "loop"), (20, "loop")]
    assert [(e.point.tokens, e.point.origin) for e in run.others] == [(10, "scan"), (20, "scan")]
    assert all((run.folder / file).is_file() for file in run.others_files)
    assert run.scores(0).equals(make_evaluation(10, LOW).scores)


def test_a_failed_evaluation_gives_way_to_the_other_origins(recorder, tmp_path):
    write(recorder, 10, "loop", None)
    write(recorder, 10, "scan", HIGH)
    write(recorder, 20, "scan", HIGH)
    write(recorder, 20, "scan", None)
    run = load_run(tmp_path)
    assert [e.scores is None and bool(e.problems) for e in run.evaluations] == [False, False]
    assert [(e.point.tokens, e.point.origin) for e in run.others] == [(10, "loop")]
    assert [(e.point.tokens, bool(e.problems)) for e in run.superseded] == [(20, True)]


def test_a_later_scan_of_the_same_point_replaces_the_earlier(recorder, tmp_path):
    write(recorder, 10, "scan", LOW)
    write(recorder, 10, "scan", HIGH)
    run = load_run(tmp_path)
    assert len(run.evaluations) == len(run.superseded) == 1
    assert run.evaluations[0].metrics["olmes/mcf/arc_easy"] == make_evaluation(10, HIGH).metrics["olmes/mcf/arc_easy"]


def test_a_record_without_origins_reads_as_the_loops_and_unknown_keys_do_no_harm(recorder, tmp_path):
    write(recorder, 10)
    line = json.loads(recorder.lines.read_text())
    for key in ("origin", "key", "axis"):
        del line["point"][key]
    line["point"]["of a later version"] = 1
    recorder.lines.write_text(json.dumps(line) + "\n")
    assert load_run(tmp_path).evaluations[0].point == Point(10, 0, line["point"]["time"])
