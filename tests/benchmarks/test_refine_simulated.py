"""Zooming in, simulated: it narrows the interval where jitter and a coarse spacing make it wide, and costs what it may."""

import pytest
from refine import EVERY, REGULAR, Scenario, Simulated, play, zoomed


@pytest.mark.slow
def test_the_interval_of_a_steep_crossing_gets_a_fifth_narrower_for_at_most_30_percent_more_evaluations():
    """The suite's 9500 questions, a gap that rises 20 points an evaluation; docs/explain.md has the whole table."""
    found = play(Scenario(9500, 1.0, 20.0), 4, ("regular", "zoomed"))
    assert found.most <= 0.3
    assert found.width["zoomed"] < 0.8 * found.width["regular"]


@pytest.mark.parametrize("planned", [None, REGULAR * EVERY])
def test_the_cost_cap_holds_and_regular_points_stay(planned):
    for slope in (1.0, 20.0):
        run = Simulated(Scenario(400, 1.0, slope), 0)
        points = zoomed(run, planned)
        assert {i * EVERY for i in range(REGULAR + 1)} <= set(points)
        assert len(points) - (REGULAR + 1) <= 0.3 * REGULAR
        assert points == zoomed(Simulated(Scenario(400, 1.0, slope), 0), planned)
