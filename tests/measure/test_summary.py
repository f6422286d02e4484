import subprocess
import sys

import numpy as np
import pytest
from synthetic import answered, rows, table

from olmes_monitor.measure import summarize

NAN = float("nan")


def easy(cf, mcf, task="arc_easy", **options):
    """A task whose questions all have gold 0 and are answered right where cf, mcf say so."""
    gold = [0] * len(cf if cf is not None else mcf)
    made = [None if right is None else answered(gold, right) for right in (cf, mcf)]
    return rows(task, gold, *made, **options)


def test_two_tasks_by_hand():
    a = easy([1, 1, 0, 0], [1, 1, 1, 0], "a")
    b = easy([1, 1], [0, 1], "b")
    tasks, metrics, problems = summarize(table(a, b), {"a": "char", "b": "none"})
    assert problems == {}
    assert metrics["olmes/cf/a"] == 0.5
    assert metrics["olmes/mcf/a"] == 0.75
    assert metrics["olmes/gap/a"] == 0.25
    assert metrics["olmes/score/a"] == 0.75
    assert metrics["olmes/cf/average"] == 0.75
    assert metrics["olmes/mcf/average"] == 0.625
    assert metrics["olmes/gap/average"] == -0.125
    assert metrics["olmes/score/average"] == pytest.approx((0.75 + 1.0) / 2)  # the better form of each task
    assert metrics["olmes/stderr/cf/a"] == pytest.approx(np.sqrt(0.25 / 3))
    assert metrics["olmes/stderr/gap/a"] == pytest.approx(0.25)  # differences 0 0 1 0: sd 0.5, over √4
    assert metrics["olmes/stderr/gap/average"] == pytest.approx(np.hypot(0.25, 0.5) / 2)
    assert len(metrics) == 7 * 3
    assert (tasks["a"]["best"], tasks["b"]["best"]) == ("mcf", "cf")
    assert tasks["a"]["n"] == 4
    assert tasks["a"]["normalization"] == "char"
    assert (tasks["a"]["chance"], tasks["a"]["floor"]) == (0.25, 1.0)  # gold is always the first label here
    assert (tasks["a"]["ties_cf"], tasks["a"]["ties_mcf"]) == (0, 0)
    assert set(tasks["a"]["cf_by_normalization"]) == {"none", "token", "byte"}
    assert tasks["a"]["label_mass"] == pytest.approx(np.exp(-0.5) + 3 * np.exp(-3))


def test_values_are_plain_floats_fit_for_json():
    tasks, metrics, _ = summarize(table(easy([1, 0], [1, 1])), {"arc_easy": "char"})
    assert {type(value) for value in metrics.values()} == {float}
    assert {type(value) for value in tasks["arc_easy"].values()} <= {float, int, str, dict}


def test_the_headline_is_over_subjects_and_micro_is_kept_apart():
    cf, mcf = [1] * 9 + [0] * 1 + [1] * 27 + [0] * 63, [1] * 100
    part = easy(cf, mcf, "mmlu", subjects=["small"] * 10 + ["large"] * 90)
    tasks, metrics, _ = summarize(table(part), {"mmlu": "char"})
    assert metrics["olmes/cf/mmlu"] == pytest.approx(0.6)
    assert tasks["mmlu"]["micro"]["cf"] == pytest.approx(0.36)
    assert not [name for name in metrics if "micro" in name]


def test_pmi_needs_and_uses_the_unconditional():
    cf, unconditional = [[-6.0, -8.0]] * 6, [[-4.0, -9.0]] * 6
    tasks, _, _ = summarize(table(rows("csqa", [1] * 6, cf, unconditional=unconditional)), {"csqa": "pmi"})
    assert (tasks["csqa"]["cf"], tasks["csqa"]["cf_by_normalization"]["char"]) == (1.0, 0.0)
    _, metrics, problems = summarize(table(rows("csqa", [1] * 6, cf)), {"csqa": "pmi"})
    assert metrics == {}
    assert "unconditional" in problems["csqa"]


def test_one_nan_takes_its_task_and_the_average_out_and_says_which():
    bad = easy([1, 1, 0], [1, 1, 1], "bad")
    bad[4]["mcf"] = NAN
    tasks, metrics, problems = summarize(table(easy([1, 0], [1, 1], "good"), bad), {"good": "char", "bad": "char"})
    assert problems == {"bad": "mcf: 1 of 3 questions have NaN log-likelihoods, first 'bad-1'"}
    assert {name.rsplit("/", 1)[1] for name in metrics} == {"good"}
    assert "mcf" not in tasks["bad"]
    assert tasks["bad"]["floor"] == 1.0


def test_a_null_among_answers_is_as_bad_as_a_nan():
    part = easy([1, 1, 0], [1, 1, 1])
    part[0]["cf"] = None
    assert "cf: 1 of 3" in summarize(table(part), {"arc_easy": "char"})[2]["arc_easy"]


def test_one_formulation_alone_has_no_gap_no_score_and_no_problem():
    tasks, metrics, problems = summarize(table(easy([1, 0], None)), {"arc_easy": "char"})
    assert problems == {}
    kinds = {name.split("/", 1)[1].rsplit("/", 1)[0] for name in metrics}
    assert kinds == {"cf", "stderr/cf"}
    assert "label_mass" not in tasks["arc_easy"]
    assert set(summarize(table(easy(None, [1, 0])), {"arc_easy": "char"})[1]) >= {"olmes/mcf/arc_easy"}


def test_no_questions_give_no_numbers():
    assert summarize(table([]), {}) == ({}, {}, {})


def test_one_question_has_an_accuracy_but_no_error():
    _, metrics, _ = summarize(table(easy([1], [1])), {"arc_easy": "char"})
    assert metrics["olmes/cf/arc_easy"] == 1.0
    assert not [name for name in metrics if "stderr" in name]


def test_ties_are_counted():
    part = rows("a", [0, 0], [[-1.0, -1.0], [-1.0, -2.0]], [[-1.0, -2.0], [-2.0, -2.0]])
    tasks, _, _ = summarize(table(part), {"a": "none"})
    assert (tasks["a"]["ties_cf"], tasks["a"]["ties_mcf"]) == (1, 1)
    assert tasks["a"]["cf_by_normalization"]["char"] == 1.0


def test_malformed_tables_are_refused():
    part = easy([1, 0], [1, 1])
    with pytest.raises(ValueError, match="no normalization given for task 'arc_easy'"):
        summarize(table(part), {})
    with pytest.raises(ValueError, match="lacks the columns mcf"):
        summarize(table(part).drop_columns(["mcf"]), {"arc_easy": "char"})
    with pytest.raises(ValueError, match="whole questions"):
        summarize(table(part[1:]), {"arc_easy": "char"})
    part[1]["gold"] = True
    with pytest.raises(ValueError, match="exactly one gold"):
        summarize(table(part), {"arc_easy": "char"})


def test_measure_imports_neither_torch_nor_arrow():
    code = "import sys, olmes_monitor.measure; print({'torch', 'pyarrow', 'pandas'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
