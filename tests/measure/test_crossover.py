import csv
from pathlib import Path

import numpy as np
import pytest

from olmes_monitor.measure import find_crossover

CURVES = Path(__file__).parents[3] / "shared" / "data" / "olmo2_cf_mcf_curves.csv"
NAN = float("nan")


def cross(gaps, tokens=None, **options):
    """Accuracies with the given gaps over 1000 questions."""
    gaps = np.asarray(gaps, dtype=float)
    tokens = np.arange(1, len(gaps) + 1) * 100 if tokens is None else tokens
    return find_crossover(tokens, np.full(len(gaps), 0.5), 0.5 + gaps, n=1000, **options)


def test_the_crossing_is_interpolated_where_the_gap_turns_positive_to_stay():
    found = cross([-0.1, -0.1, 0.1, 0.2], steps=[10, 20, 30, 40])
    assert (found.state, found.tokens, found.step) == ("tentative", 250, 25)
    assert (found.lo, found.hi) == (None, None)


def test_irregular_spacing():
    assert cross([-0.03, 0.01], tokens=[1000, 9000]).tokens == 7000
    assert (
        cross([-0.2, 0.0, 0.1], tokens=[10, 500, 501]).tokens == 500
    )  # a gap of zero is not ahead, yet it is the crossing


def test_one_spike_is_no_crossing():
    assert cross([-0.1, 0.3, -0.1, -0.1]).state == "not_reached"
    assert cross([-0.1, 0.3, -0.1, 0.1]).tokens == 350


def test_after_a_recrossing_the_last_one_counts():
    assert cross([-0.1, 0.1, 0.1, -0.1, 0.1, 0.1]).tokens == 450


def test_ahead_for_two_evaluations_and_lost_again_is_reverted():
    found = cross([-0.1, 0.1, 0.1, -0.01])
    assert (found.state, found.tokens) == ("reverted", None)
    assert cross([-0.1, 0.03, 0.03, -0.01]).state == "not_reached"  # within two standard errors (2 × 0.0223)


def test_ahead_from_the_first_evaluation_has_no_token_count():
    found = cross([0.1, 0.1, 0.2])
    assert (found.state, found.tokens, found.step) == ("from_start", None, None)


def test_never():
    assert cross([-0.1, -0.2, 0.0]).state == "not_reached"


def test_an_evaluation_without_a_value_is_skipped():
    found = cross([-0.1, NAN, 0.1, 0.1])
    assert (found.state, found.tokens) == ("tentative", 200)
    assert np.isnan(found.gap[1])
    right = np.array([[1, 0], [NAN, 1], [1, 1]])
    assert find_crossover([1, 2, 3], np.array([[1, 1]] * 3), right).state == "not_reached"


@pytest.mark.parametrize("gaps", [[], [0.1], [NAN, 0.1], [NAN, NAN]])
def test_fewer_than_two_evaluations_decide_nothing(gaps):
    assert cross(gaps).state == "undecided"


def test_at_its_floor_mcf_has_overtaken_nothing():
    """CF below chance, MCF at it: the gap is positive and means nothing."""
    tokens, cf, mcf = [1, 2, 3], [0.26, 0.22, 0.21], [0.25, 0.25, 0.25]
    assert find_crossover(tokens, cf, mcf, n=1000, floor=0.25).state == "not_reached"
    assert find_crossover(tokens, cf, mcf, n=1000, floor=0.24).state == "tentative"
    assert find_crossover(tokens[1:], cf[1:], mcf[1:], n=1000, floor=0.25).state == "not_reached"


def test_a_lead_below_the_floor_is_none_so_noise_at_the_start_hides_no_crossing():
    """CF starts far below chance: MCF is above it from the first evaluation on, but rises above its floor at 250 only."""
    tokens, cf, mcf = [0, 100, 200, 300, 400], [0.1, 0.15, 0.2, 0.2, 0.2], [0.25, 0.3, 0.28, 0.32, 0.5]
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


def test_accuracies_need_the_number_of_questions():
    with pytest.raises(ValueError, match="n="):
        find_crossover([1, 2], [0.1, 0.1], [0.0, 0.2])


@pytest.mark.skipif(not CURVES.exists(), reason=f"the measured OLMo 2 curves are not at {CURVES.name}")
def test_measured_curves_of_olmo2_7b_cross_where_the_eye_sees_it():
    with CURVES.open() as file:
        rows = [row for row in csv.DictReader(file) if (row["run"], row["task"]) == ("olmo2_7b", "arc_challenge")]
    tokens, steps = ([int(row[name]) for row in rows] for name in ("tokens", "step"))
    cf, mcf = ([float(row[name]) for row in rows] for name in ("cf", "mcf"))
    found = find_crossover(tokens, cf, mcf, steps=steps, n=1172, floor=0.265)
    assert found.state == "tentative"
    assert 95_000 < found.step < 120_000
    assert 398e9 < found.tokens < 504e9
