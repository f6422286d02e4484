"""Own tasks from rows, files and the hub: what columns may hold, and that a wrong row is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from olmes_monitor.errors import DataError, SetupError
from olmes_monitor.suite import Question, Request, Suite, Template, file_rows, hub_rows, task_from_rows

ROOT = Path(__file__).parents[2]
ROWS = [{"question": f"{i} + 1?", "choices": [f"{i}", f"{i + 1}"], "answer": 1} for i in range(8)]


def one(row, **columns):
    """The only question of a task of one row."""
    return task_from_rows("own", [row], **{"shots": 0, **columns}).questions[0]


def test_rows_become_questions_and_the_first_five_shots():
    task = task_from_rows("own", ROWS)
    assert [question.id for question in task.questions] == ["5", "6", "7"]
    assert task.questions[0] == Question("5", "5 + 1?", ("5", "6"), 1)
    assert [shot.stem for shot in task.shots] == [f"{i} + 1?" for i in range(5)]
    assert task.requests(task.questions[0], "cf", shots=1) == [
        Request("Question: 4 + 1?\nAnswer: 5\n\nQuestion: 5 + 1?\nAnswer:", " 5"),
        Request("Question: 4 + 1?\nAnswer: 5\n\nQuestion: 5 + 1?\nAnswer:", " 6"),
    ]
    assert Suite("mine", [task]).fingerprint == Suite("mine", [task_from_rows("own", iter(ROWS))]).fingerprint


def test_shots_from_rows_of_their_own_or_by_subject():
    rows = [{**row, "topic": topic} for row, topic in zip(ROWS, ["a", "b"] * 4, strict=True)]
    assert len(task_from_rows("own", rows, shots=rows[:2]).questions) == 8
    task = task_from_rows("own", rows[2:], shots={"a": rows[:1], "b": []}, subject="topic")
    assert [len(task.shots_of(question)) for question in task.questions] == [1, 0] * 3
    assert task.subjects == ("a", "b")


def test_columns_by_function_and_by_several_names():
    row = {"q": " Why?", "opa": "x", "opb": "y", "key": "B", "n": 17}
    question = one(row, id="n", stem=lambda row: row["q"].strip(), choices=("opa", "opb"), gold="key")
    assert question == Question("17", "Why?", ("x", "y"), 1)


@pytest.mark.parametrize(
    ("choices", "gold", "index"),
    [
        (["x", "y", "z"], 2, 2),
        (np.array(["x", "y", "z"]), np.int64(1), 1),
        (["x", "y", "z"], "y", 1),
        (["x", "y", "z"], "C", 2),
        (["x", "B", "z"], "B", 1),
        ({"text": ["x", "y", "z"], "label": ["A", "B", "C"]}, "C", 2),
        ({"text": ["x", "y", "z"], "label": ["1", "2", "3"]}, "3", 2),
        ({"text": ["x", "y", "z"], "label": ["1", "2", "3"]}, 1, 0),
        ({"text": ["x", "y", "z"], "label": [1, 2, 3]}, 3, 2),
        ({"text": ["x", "y", "z"], "label": ["A", "B", "C"]}, 0, 0),
        ({"A": "x", "B": "y"}, "B", 1),
        ({"A": "x", "B": "y"}, "x", 0),
    ],
)
def test_gold_is_an_index_a_label_a_text_or_a_letter(choices, gold, index):
    question = one({"question": "?", "choices": choices, "answer": gold})
    assert question.gold == index
    assert question.choices[0] == "x"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": None}, r"task 'own', row 0, gold \(column 'answer'\): None is no index, label or text"),
        ({"answer": True}, "True is no index"),
        ({"answer": "z"}, "'z' is no label, letter or text of a choice; pass a function"),
        ({"answer": "1"}, "'1' is no label"),  # from 0 or from 1? not for us to guess
        ({"answer": 2}, "row 0: question '0': gold is 2, but there are 2 choices"),
        ({"answer": -1}, "gold is -1"),
        ({"choices": ["x", "x"], "answer": "x"}, "'x' could be any of several choices"),
        ({"choices": ["B", "A"], "answer": "A"}, "'A' could be any of several choices"),
        ({"choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answer": 0}, "0 is no index, label or text"),
        ({"choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answer": "E"}, "the labels are A, B"),
        ({"choices": {"text": ["x", "y"], "label": ["A"]}}, "2 texts, but 1 labels"),
        ({"choices": "xy"}, r"choices \(column 'choices'\): 'xy' is neither a list"),
        ({"choices": ["x", 3]}, "the choice 3 is no text"),
        ({"choices": ["x"], "answer": 0}, "a question needs at least two"),
        ({"choices": ["x", " "], "answer": 0}, "a choice is blank"),
        ({"question": 5}, r"stem \(column 'question'\): 5 is no text"),
    ],
)
def test_a_row_that_is_no_question_is_refused_by_number_and_column(change, message):
    with pytest.raises(SetupError, match=message):
        one({"question": "?", "choices": ["x", "y"], "answer": 1, **change})


def test_other_mistakes_are_told_with_their_mend():
    for rows, options, message in [
        (ROWS, {"stem": "text"}, r"row 0, stem \(column 'text'\): is not there; the row has question, choices, answer"),
        (ROWS, {"shots": [{}]}, r"shot 0, choices \(column 'choices'\): is not there"),
        (ROWS, {"gold": lambda row: row["answer"] / 0}, "row 0, gold: the function fails: ZeroDivisionError"),
        (ROWS[:5], {}, "the first 5 rows are shown as shots, and only 5 rows were given"),
        (ROWS, {"shots": True}, "got True"),
        (["question"], {"shots": 0}, "row 0: is a str, not a mapping"),
        ("rows.jsonl", {"shots": 0}, r"read a file with file_rows\(\)"),
        (ROWS, {"id": "question", "shots": ROWS[:1], "stem": lambda row: "?", "name": "Own"}, "lower-case"),
        ([{**row, "id": 1} for row in ROWS], {"id": "id"}, "1 question ids occur more than once"),
    ]:
        with pytest.raises(SetupError, match=message):
            task_from_rows(**{"name": "own", "rows": rows, **options})


def test_a_passage_has_its_place_in_the_default_template():
    row = {"question": "Why?", "choices": ["x", "y"], "answer": 0, "text": "Because."}
    task = task_from_rows("own", [row], passage="text", shots=0)
    assert task.requests(task.questions[0], "cf")[0].context == "Because.\nQuestion: Why?\nAnswer:"
    with pytest.raises(SetupError, match=r"no \{passage\}"):
        task_from_rows("own", [row], passage="text", shots=0, template=Template())


def test_files_of_both_kinds_give_the_same_task(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in [{**ROWS[0], "question": "naïve\u2028?"}, *ROWS])
    (tmp_path / "a.jsonl").write_text(lines + "\n", "utf-8")
    pq.write_table(pa.Table.from_pylist(file_rows(tmp_path / "a.jsonl")), tmp_path / "a.parquet")
    a, b = (task_from_rows("own", file_rows(tmp_path / name), shots=0) for name in ("a.jsonl", "a.parquet"))
    assert a == b
    assert len(a.questions) == 9


def test_a_file_that_cannot_be_read_is_named_with_the_line(tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"a": 1}\n{"a"')
    with pytest.raises(DataError, match=r"bad\.jsonl, line 2 is no JSON"):
        file_rows(bad)
    bad.write_text("[1]\n")
    with pytest.raises(DataError, match="line 1 holds a list, not an object"):
        file_rows(bad)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    for name in ("absent.jsonl", "absent.parquet", "bad.parquet"):
        with pytest.raises(DataError, match=f"{name} cannot be read"):
            file_rows(tmp_path / name)
    with pytest.raises(SetupError, match=r"neither \.jsonl nor \.parquet"):
        file_rows("rows.xlsx")


def test_a_dataset_by_name_goes_through_datasets(monkeypatch):
    import datasets

    calls = []

    def load(*args, **options):
        calls.append((args, options))
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load)
    task = task_from_rows("own", hub_rows("owner/name", "hard", split="test"), shots=2)
    assert [question.gold for question in task.questions] == [1] * 6
    assert calls == [(("owner/name", "hard"), {"split": "test", "revision": None})]


def test_a_loading_script_is_never_executed(tmp_path):
    folder = tmp_path / "scripted"
    folder.mkdir()
    (folder / "scripted.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(DataError, match=r"scripted \(split test\) cannot be had"):
        hub_rows(str(folder), split="test")
    assert not (tmp_path / "ran").exists()


def test_offline_opens_no_socket(tmp_path):
    program = (
        "import socket\n"
        "def refuse(*args, **options): raise SystemExit('a socket was opened')\n"
        "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse\n"
        "from olmes_monitor.suite import hub_rows\n"
        "from olmes_monitor.errors import DataError\n"
        "try: hub_rows('owner/name', split='test')\n"
        "except DataError as error: print(error)\n"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert (
        "owner/name (split test) cannot be had (HF_HUB_OFFLINE is set: only what is cached can be read)" in done.stdout
    )


def test_the_example_runs():
    path = ROOT / "examples" / "own_task.py"
    assert len(path.read_text().splitlines()) < 100
    done = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "sums" in done.stdout
    assert "MCF" in done.stdout
