"""Two crossings compared: the interval covers the true difference, and pairing the questions narrows it."""

import numpy as np
import pytest

from olmes_monitor.measure import find_crossover
from olmes_monitor.measure.compare import Answers, compare

EVERY, EVALUATIONS, QUESTIONS = 10**9, 26, 240


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def simulated(seed, crossings=(10.3, 13.8), jitter=0.0):
    """Two runs over the same questions: CF constant, MCF rising; a question's two difficulties are the same in both.

    Over all questions there could be, P(right) = E σ(6(ability − difficulty)) with normal difficulties, equal for both
    forms where the abilities are: the crossing is where MCF's ability reaches CF's.
    """
    draw = np.random.default_rng(seed)
    shared, own = draw.normal(size=(2, QUESTIONS))
    difficulty = {"cf": shared, "mcf": 0.6 * shared + 0.8 * own}
    time = np.arange(EVALUATIONS)
    runs = []
    for crossing in crossings:
        ability = {"cf": np.zeros(EVALUATIONS), "mcf": 1.2 * np.tanh((time - crossing) / 6)}
        right = {
            form: draw.random((EVALUATIONS, QUESTIONS))
            < sigmoid(6 * ((ability[form] + jitter * draw.normal(size=EVALUATIONS))[:, None] - difficulty[form]))
            for form in ("cf", "mcf")
        }
        tokens = (time + 1) * EVERY
        cf, mcf = (right[form].astype(float) for form in ("cf", "mcf"))
        runs.append(Answers(tokens, cf, mcf, 0.2, find_crossover(tokens, cf, mcf, floor=0.2, samples=300)))
    return runs


def shuffled(run, seed):
    """The same run over questions in another order: alike in every figure of its own, no longer paired."""
    order = np.random.default_rng(seed).permutation(QUESTIONS)
    return run._replace(cf=run.cf[:, order], mcf=run.mcf[:, order])


@pytest.mark.parametrize("jitter", [0.0, 0.05])  # 0.05 of ability is about one accuracy point
def test_the_interval_covers_the_true_difference_and_pairing_narrows_it(jitter):
    true, covered, paired, unpaired, errors = (13.8 - 10.3) * EVERY, [], [], [], []
    for seed in range(60):
        a, b = simulated(seed, jitter=jitter)
        found = compare("task", a, b, samples=300)
        covered.append(found.lo <= true <= found.hi)
        paired.append(found.hi - found.lo)
        errors.append(found.tokens - true)
        if seed < 25:
            other = compare("task", a, shuffled(b, seed), samples=300)
            assert other.tokens == found.tokens
            unpaired.append(other.hi - other.lo)
    print(np.mean(covered), np.median(paired) / EVERY, np.median(unpaired) / EVERY, np.median(errors) / EVERY)
    assert np.mean(covered) >= 0.90  # of 60 runs, 95 % ± 5.6 points at two standard errors
    assert np.median(paired) < 0.85 * np.median(unpaired)
    assert abs(np.median(errors)) < 0.25 * EVERY


def test_the_difference_is_bs_crossing_minus_as_and_turns_with_them():
    a, b = simulated(3)
    forward, backward = compare("task", a, b), compare("task", b, a)
    assert forward.tokens == b.crossover.tokens - a.crossover.tokens == -backward.tokens > 0
    assert forward.lo < forward.tokens < forward.hi
    assert -backward.hi == pytest.approx(forward.lo, abs=0.3 * EVERY)
    assert -backward.lo == pytest.approx(forward.hi, abs=0.3 * EVERY)
    assert compare("task", a, b) == forward  # the same input, the same answer


def test_a_run_beside_itself_differs_by_its_jitter_alone():
    a, _ = simulated(4)
    found = compare("task", a, a)
    assert found.tokens == 0
    assert found.lo <= 0 <= found.hi
    assert found.hi - found.lo < 0.7 * (a.crossover.hi - a.crossover.lo) * 2**0.5


def test_other_evaluations_and_a_missing_one_do_not_matter():
    a, b = simulated(5)
    whole = compare("task", a, b)
    cf, mcf = b.cf[::2].copy(), b.mcf[::2].copy()
    mcf[3] = np.nan
    thinned = Answers(b.tokens[::2], cf, mcf, 0.2, find_crossover(b.tokens[::2], cf, mcf, floor=0.2))
    found = compare("task", a, thinned)
    assert found.tokens == thinned.crossover.tokens - a.crossover.tokens
    assert found.tokens == pytest.approx(whole.tokens, abs=1.5 * EVERY)
    assert found.lo < whole.tokens < found.hi


def test_averages_over_subjects_and_tasks_are_compared_as_the_headline_is():
    a, b = simulated(6)
    subjects = np.arange(QUESTIONS) % 8
    tasks = np.arange(QUESTIONS) // 120
    runs = [
        run._replace(crossover=find_crossover(run.tokens, run.cf, run.mcf, floor=0.2, subjects=subjects, tasks=tasks))
        for run in (a, b)
    ]
    found = compare("average", *runs, subjects=subjects, tasks=tasks)
    assert found.lo < found.tokens < found.hi
    assert found.tokens == pytest.approx(compare("task", a, b).tokens, abs=EVERY)  # equal strata: nearly the same


def test_undefined_where_one_has_not_crossed():
    a, b = simulated(7, crossings=(10.3, 200))
    found = compare("task", a, b)
    assert (found.tokens, found.lo, found.hi) == (None, None, None)
    assert found.b.state == "not_reached"
    with pytest.raises(ValueError, match="same questions"):
        compare("task", a, a._replace(cf=a.cf[:, 1:], mcf=a.mcf[:, 1:]))
