import pytest

from olmes_monitor import Schedule
from olmes_monitor.errors import SetupError
from olmes_monitor.schedule import parse_tokens


@pytest.mark.parametrize(
    ("value", "tokens"),
    [
        (1000, 1000),
        (2.5e9, 2_500_000_000),
        ("1B", 10**9),
        ("1b", 10**9),
        ("500M", 500 * 10**6),
        ("2.5e9", 2_500_000_000),
        ("1.5 T", 1_500_000_000_000),
        ("40k", 40_000),
        ("1_000_000", 10**6),
        ("1,000", 1000),
        (" 7 ", 7),
    ],
)
def test_tokens_are_read_in_every_usual_spelling(value, tokens):
    assert parse_tokens(value) == tokens


@pytest.mark.parametrize(
    "value",
    [0, -5, 0.5, "0", "-1B", "", "B", "1X", "1.5", "one", "1e-3", float("nan"), float("inf"), "1e999", None, True],
)
def test_what_is_not_a_number_of_tokens_is_refused_with_the_mend(value):
    with pytest.raises(SetupError, match=r'every takes a positive number of tokens: .*"1B".*; got'):
        parse_tokens(value)


def test_an_evaluation_is_due_once_however_many_boundaries_a_step_crosses():
    schedule = Schedule("1K")
    assert not schedule.due(0, 999)
    assert schedule.due(999, 1000)
    assert not schedule.due(1000, 1001)
    assert schedule.due(1500, 9700)
    assert schedule.next(0) == 1000
    assert schedule.next(1000) == 2000
