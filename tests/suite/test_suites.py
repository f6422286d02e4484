"""Which questions a suite asks, and that this never drifts."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from official_wheel import SPLITS, full_task, own, requests

from olmes_monitor.errors import SetupError
from olmes_monitor.suite import Question, Suite, Template, load_suite

COUNTS = {  # the whole split, standard, monitor
    "arc_challenge": (1172, 1172, 1000),
    "arc_easy": (2376, 1000, 1000),
    "boolq": (3270, 1000, 1000),
    "csqa": (1221, 1221, 1000),
    "hellaswag": (10042, 1000, 1000),
    "mmlu": (14042, 14042, 1000),
    "openbookqa": (500, 500, 500),
    "piqa": (1838, 1000, 1000),
    "socialiqa": (1954, 1000, 1000),
    "winogrande": (1267, 1267, 1000),
}


@pytest.fixture(scope="module")
def standard():
    return load_suite("standard")


@pytest.fixture(scope="module")
def monitor():
    return load_suite()


def counts(suite):
    return {name: len(task.questions) for name, task in suite.tasks.items()}


def test_counts(standard, monitor):
    assert {name: len(full_task(name).questions) for name in COUNTS} == {name: n for name, (n, _, _) in COUNTS.items()}
    assert counts(standard) == {name: n for name, (_, n, _) in COUNTS.items()}
    assert monitor.name == "monitor"
    assert counts(monitor) == {name: n for name, (_, _, n) in COUNTS.items()}
    assert set(counts(load_suite("quick")).values()) == {100}
    for task in standard.tasks.values():
        assert all(len(task.shots_of(question)) == 5 for question in task.questions)


@pytest.mark.parametrize("name", ["boolq", "hellaswag", "piqa", "socialiqa"])
def test_subsets_equal_the_wheels_own_thousand_in_order(name, standard):
    own_sample = [r for r in requests(name, "rc", "") if r["doc_id"] < 1_000_000 and r["idx"] == 0]
    assert len(own_sample) == 1000
    task = standard.tasks[name]
    for question, official in zip(task.questions, own_sample, strict=True):
        assert task.requests(question, "cf")[0].context == official["request"]["context"]


def test_subsets_are_olmes_sample_of_the_whole_list(standard, monitor):
    for suite in (standard, monitor):
        for name in SPLITS:
            everything, asked = list(full_task(name).questions), list(suite.tasks[name].questions)
            if len(asked) == len(everything):
                assert asked == everything
            else:
                assert asked == random.Random(1234).sample(everything, 1000)


@pytest.mark.parametrize(("name", "total"), [("monitor", 1000), ("quick", 100)])
def test_mmlu_is_spread_evenly_over_its_subjects(name, total):
    task = load_suite(name, tasks=["mmlu"]).tasks["mmlu"]
    found = Counter(question.subject for question in task.questions)
    everything = full_task("mmlu").questions
    subjects = sorted({question.subject for question in everything})
    for i, subject in enumerate(subjects):
        share = ((i + 1) * total) // 57 - (i * total) // 57
        of_subject = [question for question in everything if question.subject == subject]
        asked = [question for question in task.questions if question.subject == subject]
        assert asked == random.Random(1234).sample(of_subject, share)
    assert set(found.values()) == ({17, 18} if total == 1000 else {1, 2})
    assert sum(found.values()) == total


def test_limit_draws_by_the_suites_own_rule(monitor):
    assert load_suite("monitor", limit=100).fingerprint == load_suite("quick").fingerprint
    assert load_suite("monitor", limit=10**6).fingerprint == monitor.fingerprint
    assert set(counts(load_suite("standard", limit=1)).values()) == {1}
    for limit in (0, -3):
        with pytest.raises(SetupError, match="at least 1"):
            load_suite(limit=limit)


def test_tasks_by_list_or_comma_string():
    assert list(load_suite("quick", tasks="piqa, boolq").tasks) == ["piqa", "boolq"]
    assert list(load_suite("quick", tasks=["piqa", "boolq", "piqa"]).tasks) == ["piqa", "boolq"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "standart"}, "did you mean standard\\? The suites are standard, monitor, quick"),
        ({"name": "zzz"}, "no suite 'zzz'; the suites are standard"),
        ({"tasks": "arc_chalenge"}, "did you mean arc_challenge"),
        ({"tasks": ["BoolQ"]}, "did you mean boolq"),
        ({"tasks": ["zzz"]}, "'zzz'; the tasks are arc_challenge, .*winogrande"),
        ({"tasks": []}, "no task is named"),
    ],
)
def test_unknown_names_offer_the_nearest(arguments, message):
    with pytest.raises(SetupError, match=message):
        load_suite(**arguments)


def test_fingerprint_is_the_same_in_processes_with_other_hash_seeds():
    program = "from olmes_monitor.suite import load_suite; print(load_suite('quick').fingerprint)"
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "1", "4242")
    }
    assert seen == {load_suite("quick").fingerprint}
    assert len(seen.pop()) == 16


def test_published_fingerprints(standard, monitor):
    """A change here is a change of what is asked: raise olmes.VERSION and say so in the changelog."""
    found = (standard.fingerprint, monitor.fingerprint, load_suite("quick").fingerprint)
    assert found == ("a6290c84751f828e", "83d9fb27aa02aabf", "01e465b4187353a8")


def test_fingerprint_changes_with_anything_that_changes_the_numbers():
    task = own(shots=[Question("s", "shot?", ("x", "y"), 0)])
    first, *rest = task.questions
    changed = [
        task,
        replace(task, name="other"),
        replace(task, version=2),
        replace(task, normalization="byte"),
        replace(task, template=Template("Question: {stem}\nAnswer :")),
        replace(task, questions=rest),
        replace(task, questions=[*rest, first]),
        replace(task, shots=()),
        replace(task, shots=[replace(task.shots[0], stem="shot!")]),
        *(
            replace(task, questions=[replace(first, **change), *rest])
            for change in (
                {"id": "q0x"},
                {"stem": first.stem + " "},
                {"choices": ("0", "2")},
                {"gold": 0},
                {"subject": "s"},
            )
        ),
    ]
    assert len({Suite("own", [task]).fingerprint for task in changed}) == len(changed)


def test_fingerprint_ignores_names_and_order_that_change_nothing():
    a, b = own("a"), own("b")
    assert Suite("one", [a, b]).fingerprint == Suite("two", {"b": b, "a": a}).fingerprint
    assert Suite("one", [a, b]).fingerprint == Suite("one", [a, replace(b, split="test")]).fingerprint


def test_a_fingerprint_exists_for_any_text():
    odd = Question("odd", "lone \ud800 surrogate", ("é", "🂡"), 0)
    assert len(Suite("odd", [own(count=1), replace(own("odd"), questions=[odd])]).fingerprint) == 16


def test_own_tasks_go_beside_official_ones():
    suite = Suite("mine", [*load_suite("quick", tasks="piqa").tasks.values(), own()])
    assert list(suite.tasks) == ["piqa", "own"]
    assert repr(suite) == "Suite('mine': piqa 100, own 3)"
    with pytest.raises(SetupError, match="two tasks named 'own'"):
        Suite("mine", [own(), own()])
    with pytest.raises(SetupError, match="has no tasks"):
        Suite("mine", {})


def test_loading_leaves_the_random_states_alone():
    """Rule 1 of the design: a run with and without the monitor draws the same numbers."""
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    _ = load_suite("quick").fingerprint
    assert random.getstate() == before[0]
    assert str(np.random.get_state()) == str(before[1])  # noqa: NPY002
