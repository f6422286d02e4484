"""What the lines of a record tell a run that goes on."""

import pytest

from olmes_monitor.state import attempts, last_evaluated, live, saved_states, tokens_at


def line(tokens, step, fingerprint="a", **more):
    made = {"fingerprint": fingerprint, "suite": "tiny", "point": {"tokens": tokens, "step": step}}
    return {**made, "scores_file": "x", **more}


SECOND = {"attempt": 2, "since": 200}
LINES = [
    line(0, 0),
    line(100, 1),
    line(5, 9, "b"),
    line(300, 3),
    line(400, 4),
    line(300, 3, **SECOND),
    line(500, 7, **SECOND),
]


def test_attempts_are_counted_for_each_suite():
    assert attempts(LINES, "a") == 2
    assert attempts(LINES, "b") == 1
    assert attempts(LINES, "c") == 0


def test_what_training_went_back_on_is_not_live():
    assert tokens_of(LINES) == [0, 100, 300, 500]
    assert tokens_of([line(0, 0), line(300, 3), line(400, 4, attempt=2, since=300)]) == [0, 300, 400]
    # From 200 on, another training: what the first measured at 300 is not of this curve, though nothing was measured there.
    assert tokens_of([line(0, 0), line(300, 3), line(400, 4, **SECOND)]) == [0, 400]
    assert tokens_of([line(0, 0), line(300, 3), line(400, 4, attempt=2, since=0)]) == [400]
    assert tokens_of([line(0, 0), line(300, 3), line(200, 2, point={"tokens": 200, "step": 2, "origin": "scan"})]) == [
        0,
        300,
    ]
    assert last_evaluated(LINES, "a", 499) == 300
    assert last_evaluated(LINES, "a", 500) == 500
    assert last_evaluated(LINES, "c", 500) is None


def tokens_of(lines):
    return [found["point"]["tokens"] for found in live(lines, "a")]


@pytest.mark.parametrize(
    ("step", "tokens"),
    [(3, (300, True)), (2, (200, False)), (5, (400, False)), (9, (600, False)), (0, (0, True))],
)
def test_tokens_of_a_step_are_known_or_lie_evenly_between(step, tokens):
    assert tokens_at(LINES, "a", step) == tokens


def test_a_record_of_the_start_only_tells_nothing():
    assert tokens_at([line(0, 0)], "a", 5) is None
    assert tokens_at([], "a", 5) is None
    assert tokens_at([line(100, 10)], "a", 5) == (50, False)  # training starts at 0


def test_states_in_a_trainers_json_are_read_one_or_several():
    entry = {"args": {"adopt": "x"}, "attributes": {"restored": {"tokens": 3}}}
    never = {"args": {"adopt": "y"}, "attributes": {"restored": None}}
    assert saved_states({"OLMESCallback": entry}, "OLMESCallback") == [("x", {"tokens": 3})]
    assert saved_states({"OLMESCallback": [never, entry]}, "OLMESCallback") == [("x", {"tokens": 3})]
    assert saved_states({"TrainerControl": {"args": {}}}, "OLMESCallback") == []
