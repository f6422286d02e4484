"""Zooming in, simulated: it narrows the interval where the spacing is coarse beside the rise, and costs what it may."""

import pytest
from refine import EVERY, REGULAR, Scenario, Simulated, play, zoomed


@pytest.mark.parametrize("slope", [20.0, 40.0])
def test_a_steep_crossing_is_found_twice_as_precisely_for_at_most_30_percent_more_evaluations(slope):
    """9500 questions, half a point of jitter: over 32 runs 0.34 and 0.11 of the width (docs/explain.md has the whole table)."""
    found = play(Scenario(9500, 0.5, slope), 10, ("regular", "zoomed"))
    assert found.most <= 0.3
    assert found.width["zoomed"] <= 0.5 * found.width["regular"]
    assert found.error["zoomed"] < found.error["regular"]
    assert min(found.covered.values()) >= 0.8


def test_which_questions_were_asked_is_not_to_be_narrowed_by_any_schedule():
    found = play(Scenario(1000, 1.0, 5.0), 12)
    assert found.most <= 0.3
    assert min(found.width["zoomed"], found.width["dense"]) > 0.6 * found.width["regular"]
    assert found.width["zoomed"] < 1.15 * found.width["regular"]


@pytest.mark.parametrize("planned", [None, REGULAR * EVERY])
def test_the_cost_cap_holds_and_regular_points_stay(planned):
    for slope in (1.0, 20.0):
        run = Simulated(Scenario(400, 1.0, slope), 0)
        points = zoomed(run, planned)
        assert {i * EVERY for i in range(REGULAR + 1)} <= set(points)
        assert len(points) - (REGULAR + 1) <= 0.3 * REGULAR
        assert points == zoomed(Simulated(Scenario(400, 1.0, slope), 0), planned)
