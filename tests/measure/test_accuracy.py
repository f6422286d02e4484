import itertools

import numpy as np
import pytest

from olmes_monitor.measure import floors
from olmes_monitor.measure.accuracy import correct, count_ties, mean, predict, stderr

NAN = float("nan")


def test_the_first_of_equally_good_choices_is_predicted():
    scores, offsets = [-1, -1, -2, -3, -2, -2, -4, -4], [0, 3, 6, 8]
    np.testing.assert_array_equal(predict(scores, offsets), [0, 1, 0])
    assert count_ties(scores, offsets) == 3


def test_nan_never_wins_and_undoes_only_its_own_question():
    scores = [NAN, -1, -2, -3, NAN, -5, -1, -9]
    offsets = [0, 2, 4, 6, 8]
    np.testing.assert_array_equal(predict(scores, offsets), [-1, 0, -1, 0])
    np.testing.assert_array_equal(correct(predict(scores, offsets), [1, 0, 1, 1]), [NAN, 1, NAN, 0])
    assert count_ties([NAN, NAN, -1, -1], [0, 2, 4]) == 1


def test_impossible_choices_are_no_answer():
    np.testing.assert_array_equal(predict([-np.inf, -np.inf, -np.inf, -7], [0, 2, 4]), [-1, 1])


def test_no_questions_give_no_number():
    assert len(predict([], [0])) == 0
    assert np.isnan(mean([]))
    assert np.isnan(stderr([]))
    assert np.isnan(floors.floor([], []))


@pytest.mark.parametrize("offsets", [[0, 2, 2, 4], [0, 3], [1, 4], [0, 3, 2, 4], []])
def test_offsets_that_do_not_cut_into_questions_are_refused(offsets):
    with pytest.raises(ValueError, match="offsets"):
        predict([-1, -2, -3, -4], offsets)


def test_predict_agrees_with_a_loop():
    random = np.random.default_rng(3)
    sizes = random.integers(2, 6, 500)
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    scores = random.integers(-4, 0, offsets[-1]).astype(float)
    scores[random.random(len(scores)) < 0.05] = NAN
    expected = []
    for start, end in itertools.pairwise(offsets):
        choices = scores[start:end].tolist()
        expected.append(-1 if np.isnan(choices).any() else choices.index(max(choices)))
    np.testing.assert_array_equal(predict(scores, offsets), expected)


def test_binomial_standard_error():
    assert stderr([1] * 30 + [0] * 70) == pytest.approx(np.sqrt(0.3 * 0.7 / 99))
    assert np.isnan(stderr([1]))


def test_only_the_paired_error_sees_a_small_steady_gap():
    """100 questions, CF 50 right, MCF the same 50 and 8 more: gap 8 points."""
    cf = np.array([1] * 50 + [0] * 50)
    mcf = np.array([1] * 58 + [0] * 42)
    paired = stderr(mcf - cf)
    unpaired = np.hypot(stderr(cf), stderr(mcf))
    assert paired == pytest.approx(np.sqrt(0.08 * 0.92 / 99))  # 0.0273
    assert 0.08 / paired > 2.9
    assert 0.08 / unpaired < 1.2


def test_macro_and_micro_on_subjects_of_10_and_90():
    right = [1] * 9 + [0] * 1 + [1] * 27 + [0] * 63
    subjects = ["small"] * 10 + ["large"] * 90
    assert mean(right) == pytest.approx(0.36)
    assert mean(right, subjects) == pytest.approx((0.9 + 0.3) / 2)
    expected = np.sqrt(0.9 * 0.1 / 9 + 0.3 * 0.7 / 89) / 2
    assert stderr(right, subjects) == pytest.approx(expected)


def test_the_order_of_questions_does_not_matter():
    random = np.random.default_rng(0)
    values, subjects = random.integers(0, 2, 60), random.integers(0, 7, 60)
    order = random.permutation(60)
    assert mean(values, subjects) == pytest.approx(mean(values[order], subjects[order]))
    assert stderr(values, subjects) == pytest.approx(stderr(values[order], subjects[order]))


def test_small_subjects_take_the_pooled_variance():
    """Subjects of 2: within them the squares are 0.5, 0 and 0.5, on three degrees of freedom."""
    values, subjects = [1, 0, 1, 1, 0, 1], ["a", "a", "b", "b", "c", "c"]
    assert stderr(values, subjects) == pytest.approx(np.sqrt(3 * (1 / 3) / 2) / 3)
    # One question a subject: nothing within; the variance over all is wider, and honest.
    assert stderr([1, 0, 1, 0], ["a", "b", "c", "d"]) == pytest.approx(np.sqrt((1 / 3) / 4))


def test_macro_standard_error_agrees_with_a_bootstrap_within_subjects():
    random = np.random.default_rng(1)
    sizes = random.integers(20, 60, 12)
    subjects = np.repeat(np.arange(12), sizes)
    values = (random.random(len(subjects)) < np.repeat(random.uniform(0.2, 0.9, 12), sizes)).astype(float)
    macro = []
    for _ in range(2000):
        drawn = [random.choice(values[subjects == subject], size).mean() for subject, size in enumerate(sizes)]
        macro.append(np.mean(drawn))
    assert stderr(values, subjects) == pytest.approx(np.std(macro), rel=0.1)


def bootstrap(values, strata, statistic, draws=4000):
    """Standard deviation of statistic over draws with replacement within each stratum; values: (…, questions)."""
    random = np.random.default_rng(8)
    members = [np.flatnonzero(strata == stratum) for stratum in np.unique(strata)]
    found = [
        statistic(values[..., np.concatenate([random.choice(inside, len(inside)) for inside in members])])
        for _ in range(draws)
    ]
    return np.std(found)


def test_binomial_standard_error_agrees_with_a_bootstrap():
    values = np.array([1.0] * 120 + [0.0] * 180)
    assert stderr(values) == pytest.approx(bootstrap(values, np.zeros(300), np.mean), rel=0.1)


def correlated(n, random, level=0.5, gap=0.1):
    """(cf, mcf) of n questions, both right on the easy ones: (2, questions)."""
    ease, noise = random.random(n), random.normal(0, 0.1, (2, n))
    return np.stack([ease + noise[0] < level, ease + noise[1] < level + gap]).astype(float)


def test_paired_macro_gap_error_agrees_with_a_bootstrap_over_questions():
    random = np.random.default_rng(4)
    subjects = np.repeat(np.arange(10), random.integers(20, 60, 10))
    cf, mcf = both = correlated(len(subjects), random)

    def gap(drawn):  # questions are drawn within subjects, so the order of subjects stays
        return mean(drawn[1], subjects) - mean(drawn[0], subjects)

    paired = stderr(mcf - cf, subjects)
    assert paired == pytest.approx(bootstrap(both, subjects, gap), rel=0.1)
    assert paired < 0.8 * np.hypot(stderr(cf, subjects), stderr(mcf, subjects))


def test_ten_task_average_error_agrees_with_a_bootstrap():
    """Nine tasks of different sizes and levels and one with subjects, as the suite has them."""
    random = np.random.default_rng(6)
    sizes = [100, 60, 100, 120, 100, 50, 100, 80, 120]
    tasks = np.concatenate([np.repeat(np.arange(9), sizes), np.full(300, 9)])
    subjects = np.concatenate([np.zeros(sum(sizes), dtype=int), np.repeat(np.arange(1, 13), 25)])
    levels = random.uniform(0.25, 0.9, 10)[tasks]
    values = (random.random(len(tasks)) < levels).astype(float)
    found = bootstrap(values, 100 * tasks + subjects, lambda drawn: mean(drawn, subjects, tasks), draws=1500)
    assert stderr(values, subjects, tasks) == pytest.approx(found, rel=0.1)


def test_the_average_of_tasks_is_the_average_of_their_averages():
    values = np.array([1, 0, 1, 1, 0, 1, 1, 0, 0, 1, 1, 1], dtype=float)
    tasks = np.array(["x"] * 6 + ["y"] * 6)
    subjects = np.array([""] * 6 + ["s"] * 3 + ["t"] * 3)
    x, y = mean(values[:6]), mean(values[6:], subjects[6:])
    assert mean(values, subjects, tasks) == pytest.approx((x + y) / 2)
    parts = np.hypot(stderr(values[:6]), stderr(values[6:], subjects[6:])) / 2
    assert stderr(values, subjects, tasks) == pytest.approx(parts)
    both = np.stack([values, 1 - values])
    np.testing.assert_allclose(mean(both, subjects, tasks), [(x + y) / 2, 1 - (x + y) / 2])


def test_floors():
    sizes, gold = [2, 4, 4, 4], [0, 1, 1, 1]
    assert floors.chance(sizes) == pytest.approx((0.5 + 3 * 0.25) / 4)
    assert floors.best_label(gold) == 0.75
    assert floors.floor(sizes, gold) == 0.75
    assert floors.floor([2, 2], [0, 1]) == 0.5
    # Macro: label 0 is right in half of subject a and in none of b, label 1 in the other half of a and in all of b.
    assert floors.best_label([0, 1, 1, 1], ["a", "a", "b", "b"]) == 0.75


def test_longest_and_shortest_take_the_first_of_equals():
    chars, offsets = [3, 5, 5, 2, 2, 9], [0, 3, 6]
    assert floors.pick_longest(chars, offsets, [1, 2]) == 1.0
    assert floors.pick_longest(chars, offsets, [2, 2]) == 0.5
    assert floors.pick_shortest(chars, offsets, [0, 0]) == 1.0
    assert floors.pick_shortest(chars, offsets, [0, 1]) == 0.5


def test_the_guesses_behind_the_floor_average_to_it():
    random = np.random.default_rng(0)
    for repeat in range(50):
        n = int(random.integers(1, 40))
        sizes = random.integers(2, 6, n)
        gold = random.integers(0, sizes)
        subjects = random.integers(0, 3, n) if repeat % 2 else None
        guesses = floors.guesses(sizes, gold, subjects)
        assert float(mean(guesses, subjects)) == pytest.approx(floors.floor(sizes, gold, subjects), abs=1e-12)
        labels = {tuple((gold == label).astype(float)) for label in range(5)}
        assert tuple(guesses) in labels | {tuple(1 / sizes)}
