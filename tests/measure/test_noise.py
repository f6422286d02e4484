"""Noise of a curve, taken apart and found again where it was put; what n questions resolve, against a simulated test."""

import math

import numpy as np
import pytest

from olmes_monitor.measure.noise import (
    SLOW,
    TaskNoise,
    advice,
    advice_before,
    resolvable_gap,
    task_noise,
)


def simulated(evaluations, questions, jitter, flip, seed, rise=0.3):
    """CF and MCF, (evaluations, questions). A share `flip` of the questions flickers at random; the others follow a
    threshold that is the same for all but for the jitter (in accuracy)."""
    draw = np.random.default_rng(seed)
    ease, level = draw.permutation(questions) / questions, 0.35 + rise * np.linspace(0, 1, evaluations)
    forms = []
    for _ in range(2):
        moved = level + draw.normal(0, jitter, evaluations) / (1 - flip)
        steady = ease[None, :] < moved[:, None]
        flickers = draw.random(questions) < flip
        forms.append(np.where(flickers, draw.random((evaluations, questions)) < 0.5, steady).astype(float))
    return np.arange(1, evaluations + 1) * 10, *forms


@pytest.mark.parametrize(("jitter", "flip"), [(0.0, 0.3), (0.01, 0.0), (0.01, 0.3), (0.02, 0.1)])
def test_flicker_and_jitter_are_found_as_they_were_put_in(jitter, flip):
    questions = 1000
    found = [task_noise(*simulated(60, questions, jitter, flip, seed)) for seed in range(12)]
    flicker = math.sqrt(flip * 0.25 / questions)
    steps = [noise.step for each in found for noise in (each.cf, each.mcf)]
    assert np.sqrt(np.mean(np.square(steps))) == pytest.approx(math.hypot(jitter, flicker), rel=0.15)
    jitters = [noise.jitter for each in found for noise in (each.cf, each.mcf)]
    assert np.sqrt(np.mean(np.square(jitters))) == pytest.approx(jitter, abs=0.2 * jitter + 0.5 * flicker)
    flickers = [noise.flicker for each in found for noise in (each.cf, each.mcf)]
    # Jitter turns a few answers too, and which questions stand that near is a matter of the sample.
    assert np.mean(flickers) == pytest.approx(math.hypot(flicker, math.sqrt(jitter / 2 / questions)), abs=0.001)
    gaps = [each.gap.step for each in found]
    assert np.sqrt(np.mean(np.square(gaps))) == pytest.approx(math.sqrt(2) * math.hypot(jitter, flicker), rel=0.2)


@pytest.mark.parametrize("evaluations", [6, 8, 12, 30])
def test_few_evaluations_do_not_bias_the_noise(evaluations):
    found = [task_noise(*simulated(evaluations, 1000, 0.01, 0.0, seed)).cf.step ** 2 for seed in range(300)]
    assert np.sqrt(np.mean(found)) == pytest.approx(0.01, rel=0.12)


def test_the_course_is_no_noise_and_one_bad_evaluation_is_not_either():
    tokens, cf, mcf = simulated(40, 1000, 0.0, 0.0, 0)
    assert task_noise(tokens, cf, mcf).cf.step < 0.001  # a steady rise of 30 points
    noisy = simulated(40, 1000, 0.01, 0.0, 0)
    spoiled = noisy[1].copy()
    spoiled[17] = 0
    # four of 37 differences hold it: the median moves a little
    assert task_noise(noisy[0], spoiled, noisy[2]).cf.step < 1.4 * task_noise(*noisy).cf.step
    missing = noisy[1].copy()
    missing[17] = np.nan
    assert task_noise(noisy[0], missing, noisy[2]).cf.step == pytest.approx(task_noise(*noisy).cf.step, rel=0.2)


def test_irregular_spacing_does_not_change_the_noise():
    draw = np.random.default_rng(0)
    found = []
    for seed in range(20):
        tokens, cf, mcf = simulated(120, 1000, 0.01, 0.0, seed)
        kept = np.sort(draw.choice(120, 50, replace=False))
        found.append(task_noise(tokens[kept], cf[kept], mcf[kept]).mcf.step)
    assert np.sqrt(np.mean(np.square(found))) == pytest.approx(0.01, rel=0.12)


def test_signal_to_noise_is_the_rise_over_the_noise_and_two_for_a_flat_curve():
    rising = [task_noise(*simulated(60, 1000, 0.01, 0.0, seed)).cf for seed in range(10)]
    assert np.mean([noise.signal for noise in rising]) == pytest.approx(0.3, rel=0.1)
    assert np.median([noise.signal_to_noise for noise in rising]) == pytest.approx(30, rel=0.2)
    assert np.median([noise.relative for noise in rising]) == pytest.approx(0.01 / 0.5, rel=0.2)
    flat = [task_noise(*simulated(20, 1000, 0.01, 0.0, seed, rise=0)).cf for seed in range(60)]
    assert np.median([noise.signal_to_noise for noise in flat]) == pytest.approx(2, abs=0.5)
    tokens = np.arange(20)
    constant = task_noise(tokens, np.ones((20, 50)), np.ones((20, 50)))
    assert (constant.cf.step, constant.cf.signal_to_noise, constant.discordance) == (0, math.inf, 0)


@pytest.mark.parametrize(("n", "discordance"), [(1000, 0.5), (1000, 0.2), (300, 0.4), (100, 0.5), (500, 0.1)])
def test_the_resolvable_gap_is_seen_in_80_of_100_evaluations(n, discordance):
    """Independent oracle: simulated evaluations, each tested with z = gap / its paired standard error under no gap."""
    gap = resolvable_gap(n, discordance)
    draw = np.random.default_rng(n)
    up, down = (discordance + gap) / 2, (discordance - gap) / 2
    counts = draw.multinomial(n, [up, down, 1 - discordance], size=40000)
    difference, differing = counts[:, 0] - counts[:, 1], counts[:, 0] + counts[:, 1]
    seen = np.abs(difference) > 1.959964 * np.sqrt(differing)  # McNemar
    assert seen.mean() == pytest.approx(0.80, abs=0.03)


def test_the_resolvable_gap_of_a_run_follows_its_questions_and_their_discordance():
    tokens, cf, mcf = simulated(30, 1000, 0.0, 0.3, 3)
    found = task_noise(tokens, cf, mcf)
    near = np.argsort(np.abs((mcf - cf).mean(axis=1)))[:5]
    assert found.discordance == pytest.approx((mcf != cf)[near].mean())
    assert found.resolvable == pytest.approx(resolvable_gap(999, found.discordance), rel=1e-3)
    # over subjects of equal size nothing changes but the variance between subjects, here none
    subjects = np.arange(1000) % 10
    assert task_noise(tokens, cf, mcf, subjects).resolvable == pytest.approx(found.resolvable, rel=0.05)
    fewer = task_noise(tokens, cf[:, :100], mcf[:, :100])
    assert fewer.resolvable > 2.5 * found.resolvable


def test_few_evaluations_have_no_noise_but_a_resolvable_gap():
    tokens, cf, mcf = simulated(5, 200, 0.01, 0.1, 0)
    found = task_noise(tokens, cf, mcf)
    assert (found.cf, found.mcf, found.gap, found.rise, found.evaluations) == (None,) * 5
    assert 0 < found.resolvable < 0.2
    with pytest.raises(ValueError, match="no evaluation has values"):
        task_noise([1], np.full((1, 4), np.nan), np.ones((1, 4)))
    with pytest.raises(ValueError, match="shape"):
        task_noise([1], np.ones((1, 4)), np.ones((1, 5)))
    with pytest.raises(ValueError, match="at least 1"):
        resolvable_gap(0)


def test_advice_before_training_is_for_small_suites_only():
    ten = [f"task_{i}" for i in range(10)]
    quick = advice_before(dict.fromkeys(ten, 100), "quick")
    assert quick == (
        "100 questions a task resolve a gap of 20 points (6.2 on the average of 10 tasks): crossings show late and with "
        "wide intervals; use suite='monitor' (1,000 resolve 6.3)"
    )
    assert advice_before(dict.fromkeys(ten, 1000) | {"openbookqa": 500}, "monitor") is None
    assert advice_before({"mine": 50}, "mine") == (
        "50 questions resolve a gap of 27 points: crossings show late and with wide intervals; ask more questions"
    )
    assert "ask more questions" in advice_before({"one": 1})


def test_advice_after_training_weighs_what_the_questions_resolve_against_the_gaps_rise():
    """The same rise, seen by 100 or 1000 questions, at 12 or 240 evaluations."""
    lines = {}
    for questions in (100, 1000):
        for evaluations in (12, 240):
            tokens, cf, _ = simulated(evaluations, questions, 0.0, 0.3, 1, rise=0)
            _, _, mcf = simulated(evaluations, questions, 0.0, 0.3, 2, rise=0.3)
            lines[questions, evaluations] = advice({"arc_easy": task_noise(tokens, cf, mcf)}, "quick")
    assert lines[1000, 12] == []
    (line,) = lines[100, 240]
    assert line.startswith(
        "arc_easy: 100 questions resolve a gap of 20 points, and from one evaluation to the next it rose 0.1"
    )
    assert "use suite='monitor' (1,000 resolve 6.3), or a larger every" in line
    worse = TaskNoise(100, None, None, None, 0.4, 0.2, 0.2 / (SLOW + 1))
    better = TaskNoise(100, None, None, None, 0.4, 0.2, 0.2 / (SLOW - 1))
    assert [line.split(":")[0] for line in advice({"a": better, "b": worse})] == ["b"]
