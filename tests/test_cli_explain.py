"""`olmes-monitor explain`: what it prints of a run on disk, checked against the answers that were put there."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent / "record"))

from synthetic import answered, rows, table

from olmes_monitor import cli, load_run
from olmes_monitor.errors import RecordError
from olmes_monitor.measure import summarize
from olmes_monitor.record import Evaluation, Point, Recorder
from olmes_monitor.record.explain import explain
from olmes_monitor.record.store import LINES
from olmes_monitor.suite.cache import ensure
from olmes_monitor.suite.suites import load_task

N, CROSSING = 40, 6
FORMAT, KNOWLEDGE, SHARED, LOST, FLIPPED = range(0, 12), range(12, 18), range(18, 22), range(22, 24), range(24, 28)


def right_at(evaluation):
    """CF's and MCF's right answers, (N,) each. MCF turns at the crossing; questions beyond FLIPPED stay as they are."""
    after = evaluation >= CROSSING
    cf, mcf = np.zeros(N, bool), np.zeros(N, bool)
    cf[FORMAT] = True
    cf[FLIPPED] = not after
    cf[SHARED] = after
    cf[36:] = mcf[36:] = True
    for part in (FORMAT, KNOWLEDGE, SHARED, FLIPPED):
        mcf[part] = after
    mcf[LOST] = not after
    return cf, mcf


def make_run(folder, questions, task="arc_easy", forms=("cf", "mcf"), evaluations=12):
    """A recorded run of the given questions (ids, gold, number of choices are theirs)."""
    recorder = Recorder(folder)
    gold = [question.gold for question in questions]
    for evaluation in range(evaluations):
        right = dict(zip(("cf", "mcf"), right_at(evaluation), strict=True))
        asked = {form: answered(gold, right[form]) if form in forms else None for form in ("cf", "mcf")}
        made = rows(task, gold, **asked)
        for row in made:
            row["question"] = questions[row["index"]].id
        scores = table(made)
        tasks, metrics, problems = summarize(scores, {task: "char"})
        assert not problems
        point = Point((evaluation + 1) * 10**9, evaluation + 1)
        recorder.write(Evaluation(point, "mine", "0123456789abcdef", scores, metrics, tasks))
    return folder


@pytest.fixture(scope="module")
def official():
    task = load_task(ensure(), "arc_easy")
    return [question for question in task.questions if len(question.choices) == 4][:N]


@pytest.fixture
def folder(tmp_path, official):
    return make_run(tmp_path, official)


def call(capsys, *arguments):
    code = cli.main(["explain", *map(str, arguments)])
    return code, capsys.readouterr()


def test_the_parts_are_those_that_were_put_there_and_add_up(folder, capsys):
    code, printed = call(capsys, folder, "arc_easy", "--json")
    assert code == 0
    found = json.loads(printed.out)
    assert found["counts"] == {"kept": 4, "format": 16, "knowledge": 6, "shared": 4, "lost": 2, "never": 8}
    assert (found["flipped"], found["flipped_back"]) == (4, 0)
    assert (found["format_share"], found["format_open"]) == (16 / 26, 16 / 34)
    rise = found["majority"]["mcf_after"] - found["majority"]["mcf_before"]
    assert rise == pytest.approx(24 / 40)
    tokens = [found[side]["tokens"] for side in ("before", "after")]
    assert tokens == [[4e9, 5e9, 6e9], [7e9, 8e9, 9e9]]
    assert 6e9 <= found["crossover"]["tokens"] <= 7e9
    # made log-likelihoods: one label at −0.5, three at −3
    assert found["after"]["label_mass"] == pytest.approx(np.exp(-0.5) + 3 * np.exp(-3))
    assert sum(found["after"]["label_bias"]["predicted"]) == 3 * N


def test_answers_by_question_in_json_and_csv(folder, official, capsys):
    _, printed = call(capsys, folder, "arc_easy", "--json")
    questions = json.loads(printed.out)["questions"]
    assert [question["question"] for question in questions] == [question.id for question in official]
    for i in FLIPPED:
        gold = official[i].gold
        wrong = (gold + 1) % 4  # what `answered` gives where it is not right
        expected = {"gold": gold, "cf_before": gold, "mcf_before": wrong, "cf_after": wrong, "mcf_after": gold}
        assert expected.items() <= questions[i].items()
        assert (questions[i]["kind"], questions[i]["flipped"]) == ("format", True)
    _, printed = call(capsys, folder, "arc_easy", "--csv")
    lines = list(csv.DictReader(io.StringIO(printed.out)))
    assert lines == [{name: str(value) for name, value in question.items()} for question in questions]


def test_of_a_record_with_several_suites_one_is_chosen(folder, capsys):
    line = json.loads((folder / LINES).read_text().splitlines()[0])
    with (folder / LINES).open("a") as lines:
        print(json.dumps(line | {"fingerprint": "feedfeedfeedfeed"}), file=lines)
    code, printed = call(capsys, folder, "arc_easy")
    assert code == 2
    assert "--fingerprint 0123456789abcdef" in printed.err
    code, printed = call(capsys, folder, "arc_easy", "--fingerprint", "0123", "--json")
    assert code == 0
    assert json.loads(printed.out)["counts"]["format"] == 16


def test_the_page_for_people_has_figures_words_and_examples_with_their_texts(folder, official, capsys):
    code, printed = call(capsys, folder, "arc_easy", "--examples", 2)
    assert code == 0
    text = " ".join(printed.out.split())
    assert "before: 4B, 5B, 6B" in text
    assert "together +24 +60.0" in text
    assert "lost −2 −5.0" in text
    assert "of 26 questions that MCF gained, CF already had 62 % right (of all that MCF had wrong: 47 %)" in text
    assert "the lead changed hands: 4 questions, the first 2" in text
    assert "lost: 2 questions " in text  # all of them
    first = official[FLIPPED[0]]
    gold, wrong = "ABCD"[first.gold], "ABCD"[(first.gold + 1) % 4]
    answers = f"{first.id} gold {gold} before: CF {gold}, MCF {wrong} after: CF {wrong}, MCF {gold}"
    assert answers in text
    assert " ".join(first.stem.split())[:60] in text
    assert f"{gold}. {' '.join(first.choices[first.gold].split())}" in text
    assert official[FLIPPED[2]].id not in text  # beyond --examples 2
    assert "by id only" not in text


def test_without_the_cache_or_for_an_own_task_examples_have_ids_only_and_say_why(
    folder, official, tmp_path, capsys, monkeypatch
):
    own = make_run(tmp_path / "own", official, task="my_task")
    _, printed = call(capsys, own, "my_task")
    assert "examples by id only: my_task is a task of your own" in printed.out
    monkeypatch.setenv("OLMES_MONITOR_CACHE", str(tmp_path / "nothing"))
    code, printed = call(capsys, folder, "arc_easy")
    assert code == 0
    assert "not in the local cache" in printed.out
    assert official[FLIPPED[0]].id in printed.out
    assert not (tmp_path / "nothing").exists()  # nothing was fetched


def test_a_task_that_only_bears_an_official_name_shows_no_official_texts(tmp_path, official, capsys):
    moved = [*official[1:], official[0]]  # right ids ...
    folder = make_run(tmp_path, moved)
    _, printed = call(capsys, folder, "arc_easy", "--examples", 1)
    assert "by id only" not in printed.out
    from dataclasses import replace

    other = [replace(question, gold=(question.gold + 1) % 4) for question in official]  # ... but other answers
    _, printed = call(capsys, make_run(tmp_path / "other", other), "arc_easy")
    assert "is not the official one" in printed.out


def test_without_a_crossing_the_beginning_is_compared_with_the_end(tmp_path, official, capsys):
    folder = make_run(tmp_path, official, evaluations=CROSSING)
    _, printed = call(capsys, folder, "arc_easy")
    assert "no crossing: the run's beginning and its end" in printed.out
    assert "MCF gained no question" in printed.out


def test_what_cannot_be_explained_is_told_in_one_line(folder, tmp_path, official, capsys):
    code, printed = call(capsys, folder, "average")
    assert code == 2
    assert "the average has no questions of its own" in printed.err
    code, printed = call(capsys, folder, "arc_easy", "--examples", -1)
    assert code == 2
    assert "--examples must be 0 or more" in printed.err
    half = load_run(make_run(tmp_path / "half", official, forms=("cf",)))
    with pytest.raises(RecordError, match="not asked in MCF"):
        explain(half, "arc_easy")
    one = load_run(make_run(tmp_path / "one", official, evaluations=1))
    with pytest.raises(RecordError, match="nothing to compare"):
        explain(one, "arc_easy")
    with pytest.raises(RecordError, match="no scores of task"):
        explain(one, "csqa")
