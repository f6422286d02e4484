import itertools
import math

import numpy as np
import pytest

from olmes_monitor.measure.signals import bits_per_byte, gold_probability, label_mass

NAN = float("nan")


def test_gold_probability_by_hand():
    """Probabilities 0.1 0.3 and 0.02 0.02 0.04: gold has 0.3 of 0.4 and 0.02 of 0.08."""
    found = gold_probability(np.log([0.1, 0.3, 0.02, 0.02, 0.04]), [0, 2, 5], [1, 0])
    np.testing.assert_allclose(found, [0.75, 0.25])


def test_gold_probability_of_sums_that_exp_cannot_hold():
    found = gold_probability([-1000.0, -1000.0 - math.log(3), -5000.0, -4000.0], [0, 2, 4], [0, 0])
    np.testing.assert_allclose(found, [0.75, 0.0])


def test_impossible_choices():
    found = gold_probability([-np.inf, -3.0, -3.0, -np.inf, -np.inf, -np.inf], [0, 2, 4, 6], [0, 0, 0])
    np.testing.assert_array_equal(found, [0.0, 1.0, NAN])


def test_nan_undoes_only_its_own_question():
    loglikelihood, offsets = [NAN, -1.0, -2.0, -2.0], [0, 2, 4]
    np.testing.assert_array_equal(gold_probability(loglikelihood, offsets, [1, 0]), [NAN, 0.5])
    np.testing.assert_allclose(label_mass(loglikelihood, offsets), [NAN, 2 * math.exp(-2)])


def test_gold_probability_agrees_with_a_loop():
    random = np.random.default_rng(7)
    sizes = random.integers(2, 6, 300)
    offsets, gold = np.concatenate(([0], np.cumsum(sizes))), random.integers(0, 2, 300)
    loglikelihood = random.normal(-10, 4, offsets[-1])
    expected = []
    for (start, end), answer in zip(itertools.pairwise(offsets), gold, strict=True):
        weights = [math.exp(value) for value in loglikelihood[start:end]]
        expected.append(weights[answer] / sum(weights))
    np.testing.assert_allclose(gold_probability(loglikelihood, offsets, gold), expected)


def test_bits_per_byte_by_hand():
    """One bit is ln 2: 8 bits over 4 bytes are 2 bits a byte, 3 over 6 half a bit."""
    loglikelihood = -math.log(2) * np.array([1.0, 8.0, 3.0, 9.0])
    np.testing.assert_allclose(bits_per_byte(loglikelihood, [5, 4, 6, 5], [0, 2, 4], [1, 0]), [2.0, 0.5])


def test_label_mass_by_hand():
    np.testing.assert_allclose(label_mass(np.log([0.1, 0.3, 0.02, 0.04]), [0, 2, 4]), [0.4, 0.06])


@pytest.mark.parametrize("signal", [lambda *args: gold_probability(*args, []), label_mass])
def test_no_questions_give_no_values(signal):
    assert len(signal([], [0])) == 0
