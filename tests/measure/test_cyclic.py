from itertools import pairwise

import numpy as np
import pytest
from synthetic import rows, table

from olmes_monitor.measure import summarize
from olmes_monitor.measure.cyclic import (
    consistent,
    debiased_answers,
    existing,
    order_accuracies,
    order_answers,
    spread,
)

NAN = float("nan")
# Three choices with gold 0, two with gold 1. In each order another constant is added: only the softmax counts.
OFFSETS, GOLD = np.array([0, 3, 5]), np.array([0, 1])
ORDERS = np.log(
    [
        [0.5, 0.3, 0.2, 0.06, 0.04],  # right, wrong
        [0.02, 0.07, 0.01, 0.1, 0.9],  # wrong, right
        [0.3, 0.05, 0.15, NAN, NAN],  # right
    ]
)


def shifted_table(orders=ORDERS, offsets=OFFSETS, gold=GOLD, **options):
    """A table of scores whose MCF is orders[0] and whose other orders stand in columns of their own."""
    mcf = [orders[0][a:b].tolist() for a, b in pairwise(offsets)]
    scores = table(rows("a", gold.tolist(), None, mcf, **options))
    sizes = np.repeat(np.diff(offsets), np.diff(offsets))
    for shift, order in enumerate(orders[1:], start=1):
        column = np.ma.masked_array(order, sizes <= shift)
        scores = scores.append_column(f"mcf_shift{shift}", [column.tolist()])
    return scores


def cyclic(*arguments, **options):
    tasks, _, problems = summarize(shifted_table(*arguments, **options), {"a": "none"})
    assert problems == {}
    return tasks["a"]["cyclic"]


def test_two_questions_by_hand():
    answers = order_answers(ORDERS, OFFSETS)
    assert answers.tolist() == [[0, 0], [1, 1], [0, -1]]
    assert existing(ORDERS, OFFSETS).tolist() == [[True, True], [True, True], [True, False]]
    # Averages 1.3/3 1.0/3 0.7/3 and 0.35 0.65 (in the second order 0.2 0.7 0.1, in the third 0.6 0.1 0.3).
    assert debiased_answers(ORDERS, OFFSETS).tolist() == [0, 1]
    assert order_accuracies(answers, OFFSETS, GOLD).tolist() == [0.5, 0.5, 1.0]
    assert consistent(answers, OFFSETS).tolist() == [0.0, 0.0]


def test_the_facts_of_a_task_by_hand():
    facts = cyclic()
    assert facts == {
        "accuracy": [0.5, 0.5, 1.0],
        "questions": [2, 2, 1],
        "debiased": 1.0,
        "gain": 0.5,  # 0 and 1, question by question
        "consistent": 0.0,
        "stderr_debiased": 0.0,
        "stderr_gain": pytest.approx(0.5),
        "stderr_consistent": 0.0,
        "spread": 0.0,  # of the two orders that both questions have
    }


def test_a_table_without_shifts_has_no_cyclic_facts():
    tasks, _, _ = summarize(shifted_table(ORDERS[:1]), {"a": "none"})
    assert "cyclic" not in tasks["a"]


def by_label(labels, shifts, questions):
    """ln p of each choice in each order, for a model that gives the labels these probabilities whatever they stand for."""
    return np.stack([np.tile(np.roll(np.log(labels), shift), questions) for shift in range(shifts)])


@pytest.mark.parametrize("labels", [[0.7, 0.1, 0.1, 0.1], [0.25] * 4, [0.4, 0.3, 0.2, 0.1]])
def test_a_model_blind_to_the_choices_follows_the_gold_label_through_the_orders(labels):
    """Gold is A in half of the questions. Whatever the labels' probabilities, all choices have one average: a tie."""
    gold = np.array([0, 0, 0, 0, 1, 1, 2, 3])
    facts = cyclic(by_label(labels, 4, 8), np.arange(0, 33, 4), gold)
    assert facts["accuracy"] == [0.5, 0.25, 0.125, 0.125]
    assert facts["spread"] == 0.375
    assert facts["consistent"] == 0.0
    assert facts["debiased"] == 0.5  # the first choice, as everywhere


def test_what_a_model_knows_is_what_debiasing_leaves():
    """It gives the gold choice 1 nat, label A 3: every order says A, and the average says gold."""
    gold = np.array([3, 1, 2, 3])
    liked = by_label(np.exp([3.0, 0, 0, 0]), 4, 4)
    knows = (np.tile(np.arange(4), 4) == np.repeat(gold, 4)).astype(float)
    facts = cyclic(liked + knows, np.arange(0, 17, 4), gold)
    assert facts["accuracy"] == [0.0, 0.25, 0.25, 0.5]
    assert (facts["debiased"], facts["gain"], facts["consistent"]) == (1.0, 1.0, 0.0)
    assert cyclic(by_label([1.0] * 4, 4, 4) + knows, np.arange(0, 17, 4), gold) == {
        **facts,
        "accuracy": [1.0] * 4,
        "gain": 0.0,
        "spread": 0.0,
        "consistent": 1.0,
    }


def test_the_numbers_are_over_subjects_like_the_headline():
    orders = np.log([[0.9, 0.1] * 3 + [0.1, 0.9], [0.6, 0.4] * 4])
    offsets, gold = np.arange(0, 9, 2), np.zeros(4, dtype=int)
    facts = cyclic(orders, offsets, gold, subjects=["astronomy"] * 3 + ["virology"])
    assert facts["accuracy"] == [0.5, 1.0]
    assert facts["spread"] == 0.5
    assert facts["consistent"] == 0.5
    assert facts["debiased"] == 0.5  # virology: 0.35 against 0.65
    answers = order_answers(orders, offsets)
    assert order_accuracies(answers, offsets, gold).tolist() == [0.75, 1.0]


def test_orders_that_only_some_questions_have_count_for_these_alone():
    offsets = np.array([0, 2, 7])
    orders = np.full((5, 7), NAN)
    orders[:2, :2] = np.log([[0.9, 0.1], [0.8, 0.2]])
    orders[:, 2:] = np.log([0.6, 0.1, 0.1, 0.1, 0.1])
    orders[4, 2:] = np.log([0.1, 0.6, 0.1, 0.1, 0.1])
    facts = cyclic(orders, offsets, np.array([0, 0]))
    assert facts["questions"] == [2, 2, 1, 1, 1]
    assert facts["accuracy"] == [1.0, 1.0, 1.0, 1.0, 0.0]
    assert facts["spread"] == spread(facts["accuracy"], offsets) == 0.0
    assert facts["consistent"] == 0.5


@pytest.mark.parametrize("value", [NAN, None])
def test_one_nan_takes_the_cyclic_facts_out_and_a_warning_says_why(value):
    scores = shifted_table()
    column = scores["mcf_shift1"].to_pylist()
    column[4] = value
    scores = scores.set_column(scores.column_names.index("mcf_shift1"), "mcf_shift1", [column])
    tasks, metrics, problems = summarize(scores, {"a": "none"})
    assert problems == {}
    assert "cyclic" not in tasks["a"]
    assert metrics["olmes/mcf/a"] == 0.5  # the official order is as it was
    assert tasks["a"]["warnings"] == [
        "no cyclic measures: 1 of 2 questions have NaN log-likelihoods in mcf_shift1, first 'a-1'"
    ]


def test_an_order_that_was_not_asked_leaves_no_number():
    scores = shifted_table().drop_columns(["mcf_shift2"])
    tasks, _, _ = summarize(scores, {"a": "none"})
    assert "cyclic" not in tasks["a"]
    assert "mcf_shift2" in tasks["a"]["warnings"][0]


def test_impossible_labels_have_no_probability_and_all_of_them_no_answer():
    orders = np.array([[-np.inf, -1.0], [-1.0, -np.inf]])
    assert debiased_answers(orders, [0, 2]).tolist() == [0]
    assert order_answers(orders, [0, 2]).tolist() == [[1], [0]]
    orders[1] = -np.inf
    assert debiased_answers(orders, [0, 2]).tolist() == [-1]
    assert np.isnan(consistent(order_answers(orders, [0, 2]), [0, 2])).all()
