import itertools

import numpy as np
import pytest

from olmes_monitor.measure import normalize, predict
from olmes_monitor.measure.normalize import NORMALIZATIONS, length_slope

ONE_QUESTION = [0, 2]


def winner(*args, **kwargs):
    return predict(normalize(*args, **kwargs), ONE_QUESTION)[0]


def test_pmi_is_a_difference_and_can_pick_another_choice_than_char():
    loglikelihood, chars, unconditional = [-6.0, -8.0], [3, 2], [-4.0, -9.0]
    np.testing.assert_array_equal(normalize(loglikelihood, "char", chars=chars), [-2.0, -4.0])
    np.testing.assert_array_equal(normalize(loglikelihood, "pmi", unconditional=unconditional), [-2.0, 1.0])
    assert winner(loglikelihood, "char", chars=chars) == 0
    assert winner(loglikelihood, "pmi", unconditional=unconditional) == 1  # a ratio, 1.5 against 0.89, would pick 0


def test_the_leading_space_counts_and_decides():
    """−2.2/len(" x") beats −5.2/len(" xyz"), but −2.2/len("x") loses to −5.2/len("xyz")."""
    texts, loglikelihood = [" x", " xyz"], [-2.2, -5.2]
    with_space = [len(text) for text in texts]
    without = [len(text.strip()) for text in texts]
    assert winner(loglikelihood, "char", chars=with_space) == 0  # −1.10 against −1.30
    assert winner(loglikelihood, "char", chars=without) == 1  # −2.20 against −1.73


def test_bytes_differ_from_characters_where_the_text_is_not_ascii():
    texts, loglikelihood = [" über", " over"], [-5.5, -5.4]
    chars, lengths = [len(text) for text in texts], [len(text.encode()) for text in texts]
    assert (chars, lengths) == ([5, 5], [6, 5])
    assert winner(loglikelihood, "char", chars=chars) == 1
    assert winner(loglikelihood, "byte", bytes=lengths) == 0  # −0.917 against −1.08


def test_none_and_token():
    np.testing.assert_array_equal(normalize([-3.0, -4.0], "none"), [-3.0, -4.0])
    np.testing.assert_array_equal(normalize([-3.0, -4.0], "token", tokens=[1, 2]), [-3.0, -2.0])
    assert normalize(np.float32([-3, -4]), "none").dtype == np.float64


def test_nan_and_infinities_stay_undefined():
    assert np.isnan(normalize([np.nan], "char", chars=[2]))
    assert np.isnan(normalize([-np.inf], "pmi", unconditional=[-np.inf]))


@pytest.mark.parametrize(
    ("kind", "inputs", "words"),
    [
        ("chars", {}, "unknown normalization 'chars'; the kinds are none, token, char, byte, pmi, bayes, anpmi"),
        ("char", {"bytes": [1, 2]}, "needs chars="),
        ("pmi", {}, "needs unconditional="),
        ("anpmi", {}, "needs unconditional="),
        ("bayes", {"offsets": [0, 2]}, "needs bytes="),
        ("bayes", {"bytes": [1, 2]}, "needs offsets="),
        ("bayes", {"bytes": [1, 2], "offsets": [0, 1]}, "offsets must run"),
        ("token", {"tokens": [1]}, "shape"),
        ("token", {"tokens": [1, 0]}, "length below one"),
    ],
)
def test_wrong_input_is_refused_by_name(kind, inputs, words):
    with pytest.raises(ValueError, match=words):
        normalize([-1.0, -2.0], kind, **inputs)


def test_bayes_by_hand():
    """Two questions, lengths ±1 and ±2 around their means, ℓ falling by 1 and by 4 from short to long: Σ(ℓ−ℓ̄)(n−n̄) is
    −1 and −8, Σ(n−n̄)² 2 and 8, so b is −9/10 a byte, although the questions' levels differ by 40 nats."""
    loglikelihood, lengths, offsets = [-1.0, -2.0, -41.0, -45.0], [3, 5, 10, 14], [0, 2, 4]
    assert length_slope(loglikelihood, lengths, offsets) == pytest.approx(-0.9)
    scores = normalize(loglikelihood, "bayes", bytes=lengths, offsets=offsets)
    np.testing.assert_allclose(scores, [1.7, 2.5, -32.0, -32.4])  # ℓ − b·n
    np.testing.assert_array_equal(predict(scores, offsets), [1, 0])


def test_bayes_takes_the_length_effect_out_and_leaves_no_slope():
    random = np.random.default_rng(2)
    offsets, lengths = np.arange(0, 4001, 4), random.integers(2, 60, 4000)
    level = np.repeat(random.normal(0, 30, 1000), 4)  # how hard each question is: no matter for b
    loglikelihood = level - 0.7 * lengths + random.normal(0, 1, 4000)
    assert length_slope(loglikelihood, lengths, offsets) == pytest.approx(-0.7, abs=0.005)
    scores = normalize(loglikelihood, "bayes", bytes=lengths, offsets=offsets)
    assert length_slope(scores, lengths, offsets) == pytest.approx(0, abs=1e-12)


def test_the_slope_agrees_with_a_loop_and_leaves_undefined_questions_out():
    random = np.random.default_rng(5)
    offsets = np.concatenate(([0], np.cumsum(random.integers(2, 6, 200))))
    lengths = random.integers(1, 40, offsets[-1])
    loglikelihood = -0.5 * lengths + random.normal(0, 3, offsets[-1])
    loglikelihood[random.random(offsets[-1]) < 0.02] = np.nan
    loglikelihood[7] = -np.inf
    above = below = 0.0
    for start, end in itertools.pairwise(offsets):
        n, value = lengths[start:end], loglikelihood[start:end]
        if np.isfinite(value).all():
            above += sum((v - value.mean()) * (m - n.mean()) for v, m in zip(value, n, strict=True))
            below += sum((m - n.mean()) ** 2 for m in n)
    assert length_slope(loglikelihood, lengths, offsets) == pytest.approx(above / below)
    scores = normalize(loglikelihood, "bayes", bytes=lengths, offsets=offsets)
    np.testing.assert_array_equal(np.isnan(scores), np.isnan(loglikelihood))


def test_without_lengths_that_differ_bayes_is_none():
    """WinoGrande: all choices share one continuation, so there is no length effect to take out."""
    scores = normalize([-3.0, -4.0], "bayes", bytes=[7, 7], offsets=[0, 2])
    np.testing.assert_array_equal(scores, [-3.0, -4.0])
    assert length_slope([], [], [0]) == 0


def test_anpmi_divides_pmi_by_the_answers_own_surprise():
    """(ℓ − u)/−u: choice 0 rises from −4 to −2, half of what it could; choice 1 from −9 to −6, a third. pmi picks 1."""
    loglikelihood, unconditional = [-2.0, -6.0], [-4.0, -9.0]
    np.testing.assert_allclose(normalize(loglikelihood, "anpmi", unconditional=unconditional), [0.5, 1 / 3])
    assert winner(loglikelihood, "anpmi", unconditional=unconditional) == 0
    assert winner(loglikelihood, "pmi", unconditional=unconditional) == 1


@pytest.mark.parametrize("unconditional", [0.0, 1e-17, np.nan, -np.inf])
def test_anpmi_of_an_answer_certain_or_impossible_by_itself_is_undefined(unconditional):
    assert np.isnan(normalize([-1.0], "anpmi", unconditional=[unconditional]))


def test_every_kind_can_be_asked_for():
    everything = {"tokens": [1, 2], "chars": [3, 4], "bytes": [3, 5], "unconditional": [-2.0, -2.5], "offsets": [0, 2]}
    for kind in NORMALIZATIONS:
        assert np.isfinite(normalize([-1.0, -2.0], kind, **everything)).all()
