import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from synthetic import failed_evaluation, make_evaluation

from olmes_monitor.errors import RecordError
from olmes_monitor.record import Recorder, load_run

BOTH = {"arc_easy": (0.5, 0.4), "csqa": (0.4, 0.6)}


def make(tokens, **options):
    return make_evaluation(tokens, BOTH, n=20, **options)


def tokens_of(evaluations):
    return [evaluation.point.tokens for evaluation in evaluations]


@pytest.fixture
def recorder(tmp_path):
    return Recorder(tmp_path / "olmes")


def test_what_is_read_is_what_was_written(recorder, tmp_path):
    evaluation = make(1_000_000)
    recorder.write(evaluation)
    run = load_run(tmp_path)
    assert run.evaluations[0].scores is None  # not read before it is asked for
    table = run.scores(0)
    assert run.evaluations[0].scores is table
    assert table.schema.equals(evaluation.scores.schema)
    assert table.equals(evaluation.scores)
    assert run.evaluations[0] == evaluation


def test_the_run_is_found_from_its_folder_the_record_or_the_file(recorder, tmp_path):
    recorder.write(make(1))
    for path in (tmp_path, tmp_path / "olmes", tmp_path / "olmes" / "evaluations.jsonl", str(tmp_path)):
        assert tokens_of(load_run(path).evaluations) == [1]


def test_a_missing_record_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(RecordError) as error:
        load_run(tmp_path / "nowhere")
    assert str(Path("nowhere") / "evaluations.jsonl") in str(error.value)
    assert str(Path("nowhere") / "olmes" / "evaluations.jsonl") in str(error.value)


def test_a_torn_last_line_is_skipped_and_cannot_swallow_the_next(recorder):
    recorder.write(make(1))
    whole = recorder.lines.read_bytes()
    recorder.lines.write_bytes(whole + whole[:200])
    with pytest.warns(UserWarning, match="line 2 is skipped: it is torn"):
        assert tokens_of(load_run(recorder.folder).evaluations) == [1]
    recorder.write(make(2))
    with pytest.warns(UserWarning, match="line 2 is skipped"):
        assert tokens_of(load_run(recorder.folder).evaluations) == [1, 2]


@pytest.mark.parametrize(
    ("line", "words"),
    [(b"[1]", "not an evaluation"), (b'{"format": 2}', "format is 2"), (b'{"format": 1}', "lacks"), (b"\xff", "torn")],
)
def test_foreign_lines_are_skipped_with_the_reason(recorder, line, words):
    recorder.write(make(1))
    recorder.lines.write_bytes(line + b"\n" + recorder.lines.read_bytes())
    with pytest.warns(UserWarning, match=words):
        assert tokens_of(load_run(recorder.folder).evaluations) == [1]


def test_a_kill_between_the_table_and_the_line_leaves_the_record_readable(recorder, monkeypatch):
    recorder.write(make(1))
    with monkeypatch.context() as patch:
        patch.setattr("olmes_monitor.record.store.append_line", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            recorder.write(make(2))
    assert len(list((recorder.folder / "scores").glob("*.parquet"))) == 2
    assert tokens_of(load_run(recorder.folder).evaluations) == [1]
    recorder.write(make(2))
    assert tokens_of(load_run(recorder.folder).evaluations) == [1, 2]


def test_a_table_that_cannot_be_written_leaves_nothing_behind(recorder, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RecordError, match=r"at 5 tokens .* No space left"):
        recorder.write(make(5))
    assert list((recorder.folder / "scores").iterdir()) == []
    assert not recorder.lines.exists()


WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from synthetic import make_evaluation
from olmes_monitor.record import Recorder
recorder, evaluation = Recorder(sys.argv[1]), make_evaluation(1, {"arc_easy": (0.5, 0.4)}, n=20)
print("ready", flush=True)
for tokens in range(1, 100_000):
    object.__setattr__(evaluation.point, "tokens", tokens)
    recorder.write(evaluation)
"""


@pytest.mark.parametrize("after", [0.02, 0.055, 0.11])
def test_a_writer_killed_at_any_moment_loses_at_most_what_it_was_writing(tmp_path, after):
    command = [sys.executable, "-c", WRITER, str(tmp_path), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(after)
        writer.send_signal(signal.SIGKILL)
    Recorder(tmp_path).write(make_evaluation(200_000, {"arc_easy": (0.5, 0.4)}, n=20))
    run = load_run(tmp_path)
    assert tokens_of(run.evaluations) == [*range(1, len(run.evaluations)), 200_000]
    for index in range(len(run.evaluations)):  # each line's table is there and whole
        assert run.scores(index).num_rows == 80


def test_two_processes_may_write_to_one_folder(tmp_path):
    one, other = Recorder(tmp_path), Recorder(tmp_path)
    one.write(make(1))
    other.write(make(2))
    one.write(make(3))
    assert tokens_of(load_run(tmp_path).evaluations) == [1, 2, 3]


def test_failed_evaluations_are_kept_with_their_reason(recorder):
    recorder.write(make(1))
    recorder.write(failed_evaluation(2))
    run = load_run(recorder.folder)
    assert run.evaluations[1].problems == {"evaluation": "rank 0: out of memory"}
    assert run.evaluations[1].scores is None
    with pytest.raises(RecordError, match="at 2 tokens failed"):
        run.scores(1)


def test_where_training_went_back_the_abandoned_stretch_is_superseded(recorder):
    for tokens in (1, 2, 3, 4):
        recorder.write(make(tokens, seed=0))
    for tokens in (3, 5):
        recorder.write(make(tokens, seed=1))
    run = load_run(recorder.folder)
    assert tokens_of(run.evaluations) == [1, 2, 3, 5]
    assert sorted(tokens_of(run.superseded)) == [3, 4]
    assert run.evaluations[2].metrics == make(3, seed=1).metrics


def test_curves_over_different_questions_are_not_joined(recorder):
    recorder.write(make(1, fingerprint="aaaa1111"))
    recorder.write(make(2, fingerprint="bbbb2222"))
    recorder.write(make(1, fingerprint="bbbb2222"))
    with pytest.raises(
        RecordError, match=r"aaaa1111 \(quick\), bbbb2222 \(quick\); choose one: --fingerprint aaaa1111"
    ):
        load_run(recorder.folder)
    assert tokens_of(load_run(recorder.folder, fingerprint="aaaa1111").evaluations) == [1]
    run = load_run(recorder.folder, fingerprint="bbbb")
    assert (tokens_of(run.evaluations), tokens_of(run.superseded), run.fingerprint) == ([1], [2], "bbbb2222")
    with pytest.raises(RecordError, match="0 fingerprints"):
        load_run(recorder.folder, fingerprint="cccc")


def test_an_unusable_folder_is_found_when_the_recorder_is_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot make the record's folder"):
        Recorder(tmp_path / "file" / "olmes")


def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # the tests may run as root, who may do anything
    with pytest.raises(RecordError, match="not writable"):
        Recorder(tmp_path / "olmes")


def test_lines_are_strict_json_whatever_the_facts_hold(recorder):
    evaluation = make(1)
    evaluation.settings |= {"share": np.float32(0.5), "lost": float("nan"), "dtype": np.dtype("int8"), "ids": {3}}
    recorder.write(evaluation)
    line = json.loads(recorder.lines.read_text(), parse_constant=lambda name: pytest.fail(name))
    assert line["settings"]["share"] == 0.5
    assert line["settings"]["lost"] is None
    assert line["settings"]["dtype"] == "int8"
    assert line["settings"]["ids"] == [3]
    assert line["scores_file"] == f"scores/{line['id']}.parquet"
