import itertools
import math

import numpy as np
import pytest

from olmes_monitor.measure.bias import kendall_tau, label_bias, length_bias

NAN = float("nan")


def test_label_bias_by_hand():
    """Gold A A B C, answered A A A A and once nothing: 4 of A against shares ½ ¼ ¼, so a total variation of ½."""
    found = label_bias([0, 0, 0, 0, -1], [0, 0, 1, 2, 1], labels=4)
    assert found == {
        "predicted": [4, 0, 0, 0],
        "gold": [2, 1, 1, 0],
        "total_variation": 0.5,
        "accuracy": [1.0, 0.0, 0.0, None],
    }


def test_answers_spread_like_the_gold_choices_have_no_label_bias_right_or_wrong():
    assert label_bias([1, 0, 1, 0], [0, 1, 0, 1], labels=2)["total_variation"] == 0
    assert label_bias([1, 0, 1, 0], [0, 1, 0, 1], labels=2)["accuracy"] == [0.0, 0.0]


def test_always_the_same_label_over_balanced_gold():
    assert label_bias([2] * 8, [0, 1, 2, 3] * 2, labels=4)["total_variation"] == pytest.approx(0.75)


def test_label_bias_without_an_answer_is_no_bias():
    assert label_bias([-1], [0], labels=2) == {
        "predicted": [0, 0],
        "gold": [0, 0],
        "total_variation": 0.0,
        "accuracy": [None, None],
    }


def test_tau_by_hand():
    """Falling with length; rising; four choices with one swapped neighbour (5 concordant, 1 discordant)."""
    scores = [-1, -2, -3, -3, -2, -1, 1, 2, 4, 3]
    lengths = [1, 2, 3, 1, 2, 3, 1, 2, 3, 4]
    np.testing.assert_allclose(kendall_tau(scores, lengths, [0, 3, 6, 10]), [-1, 1, 4 / 6])


def test_tau_b_with_ties():
    """Lengths 1 1 2, scores 5 6 7: pairs (12) tied in length, (13) (23) concordant: 2/√(3·2)."""
    assert kendall_tau([5, 6, 7], [1, 1, 2], [0, 3]) == pytest.approx(2 / math.sqrt(6))
    assert kendall_tau([5, 5, 7], [1, 1, 2], [0, 3]) == pytest.approx(1)  # the same pair tied in both


def test_questions_without_a_tau_are_left_out_and_counted():
    scores = [-1, -2, -1, -1, NAN, -2, -9, -8, -np.inf, -np.inf, -1]
    lengths = [4, 4, 1, 2, 1, 2, 1, 2, 1, 2, 3]
    offsets = [0, 2, 4, 6, 8, 11]  # equal lengths; equal scores; NaN; τ = 1; two impossible ones are tied: 2/√(2·3)
    found = kendall_tau(scores, lengths, offsets)
    np.testing.assert_allclose(found, [NAN, NAN, NAN, 1, 2 / math.sqrt(6)])
    tau, undefined = length_bias(scores, lengths, offsets)
    assert tau == pytest.approx((1 + 2 / math.sqrt(6)) / 2)
    assert undefined == 3


def test_no_question_with_a_tau_gives_no_number():
    tau, undefined = length_bias([-1, -2], [3, 3], [0, 2])
    assert np.isnan(tau)
    assert undefined == 1
    assert np.isnan(length_bias([], [], [0])[0])


def naive_tau_b(scores, lengths):
    """τ_b from its definition, pair by pair."""
    concordant = discordant = only_score = only_length = 0
    for (s, n), (other, m) in itertools.combinations(zip(scores, lengths, strict=True), 2):
        if (s - other) * (n - m) > 0:
            concordant += 1
        elif (s - other) * (n - m) < 0:
            discordant += 1
        elif s != other:
            only_score += 1
        elif n != m:
            only_length += 1
    decided = concordant + discordant
    below = (decided + only_score) * (decided + only_length)
    return (concordant - discordant) / math.sqrt(below) if below else NAN


def test_tau_agrees_with_a_loop():
    random = np.random.default_rng(11)
    offsets = np.concatenate(([0], np.cumsum(random.integers(1, 7, 400))))
    scores, lengths = random.integers(0, 5, offsets[-1]), random.integers(1, 5, offsets[-1])  # ties abound
    expected = [naive_tau_b(scores[a:b].tolist(), lengths[a:b].tolist()) for a, b in itertools.pairwise(offsets)]
    assert np.isnan(expected).sum() > 20
    np.testing.assert_allclose(kendall_tau(scores, lengths, offsets), expected)


def test_scores_and_lengths_must_be_of_the_same_choices():
    with pytest.raises(ValueError, match="lengths has shape"):
        kendall_tau([-1, -2], [1], [0, 2])
