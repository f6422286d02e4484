"""What find_crossover answers to each kind of curve: accuracies with known gaps, and questions with known answers."""

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from olmes_monitor.measure import find_crossover
from olmes_monitor.measure.floors import guesses

CURVES = os.environ.get("OLMES_MONITOR_CURVES")
NAN = float("nan")


def cross(gaps, tokens=None, noise=0.0, **options):
    """Accuracies with the given gaps over 1000 questions; noise: standard deviation of what is added to each."""
    gaps = np.asarray(gaps, dtype=float)
    gaps = gaps + noise * np.random.default_rng(0).standard_normal(len(gaps))
    tokens = np.arange(1, len(gaps) + 1) * 100 if tokens is None else tokens
    return find_crossover(tokens, np.full(len(gaps), 0.5), 0.5 + gaps, **{"n": 1000} | options)


RISE = np.clip(np.arange(40) * 0.02 - 0.31, -0.2, 0.1)  # zero at evaluation 15.5, tokens 1650; flat from 21 on


def test_the_crossing_lies_where_the_gap_turns_positive_to_stay():
    found = cross([-0.1, -0.1, 0.1, 0.2], steps=[10, 20, 30, 40])
    assert (found.state, found.tokens, found.step) == ("tentative", 250, 25)
    assert 150 < found.lo < 250 < found.hi < 350
    assert (found.confirmed, found.confirmed_step) == (None, None)


def test_a_lead_that_lasts_is_confirmed_and_the_evidence_is_given():
    found = cross(RISE, noise=0.004, steps=np.arange(40) * 7)
    assert found.state == "confirmed"
    assert found.tokens == pytest.approx(1650, abs=50)
    assert found.step == pytest.approx(15.5 * 7, abs=4)
    assert found.lo < 1650 < found.hi
    assert 1650 < found.confirmed <= 2300  # at a gap of at most 0.1, four and a half standard errors
    assert found.confirmed_step == (found.confirmed - 100) // 100 * 7
    assert found.p_value < 1e-4
    assert 0.002 < found.jitter < 0.006
    np.testing.assert_allclose(found.smooth, RISE, atol=0.02)
    assert np.interp(found.tokens, found.evaluated, found.smooth) == pytest.approx(0, abs=1e-3)


def test_the_confirming_evaluation_needs_no_later_one_and_never_moves():
    whole = cross(RISE, noise=0.01)
    number = whole.confirmed // 100
    assert cross(RISE[: number - 1], noise=0.01).state == "tentative"
    for seen in range(number, 41):
        part = find_crossover(whole.evaluated[:seen], np.full(seen, 0.5), 0.5 + whole.gap[:seen], n=1000)
        assert (part.state, part.confirmed) == ("confirmed", whole.confirmed)


def test_k_evaluations_in_a_row_are_needed():
    steep = [-0.2] * 8 + [0.2] * 8
    assert cross(steep).confirmed == 1100
    assert cross(steep, k=5).confirmed == 1300
    assert cross(steep[:12], k=5).state == "tentative"


def test_spacing_may_be_irregular():
    assert cross([-0.03, 0.01], tokens=[1000, 9000]).tokens == 7000
    assert cross([-0.2, 0.0, 0.1], tokens=[10, 500, 501]).tokens == 500  # zero is not ahead, yet it is the crossing
    tokens = np.cumsum(np.random.default_rng(1).integers(1, 200, 60))
    true = tokens[29] + 11
    found = cross(np.clip((tokens - true) / 10_000, -0.2, 0.15), tokens=tokens, noise=0.003)
    assert found.state == "confirmed"
    assert found.lo < true < found.hi


@pytest.mark.parametrize("place", [3, 8, 30])
@pytest.mark.parametrize("size", [0.3, -0.3])
def test_one_outlier_neither_makes_nor_moves_a_crossing(place, size):
    gaps = RISE.copy()
    gaps[place] += size
    found, clean = cross(gaps, noise=0.004), cross(RISE, noise=0.004)
    assert found.state == "confirmed"
    assert found.tokens == pytest.approx(clean.tokens, abs=30)
    never = np.full(30, -0.02)
    never[place % 30] = abs(size)
    assert cross(never, noise=0.004).state == "not_reached"


def test_two_evaluations_ahead_are_not_three():
    assert cross([-0.1] * 10 + [0.2, 0.2] + [-0.1] * 10).state == "not_reached"


def test_after_a_recrossing_the_last_one_counts():
    found = cross([-0.1] * 6 + [0.1] * 6 + [-0.1] * 6 + [0.1] * 6, noise=0.003)
    assert found.state == "confirmed"
    assert found.tokens == pytest.approx(1850, abs=10)
    assert found.confirmed > 1850


def test_a_confirmed_lead_that_is_lost_is_reverted():
    found = cross([-0.1] * 6 + [0.1] * 6 + [-0.1] * 6, noise=0.003)
    assert (found.state, found.tokens, found.lo, found.hi, found.confirmed) == ("reverted", None, None, None, None)
    assert cross([-0.1] * 6 + [0.02] * 6 + [-0.1] * 6, noise=0.003).state == "not_reached"  # it was never clear


def test_a_confirmed_lead_that_sinks_to_nothing_is_tentative_again():
    found = cross([-0.1] * 6 + [0.1] * 6 + [-0.02] * 14, noise=0.002)
    assert (found.state, found.confirmed) == ("tentative", None)
    assert found.tokens == pytest.approx(650, abs=10)  # where the lead that was clear began
    assert found.lo < found.tokens


def test_a_lead_from_the_start_that_sinks_to_nothing_is_undecided():
    assert cross([0.1] * 8, noise=0.002).state == "from_start"
    found = cross([0.1] * 8 + [-0.02] * 45, noise=0.002)
    assert (found.state, found.tokens) == ("undecided", None)
    assert cross([0.1] * 8 + [-0.1] * 8, noise=0.002).state == "reverted"


def test_ahead_from_the_first_evaluation_has_no_token_count():
    found = cross([0.1, 0.1, 0.2])
    assert (found.state, found.tokens, found.step, found.lo, found.hi) == ("from_start", None, None, None, None)
    assert found.confirmed == 300
    assert found.p_value < 1e-5


def test_ahead_from_the_first_evaluation_but_not_clearly_is_undecided():
    assert cross([0.01, 0.01, 0.012, 0.01]).state == "undecided"


def test_never():
    assert cross([-0.1, -0.2, 0.0]).state == "not_reached"
    assert cross([0.0] * 10).state == "not_reached"
    found = cross(np.minimum(RISE, -0.03), noise=0.005)
    assert (found.state, found.tokens, found.p_value) == ("not_reached", None, None)


def test_curves_that_touch_and_stay_are_not_confirmed():
    assert cross(np.minimum(RISE, 0), noise=0.01).state in ("tentative", "not_reached")


def test_where_the_lead_may_be_none_the_interval_is_open():
    found = cross([-0.1] * 6 + [0.005] * 4, noise=0.002)
    assert (found.state, found.hi) == ("tentative", None)
    assert found.lo < found.tokens
    found = cross([-0.005, 0.1, 0.1, 0.1])
    assert (found.lo, found.state) == (None, "confirmed")
    assert found.tokens < found.hi


def test_an_evaluation_without_a_value_is_skipped():
    found = cross([-0.1, NAN, 0.1, 0.1])
    assert (found.state, found.tokens) == ("tentative", 200)
    assert np.isnan(found.gap[1])
    assert np.isnan(found.smooth[1])
    right = np.array([[1, 0], [NAN, 1], [1, 1]])
    assert find_crossover([1, 2, 3], np.array([[1, 1]] * 3), right).state == "not_reached"
    holes = RISE.copy()
    holes[[0, 10, 15, 16, 39]] = NAN
    kept = np.isfinite(holes)
    whole, part = cross(holes), cross(holes[kept], tokens=np.arange(100, 4100, 100)[kept])
    assert whole == part
    np.testing.assert_array_equal(whole.smooth[kept], part.smooth)


@pytest.mark.parametrize("gaps", [[], [0.1], [NAN, 0.1], [NAN, NAN]])
def test_fewer_than_two_evaluations_decide_nothing(gaps):
    found = cross(gaps)
    assert (found.state, found.tokens, found.jitter, found.p_value) == ("undecided", None, None, None)


@pytest.mark.parametrize("questions", [1, 0])
def test_one_question_has_no_noise_that_could_be_known_so_nothing_is_confirmed(questions):
    cf = np.array([[1]] * 5 + [[0]] * 15)[:, :questions]
    found = find_crossover(np.arange(20), cf, 1 - cf)
    assert (found.lo, found.hi, found.confirmed, found.p_value) == (None, None, None, None)
    assert found.state == ("tentative" if questions else "undecided")
    assert cross(RISE, n=1).state == "tentative"


def test_at_its_floor_mcf_has_overtaken_nothing():
    """CF below chance, MCF at it: the gap is positive and means nothing."""
    tokens, cf, mcf = np.arange(8), [0.26] + [0.21] * 7, [0.25] * 8
    assert find_crossover(tokens, cf, mcf, n=10_000, floor=0.25).state == "not_reached"
    assert find_crossover(tokens, cf, mcf, n=10_000, floor=0.2).state == "confirmed"
    assert find_crossover(tokens[1:], cf[1:], mcf[1:], n=10_000, floor=0.25).state == "not_reached"


def test_the_guesser_that_is_the_floor_is_paired_so_its_own_answers_are_a_lead_of_exactly_zero():
    random = np.random.default_rng(3)
    gold = random.integers(0, 4, 200)
    always = guesses(np.full(200, 4), gold)
    # MCF says one label until evaluation 9, then learns; CF is far below the floor at first and above it from the sixth on.
    ability = np.concatenate([np.full(6, 0.1), np.full(14, 0.45)])[:, None]
    cf = random.random(200) < ability
    mcf = np.where(np.arange(20)[:, None] < 10, always > 0, random.random(200) < 0.9)
    paired = find_crossover(np.arange(20) * 10, cf, mcf, floor=always)
    alone = find_crossover(np.arange(20) * 10, cf, mcf, floor=float(always.mean()))
    assert paired.tokens == alone.tokens
    assert (paired.state, alone.state) == ("confirmed", "confirmed")
    np.testing.assert_array_equal(paired.gap, alone.gap)
    # With a floor that knows no question its noise may pass for a lead at the very start: the interval is open there.
    assert alone.lo is None
    assert 50 <= paired.lo <= paired.tokens
    # The plateau before CF rises: what looks like a lead or not by chance with a floor that knows no question.
    early = [
        find_crossover(np.arange(6) * 10, cf[:6], mcf[:6], floor=floor) for floor in (always, float(always.mean()))
    ]
    assert early[0].state == "not_reached"
    with pytest.raises(ValueError, match=r"floor has shape \(3,\)"):
        find_crossover(np.arange(20), cf, mcf, floor=[0.2] * 3)


def test_a_lead_below_the_floor_is_none_so_noise_at_the_start_hides_no_crossing():
    """CF starts far below chance: MCF is above it from the first evaluation on, but above its floor from 250 on only."""
    tokens, cf, mcf = [0, 100, 200, 300, 400], [0.1, 0.15, 0.2, 0.2, 0.2], [0.25, 0.25, 0.28, 0.32, 0.5]
    assert find_crossover(tokens, cf, mcf, n=1000).state == "from_start"
    found = find_crossover(tokens, cf, mcf, n=1000, floor=0.3)
    assert (found.state, found.tokens) == ("tentative", 250)


def test_answers_give_the_paired_error_and_accuracies_the_unpaired():
    cf = np.zeros((2, 100), dtype=bool)
    cf[:, :50] = True
    mcf = cf.copy()
    mcf[1, 50:58] = True
    paired = find_crossover([1, 2], cf, mcf)
    unpaired = find_crossover([1, 2], cf.mean(1), mcf.mean(1), n=100)
    np.testing.assert_allclose(paired.gap, unpaired.gap)
    assert paired.stderr[1] == pytest.approx(np.sqrt(0.08 * 0.92 / 99))
    assert unpaired.stderr[1] == pytest.approx(np.sqrt((0.25 + 0.58 * 0.42) / 99))


def test_only_the_paired_answers_confirm_what_accuracies_leave_open():
    """The same accuracies: MCF right on 30 of 1000 questions more, and wrong on none that CF had right."""
    cf = np.zeros((16, 1000), dtype=bool)
    cf[:, :500] = True
    mcf = cf.copy()
    mcf[:6, :100] = False
    mcf[6:, 500:530] = True
    assert find_crossover(np.arange(16), cf, mcf).state == "confirmed"
    assert find_crossover(np.arange(16), cf.mean(1), mcf.mean(1), n=1000).state == "tentative"


def test_subjects_weigh_alike_whatever_their_size():
    """MCF is ahead on the 10 and behind on the 90: macro crosses, micro does not."""
    subjects = ["small"] * 10 + ["large"] * 90
    cf = np.zeros((2, 100))
    cf[:, 10:20] = 1
    mcf = np.zeros((2, 100))
    mcf[1, :5] = 1
    assert find_crossover([1, 2], cf, mcf).state == "not_reached"
    found = find_crossover([1, 2], cf, mcf, subjects=subjects)
    assert found.state == "tentative"
    np.testing.assert_allclose(found.gap, [-(10 / 90) / 2, (0.5 - 10 / 90) / 2])


def test_equal_macro_averages_are_equal_whatever_the_rounding():
    subjects = ["a"] * 3 + ["b"] * 7 + ["c"] * 3
    cf = np.array([[1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]] * 2)
    mcf = np.array([[0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]] * 2)
    assert find_crossover([1, 2], cf, mcf, subjects=subjects).state == "not_reached"


def test_whatever_the_curve_the_parts_of_an_answer_fit_together():
    generator = np.random.default_rng(3)
    seen = set()
    for _ in range(150):
        n = int(generator.integers(2, 40))
        walk = np.cumsum(generator.normal(0.002, 0.03, n)) - 0.05 + generator.normal(0, 0.02, n)
        walk[generator.random(n) < 0.05] = NAN
        found = cross(np.clip(walk, -0.5, 0.5), tokens=np.cumsum(generator.integers(1, 99, n)), samples=200)
        seen.add(found.state)
        assert (found.tokens is None) == (found.state not in ("tentative", "confirmed"))
        assert (found.confirmed is None) == (found.state not in ("confirmed", "from_start"))
        if found.tokens is None:
            assert (found.lo, found.hi) == (None, None)
            continue
        assert found.evaluated[0] <= found.tokens <= found.evaluated[-1]
        assert (found.lo or 0) <= found.tokens <= (found.hi or found.evaluated[-1])
        assert found.confirmed is None or found.tokens <= found.confirmed
        assert 0 <= found.p_value <= 1
    assert seen == {"not_reached", "tentative", "confirmed", "from_start", "reverted", "undecided"}


def test_the_same_input_gives_the_same_answer_and_level_widens_it():
    found = cross(RISE, noise=0.01)
    assert cross(RISE, noise=0.01) == found
    wide = cross(RISE, noise=0.01, level=0.99)
    assert wide.tokens == found.tokens
    assert wide.lo < found.lo < found.hi < wide.hi


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([1, 3, 3], [0.1] * 3, [0.2] * 3), "3 follows 3"),
        (([1, 3, 2], [0.1] * 3, [0.2] * 3), "must increase"),
        (([1, 2], [0.1] * 3, [0.2] * 3), "tokens has shape"),
        (([1, 2], [0.1] * 2, [0.2] * 3), "same questions"),
        (([1, 2], [31.0, 32.0], [0.2] * 2), "fractions"),
    ],
)
def test_wrong_input_is_refused_by_name(arguments, words):
    with pytest.raises(ValueError, match=words):
        find_crossover(*arguments, n=100)


@pytest.mark.parametrize("options", [{"k": 0}, {"samples": 0}, {"level": 95}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}={next(iter(options.values()))}"):
        cross(RISE, **options)


def test_accuracies_need_the_number_of_questions():
    with pytest.raises(ValueError, match="n="):
        find_crossover([1, 2], [0.1, 0.1], [0.0, 0.2])


# n of each task's split as the curves were measured, and what its questions give away (the most frequent label).
MEASURED = {
    "arc_challenge": (1172, 0.265, "confirmed", (95_000, 120_000)),
    "openbookqa": (500, 0.276, "confirmed", (65_000, 70_000)),
    "socialiqa": (1954, 0.335, "confirmed", (100_000, 160_000)),
    "arc_easy": (2376, 0.266, "confirmed", (150_000, 255_000)),
    "hellaswag": (10_042, 0.25, "not_reached", None),
    "piqa": (1838, 0.505, "not_reached", None),
    "csqa": (1221, 0.209, "not_reached", None),
    "boolq": (3270, 0.622, "not_reached", None),
}
UNSETTLED = {"boolq": ("not_reached", "tentative"), "csqa": ("not_reached", "tentative")}


def measured(run, task):
    with Path(CURVES).open() as file:
        rows = [row for row in csv.DictReader(file) if (row["run"], row["task"]) == (run, task)]
    tokens, steps = ([int(row[name]) for row in rows] for name in ("tokens", "step"))
    cf, mcf = ([float(row[name]) for row in rows] for name in ("cf", "mcf"))
    n, floor, state, span = MEASURED[task]
    return find_crossover(tokens, cf, mcf, steps=steps, n=n, floor=floor), state, span


needs_curves = pytest.mark.skipif(
    CURVES is None, reason="measured curves: OLMES_MONITOR_CURVES is not set (a CSV with run,step,tokens,task,cf,mcf)"
)


@needs_curves
@pytest.mark.parametrize("task", MEASURED)
def test_measured_curves_of_olmo2_7b_cross_where_the_eye_sees_it(task):
    found, state, span = measured("olmo2_7b", task)
    assert found.state == state
    if span is not None:
        assert span[0] <= found.step <= span[1]
        assert found.lo <= found.tokens <= found.hi < found.confirmed or found.hi < 2 * found.confirmed


@needs_curves
@pytest.mark.parametrize("task", MEASURED)
def test_measured_curves_of_olmo2_13b_tell_the_same_story(task):
    found, state, _ = measured("olmo2_13b", task)
    assert found.state in UNSETTLED.get(task, (state,))
