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


def points(schedule, end):
    """All scheduled points up to `end`, by walking from one to the next."""
    found, at = [], 0
    while (at := schedule.next(at)) is not None and at <= end:
        found.append(at)
    return found


def test_an_evaluation_is_due_once_however_many_boundaries_a_step_crosses():
    schedule = Schedule("1K")
    assert not schedule.due(0, 999)
    assert schedule.due(999, 1000)
    assert not schedule.due(1000, 1001)
    assert schedule.due(1500, 9700)
    assert points(schedule, 3500) == [1000, 2000, 3000]


def test_given_points_are_taken_in_order_each_once_alone_or_besides_every():
    assert points(Schedule(None, at=["3K", 500, "1K", 1000]), 10**6) == [500, 1000, 3000]
    assert points(Schedule("2K", at=[500, "2K", 3000]), 6000) == [500, 2000, 3000, 4000, 6000]
    assert not Schedule(None, at=["1K"]).due(1000, 10**12)


@pytest.mark.parametrize("ratio", [1.05, 1.2, 2.0, 3])
def test_geometric_points_grow_by_the_ratio_and_none_is_left_out(ratio):
    schedule = Schedule(f"geometric:100M,{ratio}")
    expected = [round(10**8 * ratio**k) for k in range(15)]
    assert points(schedule, expected[-1]) == expected
    for point in expected:
        assert schedule.due(point - 1, point)
        assert not schedule.due(point, point + 1)


def test_a_geometric_schedule_whose_points_lie_closer_than_a_token_still_goes_on():
    assert points(Schedule("geometric:1,1.01"), 5) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "every", ["geometric:100M", "geometric:0,2", "geometric:1B,1", "geometric:1B,x", "geometric:1B,inf"]
)
def test_a_geometric_schedule_that_cannot_be_read_says_how_it_is_written(every):
    with pytest.raises(SetupError, match=r'"geometric:100M,1\.2"; got'):
        Schedule(every)


@pytest.mark.parametrize(
    ("schedule", "interval"),
    [
        (Schedule("1K"), 1000),
        (Schedule("geometric:1K,1.5"), 500),
        (Schedule("geometric:1K,4"), 1000),
        (Schedule(None, at=[700, 900, 2000]), 200),
        (Schedule("100", at=[700]), 100),
        (Schedule(None, at_checkpoints=True), None),
    ],
)
def test_the_interval_is_the_shortest_one(schedule, interval):
    assert schedule.interval == interval


def test_a_schedule_without_any_point_or_with_one_for_a_list_is_refused():
    with pytest.raises(SetupError, match="nothing is scheduled"):
        Schedule(None, at_start=False, at_end=False)
    with pytest.raises(SetupError, match=r"list of token counts.*got '1B'"):
        Schedule(None, at="1B")
    with pytest.raises(SetupError, match="at takes a positive number of tokens"):
        Schedule(None, at=["soon"])
