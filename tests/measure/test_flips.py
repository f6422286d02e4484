"""What turned around a crossing: every question counted once, and the sums exact."""

from collections import Counter

import numpy as np
import pytest

from olmes_monitor.measure.flips import GAINED, KINDS, explain_crossing, in_words, majority, usual_answer, windows


def simulated(evaluations=24, questions=300, seed=0):
    """Random walks of right and wrong: all sixteen combinations of before and after occur."""
    draw = np.random.default_rng(seed)
    time = np.linspace(0, 1, evaluations)[:, None]
    skill = draw.normal(0, 1, questions)
    cf = skill + 0.6 * time + draw.normal(0, 0.4, (evaluations, questions)) > 0
    mcf = skill + 3.0 * (time - 0.5) + draw.normal(0, 0.8, (evaluations, questions)) > 0.3
    return np.arange(evaluations) * 100, cf, mcf


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("subjects", [None, np.arange(300) % 7])
def test_every_question_is_counted_once_and_the_parts_add_up_to_the_rise(seed, subjects):
    tokens, cf, mcf = simulated(seed=seed)
    found = explain_crossing(tokens, cf, mcf, 1100, subjects=subjects)
    counts, shares, accuracy = found.counts, found.shares, found.accuracies
    assert set(counts) == set(KINDS)
    assert sum(counts.values()) == found.n == 300
    assert np.stack(list(found.kinds.values())).sum(axis=0).tolist() == [1] * 300
    rise = int(found.mcf_after.sum()) - int(found.mcf_before.sum())
    assert sum(counts[kind] for kind in GAINED) - counts["lost"] == rise  # whole questions: exact
    points = accuracy["mcf_after"] - accuracy["mcf_before"]
    assert sum(shares[kind] for kind in GAINED) - shares["lost"] == pytest.approx(points, abs=1e-12)
    assert sum(shares.values()) == pytest.approx(1, abs=1e-12)
    # The gap's change is what the forms gained and lost in all; flips are among the questions that changed it.
    assert found.flipped.sum() - found.flipped_back.sum() <= np.sum(found.mcf_after != found.mcf_before)


def test_kinds_against_a_loop_over_single_questions():
    tokens, cf, mcf = simulated(seed=9)
    found = explain_crossing(tokens, cf, mcf, 1100)

    def vote(array, side, question):
        return sum(bool(array[i, question]) for i in side) * 2 > len(side)

    expected, flipped = Counter(), 0
    for question in range(300):
        a, b = (vote(array, found.before, question) for array in (cf, mcf))
        c, d = (vote(array, found.after, question) for array in (cf, mcf))
        if b:
            expected["kept" if d else "lost"] += 1
        elif not d:
            expected["never"] += 1
        else:
            expected["format" if a else "shared" if c else "knowledge"] += 1
        flipped += (a, b, c, d) == (True, False, False, True)
    assert expected == found.counts
    assert flipped == found.flipped.sum() > 0


def test_format_learning_and_knowledge_are_told_apart():
    """MCF reaches exactly CF's right answers, or exactly those that CF never had."""
    cf = np.tile(np.arange(100) < 60, (12, 1))
    rising = np.arange(12)[:, None] >= 6
    learns_form = explain_crossing(range(12), cf, rising & cf, 5)
    assert (learns_form.counts["format"], learns_form.counts["knowledge"], learns_form.format_share) == (60, 0, 1.0)
    assert learns_form.format_open == 0.6
    assert in_words(learns_form).endswith("MCF learned the form, and with it said what CF knew")
    assert "60 questions that MCF gained, CF already had 100 % right (of all that MCF had wrong: 60 %)" in in_words(
        learns_form
    )
    learns_facts = explain_crossing(range(12), cf, rising & ~cf, 5)
    assert (learns_facts.counts["format"], learns_facts.counts["knowledge"]) == (0, 40)
    assert learns_facts.format_share == 0.0
    assert in_words(learns_facts).endswith("MCF learned answers that CF did not have")
    blind = explain_crossing(range(12), cf, rising & (np.arange(100) % 5 < 2), 5)  # 24 of CF's 60, 16 of the other 40
    assert in_words(blind).endswith("no more and no less than by chance")
    both = explain_crossing(range(12), rising & cf, rising & cf, 5)
    assert both.counts["shared"] == 60
    nothing = explain_crossing(range(12), cf, cf, 5)
    assert nothing.format_share is None
    assert in_words(nothing) == "MCF gained no question"
    assert nothing.counts == {"kept": 60, "format": 0, "knowledge": 0, "shared": 0, "lost": 0, "never": 40}


def test_one_bad_evaluation_turns_no_question():
    cf = np.tile(np.arange(50) < 30, (10, 1))
    mcf = np.repeat(np.arange(10)[:, None] >= 5, 50, axis=1)
    clean = explain_crossing(range(10), cf, mcf, 4)
    mcf[5] = False  # a glitch right after the crossing
    assert explain_crossing(range(10), cf, mcf, 4).counts == clean.counts


def test_windows_end_where_a_form_is_clearly_ahead():
    tokens, error = np.arange(10) * 10, np.full(10, 0.01)
    gap = np.array([-0.3, -0.2, -0.1, -0.05, -0.01, 0.01, 0.01, 0.05, 0.1, 0.2])
    before, after = windows(tokens, gap, error, 45, 3)
    assert (before.tolist(), after.tolist()) == ([1, 2, 3], [7, 8, 9])
    before, after = windows(tokens, gap, error * 100, 45, 3)  # nothing is clear: next to the crossing
    assert (before.tolist(), after.tolist()) == ([2, 3, 4], [5, 6, 7])
    before, after = windows(tokens, gap, error, None, 3)
    assert (before.tolist(), after.tolist()) == ([0, 1, 2], [7, 8, 9])
    gap[1] = np.nan
    assert windows(tokens, gap, error, 45, 3)[0].tolist() == [0, 2, 3]
    assert [side.tolist() for side in windows(tokens[:2], gap[[0, 9]], error[:2], 5, 3)] == [[0], [1]]


def test_nothing_to_compare_is_said():
    one = np.ones((1, 4))
    with pytest.raises(ValueError, match="nothing to compare"):
        explain_crossing([5], one, one, None)
    with pytest.raises(ValueError, match="nothing to compare"):
        explain_crossing([5, 6], np.ones((2, 4)), np.ones((2, 4)), 2)
    with pytest.raises(ValueError, match="at least 1"):
        explain_crossing([5, 6], np.ones((2, 4)), np.ones((2, 4)), 5, window=0)
    with pytest.raises(ValueError, match="shape"):
        explain_crossing([5, 6], np.ones((2, 4)), np.ones((2, 5)), 5)


def test_usual_answer_agrees_with_the_vote_and_takes_the_latest_of_equals():
    gold = np.array([0, 0, 0, 0, 1])
    answers = np.array([[0, 2, 1, -1, 1], [0, 2, 2, -1, 1], [3, 0, 3, -1, 0]])
    right = majority((answers == gold).astype(float))
    assert right.tolist() == [True, False, False, False, True]
    assert usual_answer(answers, right, gold).tolist() == [0, 2, 3, -1, 1]
