"""The parts below find_crossover: what is noise, what is smooth, when a lead is clear and where its run begins."""

import numpy as np
import pytest

from olmes_monitor.measure import find_crossover
from olmes_monitor.measure.accuracy import stderr
from olmes_monitor.measure.gap import contrasts, jitter_variance, smoother, spikes, width
from olmes_monitor.measure.resample import covariance, draws
from olmes_monitor.measure.verdict import abrupt, begins, bound, clear, runs, zeros


@pytest.fixture
def generator():
    return np.random.default_rng(7)


def uneven(generator, n=40):
    return np.cumsum(generator.integers(1, 30, n)).astype(float)


def test_contrasts_see_nothing_of_a_parabola_and_independent_noise_at_its_own_variance(generator):
    x = uneven(generator)
    rows = contrasts(x)
    assert rows.shape == (37, 40)
    np.testing.assert_allclose(rows @ (3 + 2 * x - 0.01 * x**2), 0, atol=1e-10)
    np.testing.assert_allclose(np.sum(rows**2, axis=1), 1)
    assert contrasts(x[:3]).shape == (0, 3)


def test_jitter_is_what_the_questions_do_not_explain(generator):
    """400 evaluations, noise 1 point of which the questions' flips are 0.6: jitter 0.8, before and after an outlier."""
    x = np.arange(400.0)
    lead = np.tanh((x - 200) / 60) + 0.01 * generator.standard_normal(400)
    lead[250] -= 0.5
    flips = 0.006**2 * np.eye(400) + 0.02**2  # and a part common to all evaluations, which is no jitter
    jitter, independent = jitter_variance(x, lead, flips, centred=True)
    assert np.sqrt(np.median(jitter)) == pytest.approx(0.008, rel=0.15)
    np.testing.assert_allclose(independent, 0.006**2)
    assert np.sqrt(np.median(jitter_variance(x, lead, np.zeros((400, 400)))[0])) == pytest.approx(0.01, rel=0.15)


def test_the_jitter_known_at_an_evaluation_does_not_change_with_later_ones(generator):
    x, lead = uneven(generator, 60), generator.standard_normal(60)
    shared = np.eye(60) * 0.1
    whole = jitter_variance(x, lead, shared)[0]
    for seen in (2, 3, 4, 5, 26, 27, 28, 59):
        part = jitter_variance(x[:seen], lead[:seen], shared[:seen, :seen])[0]
        np.testing.assert_allclose(part, whole[:seen])


def test_a_spike_stands_out_from_both_sides_a_step_does_not():
    lead = np.array([0, 0, 0, 0.3, 0, 0, 0.5, 0.5, 0.5, 0.2, 0.5])
    assert np.flatnonzero(spikes(lead, 0.01)).tolist() == [3, 9]
    assert not spikes(lead, 0.1).any()
    assert not spikes(lead[1:5], 0.01).any()  # four evaluations cannot tell


@pytest.mark.parametrize("half", [0, 1, 3, 9])
def test_the_smoother_keeps_a_line_and_is_the_weighted_least_squares_line(generator, half):
    x = uneven(generator)
    rows = smoother(x, half)
    np.testing.assert_allclose(rows @ (5 - 0.3 * x), 5 - 0.3 * x, rtol=1e-9)
    curve = generator.standard_normal(40)
    for i in (0, 1, 20, 39) if half > 1 else ():
        near = np.arange(max(0, i - half), min(40, i + half + 1))
        weight = np.sqrt((1 - (np.abs(near - i) / (half + 1)) ** 3) ** 3)
        slope_and_value = np.polyfit(x[near], curve[near], 1, w=weight)
        assert (rows @ curve)[i] == pytest.approx(np.polyval(slope_and_value, x[i]))


def test_the_window_is_wide_where_noise_hides_the_bend_and_narrow_at_a_jump(generator):
    x = np.arange(100.0)
    flat = 0.0002 * (x - 50) + 0.01 * generator.standard_normal(100)
    jump = np.where(x < 50, -0.3, 0.3) + 0.001 * generator.standard_normal(100)
    assert width(x, 0.0002 * (x - 50), 49, 0.01**2) == 48  # a line: nothing speaks against the widest
    assert width(x, jump, 49, 0.001**2) == 0
    assert width(x, flat, 49, 0.02**2) > width(x, flat, 49, 0.002**2)


SUBJECTS = {
    "none": None,
    "large": ["a"] * 30 + ["b"] * 50 + ["c"] * 20,
    "small": [f"s{i % 40}" for i in range(100)],
    "mixed": ["a"] * 60 + [f"s{i % 15}" for i in range(40)],
    "single": [str(i) for i in range(100)],
}


@pytest.mark.parametrize("kind", SUBJECTS)
@pytest.mark.parametrize("tasks", [None, ["x"] * 70 + ["y"] * 30])
def test_the_covariance_has_the_standard_errors_on_its_diagonal(generator, kind, tasks):
    values = generator.integers(-1, 2, (6, 100)).astype(float)
    found = covariance(values, SUBJECTS[kind], tasks)
    np.testing.assert_allclose(np.sqrt(np.diag(found)), stderr(values, SUBJECTS[kind], tasks))
    sums = np.sqrt(covariance(values[:1] + values[1:2], SUBJECTS[kind], tasks))  # the rest by polarization
    expected = (sums[0, 0] ** 2 - found[0, 0] - found[1, 1]) / 2
    assert found[0, 1] == pytest.approx(expected)


def test_one_question_has_no_covariance():
    assert np.isnan(covariance(np.ones((3, 1)))).all()
    assert np.isnan(covariance(np.ones((3, 0)))).all()


def test_draws_have_the_covariance_they_were_asked_for(generator):
    root = generator.standard_normal((5, 3))
    shared = root @ root.T  # of rank 3
    found = draws(shared, 0.5, 200_000, generator)
    np.testing.assert_allclose(np.cov(found.T), shared + 0.5 * np.eye(5), atol=0.1)
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=0.03)


def test_the_interval_is_that_of_questions_drawn_with_replacement(generator):
    """Against the bootstrap by hand: whole questions drawn anew, the crossing found in each draw."""
    n, evaluations = 400, 12
    ability = generator.standard_normal(n)
    cf = np.repeat(ability > -0.3, evaluations).reshape(n, evaluations).T
    level = np.linspace(1.2, -1.2, evaluations)[:, None]
    mcf = 0.7 * ability + 0.7 * generator.standard_normal(n) > level
    found = find_crossover(np.arange(evaluations) * 1000, cf, mcf)
    diff = mcf.astype(float) - cf
    crossings = []
    for _ in range(2000):
        lead = diff[:, generator.integers(0, n, n)].mean(axis=1)
        before = np.flatnonzero(lead <= 0)[-1]
        crossings.append(1000 * (before - lead[before] / (lead[before + 1] - lead[before])))
    lo, hi = np.quantile(crossings, [0.025, 0.975])
    # The draws of find_crossover have the prior's trace of jitter more; quantiles of 2000 draws waver by some percent.
    assert found.lo == pytest.approx(lo, abs=0.12 * (hi - lo))
    assert found.hi == pytest.approx(hi, abs=0.12 * (hi - lo))


def test_questions_answered_alike_in_both_forms_say_nothing_so_adding_them_changes_little(generator):
    """Paired: a thousand questions on which CF and MCF always agree leave the crossing and its interval where they were."""
    cf = np.repeat(generator.random(300) < 0.5, 30).reshape(300, 30).T
    mcf = generator.random((30, 300)) < np.linspace(0.2, 0.8, 30)[:, None]
    alike = np.repeat(generator.random(1000) < 0.5, 30).reshape(1000, 30).T
    alone = find_crossover(np.arange(30) * 100, cf, mcf)
    more = find_crossover(np.arange(30) * 100, np.hstack([cf, alike]), np.hstack([mcf, alike]))
    assert more.tokens == pytest.approx(alone.tokens, abs=30)
    assert more.hi - more.lo == pytest.approx(alone.hi - alone.lo, rel=0.25)


def slow_begins(curve, behind):
    """The same by its definition: the last place from which every stretch backwards sums to none."""
    far = [i for i in range(len(curve)) if curve[i] < -behind[i]]
    first = far[-1] + 1 if far else 0
    sums = {after: sum(curve[:after]) for after in range(first, len(curve) + 1)}
    least = min(sums.values())
    return max(after for after in sums if sums[after] == least) - 1


def test_the_lasting_run_begins_where_the_sum_of_the_lead_is_least(generator):
    curves = generator.integers(-3, 5, (500, 9)).astype(float) / 4
    behind = generator.integers(0, 5, 9) / 4.0
    expected = [slow_begins(curve, behind) for curve in curves]
    assert begins(curves, behind).tolist() == expected
    assert {-1, 3, 8} <= set(expected)


def test_zeros_lie_on_the_line_between_or_outside():
    x = np.array([0.0, 10, 30])
    curves = np.array([[-1, 1, 1], [-1, -1, 3], [1, 1, 1], [-1, -1, -1], [-1, 0, 1]], dtype=float)
    assert zeros(x, curves, np.array([0, 1, -1, 2, 1])).tolist() == [5, 15, -np.inf, np.inf, 10]


def test_a_lead_stands_until_the_contrary_is_clear():
    def said(ahead, behind):
        return runs(*(np.array([sign == "x" for sign in text]) for text in (ahead, behind)))

    assert said("..xx..", "......") == (2, False)
    assert said("..xx..", "....x.") == (None, True)
    assert said("..x..x", "...x..") == (5, False)
    assert said("......", "xxxxxx") == (None, False)


def test_the_bound_grows_with_the_looks_and_with_what_is_new_at_each():
    looks = np.arange(1, 1001)
    common, new = bound(looks, np.zeros(1000)), bound(looks, np.ones(1000))
    assert common[0] == new[0] == pytest.approx(2.6)
    assert (np.diff(common) > 0).all()
    assert (new[1:] > common[1:]).all()
    assert new[-1] < 4.5


def test_clear_needs_k_in_a_row_a_sum_of_evidence_and_more_than_one_high_value():
    n = 12
    shared, none = np.full((n, n), 0.005**2), np.zeros(n)
    jitter = np.full(n, 0.01**2)

    def at(lead, k=3):
        return np.flatnonzero(clear(np.array(lead), shared, jitter, none, k)).tolist()

    behind = [-0.1] * 6
    assert at([*behind, 0.06, 0.06, 0.06, 0.06, 0.06, 0.06]) == [8, 9, 10, 11]
    assert at([*behind, 0.06, 0.06, -0.01, 0.06, 0.06, 0.06]) == [11]
    assert at([*behind, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01]) == []
    assert at([*behind, 0.001, 0.9, 0.001, 0.001, 0.001, 0.001]) == []  # one value, however high
    assert at([*behind, 0.06, 0.06, 0.06, 0.06, 0.06, 0.06], k=5) == [10, 11]
    assert at([0.5] * n, k=n + 1) == []
    evidence = [*behind, 0.026, 0.026, 0.026, 0.026, 0.026, 0.026]
    assert at(evidence)[0] > 8  # not clear by three; it adds up


def test_where_the_curve_is_straight_nothing_is_abrupt_and_a_step_is_all():
    x, none = np.array([0.0, 1, 2, 4, 5]), np.zeros((5, 5))
    assert abrupt(x, x - 3, none, 2) == 0
    assert abrupt(x, np.array([-1.0, -1, -1, 1, 1]), none, 2) == 1
    knee = np.array([-1.0, -1, -1, 1, 2.0])  # flat, then as steep as the rise itself: half of it is explained
    assert abrupt(x, knee, none, 2) == pytest.approx(1.5 * (1 - 1 / 2))
    assert abrupt(x, np.array([1.0, 1, 1, 0, 0]), none, 2) == 0  # no rise
    assert abrupt(x[:2], np.array([-1.0, 1]), none[:2, :2], 0) == 1  # nothing on either side
    # The same step within its noise is none.
    assert abrupt(x, np.array([-1.0, -1, -1, 1, 1]), np.eye(5), 2) == 0


def test_a_step_between_two_evaluations_may_lie_anywhere_between_them():
    random = np.random.default_rng(0)
    tokens, covered, widths = np.arange(20) * 100, [], []
    for _ in range(60):
        truth = random.uniform(800, 1100)
        chance = np.where(tokens < truth, 0.25, 0.85)
        taste = random.random(1000)
        cf = np.broadcast_to(random.random(1000) < 0.55, (20, 1000))
        found = find_crossover(tokens, cf, taste < chance[:, None])
        assert found.state == "confirmed"
        covered.append(found.lo <= truth <= found.hi)
        widths.append(found.hi - found.lo)
    assert np.mean(covered) >= 0.88  # 95 % are meant; a straight line between the two points holds less than half
    assert np.median(widths) <= 100
