"""Zooming in: denser near the crossing, never beyond the cap, the same on every rank and after a resume."""

import json
import math

import numpy as np
import pytest

from olmes_monitor.errors import SetupError
from olmes_monitor.refine import Refiner, Seen, next_point, spacing, sudden

EVERY = 1000


def curve(leads, error=0.01, every=EVERY):
    return [Seen(i * every, lead, error) for i, lead in enumerate(leads)]


def play(lead, evaluations=60, error=0.015, confirmed_after=3, noise=0.0, seed=0, resume=False, **settings):
    """The points of a run whose gap is lead(tokens / EVERY); confirmed when clearly above for some regular ones."""
    refiner, draw = Refiner(EVERY, **settings), np.random.default_rng(seed)
    tokens, points, clear = 0, [], 0
    while tokens <= evaluations * EVERY:
        points.append(tokens)
        value = lead(tokens / EVERY) + noise * draw.normal()
        clear = clear + 1 if value > 2 * error else 0
        tokens = refiner.observe(tokens, {"task": (value, error)}, ["task"] if clear >= confirmed_after else [])
        if resume:
            again = Refiner(EVERY, **settings)
            again.load_state_dict(json.loads(json.dumps(refiner.state_dict())))
            assert again.next() == tokens
            refiner = again
    return np.array(points)


def steep(at):
    return 0.2 * math.tanh(0.8 * (at - 30.4))


def extras(points):
    return points[points % EVERY != 0]


def test_far_from_zero_and_on_a_slow_rise_evaluations_stay_regular():
    assert len(extras(play(lambda at: -0.3))) == 0
    assert len(extras(play(lambda at: -0.3 + 0.001 * at))) == 0
    # ±2 standard errors are 12 evaluations wide here: a few more among them would show nothing
    assert len(extras(play(lambda at: 0.005 * (at - 30)))) <= 3


def test_near_a_steep_crossing_they_come_down_to_the_floor_and_then_return_to_regular():
    points = play(steep)
    assert set(np.arange(61) * EVERY) <= set(points)  # the regular ones are always there
    assert np.diff(points).min() == EVERY // 8
    assert len(extras(points)) >= 6
    assert np.all(np.abs(extras(points) / EVERY - 30.4) < 3)
    assert np.all(np.diff(points[points > 34 * EVERY]) == EVERY)
    assert np.diff(play(steep, floor=EVERY // 4)).min() == EVERY // 4
    assert np.diff(play(steep, floor=EVERY)).min() == EVERY


def test_the_beginning_of_a_rise_within_one_spacing_is_looked_at_again():
    """From −0.2 to 0.2 with nearly all of it between 30 and 31: half an interval before the crossing it is 5 points up."""
    jump = lambda at: 0.2 * math.tanh(2 * (at - 30.5))  # noqa: E731
    found = extras(play(jump))
    assert np.sum((found / EVERY > 30) & (found / EVERY < 30.5)) >= 2
    assert np.all(np.abs(found / EVERY - 30.5) < 1)


def test_a_start_from_a_plateau_is_told_from_one_that_goes_on_and_from_noise():
    plateau = [-0.2, -0.2, -0.2, -0.2]
    assert sudden(curve([*plateau, -0.15]), EVERY, 1.5) < EVERY / 4
    assert sudden(curve([*plateau, -0.19]), EVERY, 1.5) == EVERY  # one standard error
    assert sudden(curve([*plateau, -0.15]), EVERY, 6.0) == EVERY
    assert sudden(curve([*plateau, 0.05]), EVERY, 1.5) == EVERY  # past it: nothing begins any more
    assert sudden(curve([*plateau, -0.15, -0.15]), EVERY, 1.5) == EVERY  # it stays where it rose to
    assert sudden(curve([0.1, 0.1, -0.1]), EVERY, 1.5) == EVERY
    assert sudden(curve([-0.15]), EVERY, 1.5) == EVERY


def test_noise_about_a_plateau_leaves_the_most_for_a_crossing_however_many_tasks_there_are():
    for tasks in (1, 11):
        spent, draw = 0, np.random.default_rng(tasks)
        for _ in range(20):
            refiner, tokens = Refiner(EVERY, planned=40 * EVERY), 0
            while tokens < 40 * EVERY:
                leads = {str(task): (-0.05 - 0.02 * task + 0.02 * draw.normal(), 0.02) for task in range(tasks)}
                tokens = refiner.observe(tokens, leads)
                spent += tokens % EVERY != 0
        assert 0 < spent < 20 * 0.3 * 40 / 2  # half of what may be spent is left for a crossing


def test_a_gap_that_falls_back_is_left_to_regular_evaluations():
    points = play(lambda at: 0.18 * math.exp(-((at - 20.3) ** 2) / 2) - 0.2)  # nearly touches zero at 20.3
    assert len(extras(points)) > 0
    assert np.all(np.diff(points[points > 23 * EVERY]) == EVERY)


@pytest.mark.parametrize("cap", [0.0, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("noise", [0.0, 0.03, 0.2])
@pytest.mark.parametrize("planned", [None, 60 * EVERY])
def test_the_cap_holds_whatever_the_curve_does(cap, noise, planned):
    for seed in range(5):
        points = play(lambda at: 0.02 * math.sin(at), noise=noise, seed=seed, cap=cap, planned=planned)
        at = np.arange(1, 61) * EVERY
        spent = np.searchsorted(extras(points), at, side="right")
        allowed = cap * (at // EVERY if planned is None else 60)
        assert np.all(spent <= allowed)
        assert set(np.arange(61) * EVERY) <= set(points)
        if cap == 1 and noise == 0.03:
            assert spent[-1] > 10  # the cap is what holds it back


def test_a_known_end_lets_an_early_crossing_have_what_a_late_one_would():
    def early(at):
        return steep(at + 25)

    assert len(extras(play(early))) < len(extras(play(early, planned=60 * EVERY)))


@pytest.mark.parametrize("every", [1000, 999, 7, 10**9, 123_456_789])
def test_points_increase_and_hit_every_multiple_also_where_every_is_not_divisible(every):
    tokens, extra, seen = 0, 0, [Seen(0, -0.3, 0.001)]
    points = []
    while tokens < 30 * every:
        point = next_point([seen], tokens, extra, every, cap=5.0)
        assert tokens < point <= (tokens // every + 1) * every
        tokens, extra = point, extra + (point % every != 0)
        points.append(point)
        seen.append(Seen(tokens, 0.2 * math.tanh(tokens / every - 15.3), 0.001))
    assert set(np.arange(1, 31) * every) <= set(points)
    assert extra > 0


def test_after_a_late_step_the_next_point_lies_beyond_it():
    """Training advances in whole steps: an evaluation may fall a little after the point that was due."""
    seen = curve([-0.3, -0.2, -0.02])
    seen[-1] = seen[-1]._replace(tokens=2013)
    assert 2013 < next_point([seen], 2013, 0, EVERY, cap=10.0) < 3000
    assert next_point([], 2013, 0, EVERY) == 3000


def test_regular_evaluations_that_fall_a_little_late_are_not_counted_as_extra():
    """Steps of 64 tokens: what is due at 1000 is asked at 1024."""
    refiner, tokens, asked = Refiner(EVERY), 0, []
    due = refiner.observe(0, {"a": (steep(0), 0.015)})
    while tokens < 60 * EVERY:
        tokens += 64
        if tokens >= due:
            asked.append(tokens)
            due = refiner.observe(tokens, {"a": (steep(tokens / EVERY), 0.015)})
    inside = np.diff(np.array([0, *asked]) // EVERY) == 0
    assert refiner.state_dict()["extra"] == inside.sum() > 5
    assert len(asked) - inside.sum() == 60
    assert inside.sum() <= 0.3 * 60


def test_the_decision_is_resumable_and_the_same_from_the_same_numbers():
    for noise in (0.0, 0.02):
        plain = play(steep, noise=noise, planned=60 * EVERY)
        assert np.array_equal(plain, play(steep, noise=noise, planned=60 * EVERY, resume=True))


def test_the_nearest_task_decides_and_a_settled_one_does_not():
    near, far = curve([-0.3, -0.2, -0.02]), curve([-0.5, -0.5, -0.5])
    alone = next_point([near], 2000, 0, EVERY, cap=5.0)
    assert alone < 3000
    assert next_point([far, near], 2000, 0, EVERY, cap=5.0) == alone
    assert next_point([far], 2000, 0, EVERY, cap=5.0) == 3000
    refiner = Refiner(EVERY, cap=5.0)
    for at, (a, b) in enumerate([(-0.3, -0.5), (-0.2, -0.5), (-0.02, -0.5)]):
        due = refiner.observe(at * EVERY, {"a": (a, 0.01), "b": (b, 0.01), "c": (math.nan, 0.01)})
    assert due == alone
    settled = Refiner(EVERY, cap=5.0)
    for at, a in enumerate([-0.3, -0.2, -0.02]):
        due = settled.observe(at * EVERY, {"a": (a, 0.01)}, ["a"])
    assert due == 3000


def test_a_confirmed_crossing_is_left_after_half_a_regular_interval():
    refiner, tokens = Refiner(EVERY, cap=5.0), 0
    points = []
    while tokens <= 6000:
        lead = 0.2 * math.tanh(0.8 * (tokens / EVERY - 3.3))
        settled = ["a"] if tokens > 3500 else []
        points.append(tokens)
        tokens = refiner.observe(tokens, {"a": (lead, 0.05)}, settled)
    confirmed = min(point for point in points if point > 3500)
    assert sum(confirmed < point < confirmed + EVERY / 2 for point in points) >= 2
    assert all(point % EVERY == 0 for point in points if point > confirmed + 0.7 * EVERY)


def test_training_that_goes_back_gives_up_what_lay_ahead():
    refiner = Refiner(EVERY, cap=5.0)
    for at, a in enumerate([-0.5, -0.3, -0.2, -0.02]):
        refiner.observe(at * EVERY, {"a": (a, 0.01)})
    assert refiner.observe(EVERY, {"a": (-0.5, 0.01)}) == 2 * EVERY
    assert [seen[0] for seen in refiner.state_dict()["curves"]["a"]] == [0, EVERY]


def test_noise_alone_seldom_counts_as_a_rise():
    wanted = []
    for seed in range(300):
        draw = np.random.default_rng(seed)
        wanted.append(spacing(curve(-0.1 + 0.01 * draw.normal(size=6)), EVERY, EVERY / 8, 12, 1.0) < EVERY)
    assert np.mean(wanted) < 0.1


def test_settings_that_cannot_be_meant_are_refused():
    for floor in (0, EVERY + 1):
        with pytest.raises(SetupError, match="floor"):
            Refiner(EVERY, floor=floor)
    with pytest.raises(SetupError, match="cap"):
        Refiner(EVERY, cap=-0.1)
    with pytest.raises(SetupError, match="cap"):
        Refiner(EVERY, cap=math.nan)
