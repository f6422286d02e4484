import numpy as np
import pytest

from olmes_monitor.measure import normalize, predict

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
        ("chars", {}, "unknown normalization 'chars'; the kinds are none, token, char, byte, pmi"),
        ("char", {"bytes": [1, 2]}, "needs chars="),
        ("pmi", {}, "needs unconditional="),
        ("token", {"tokens": [1]}, "shape"),
        ("token", {"tokens": [1, 0]}, "length below one"),
    ],
)
def test_wrong_input_is_refused_by_name(kind, inputs, words):
    with pytest.raises(ValueError, match=words):
        normalize([-1.0, -2.0], kind, **inputs)
