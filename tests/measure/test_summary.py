import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from synthetic import answered, rows, table

from olmes_monitor.measure import summarize
from olmes_monitor.measure.domains import DOMAINS
from olmes_monitor.measure.reference import FACTS, METRICS, as_markdown

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
    assert set(tasks["a"]["cf_by_normalization"]) == {"none", "token", "char", "byte", "bayes"}
    assert tasks["a"]["cf_by_normalization"]["char"] == tasks["a"]["cf"]
    assert tasks["a"]["label_mass"] == pytest.approx(np.exp(-0.5) + 3 * np.exp(-3))


def test_values_are_plain_floats_fit_for_json():
    tasks, metrics, _ = summarize(table(easy([1, 0], [1, 1])), {"arc_easy": "char"})
    assert {type(value) for value in metrics.values()} == {float}
    facts = tasks["arc_easy"]
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts


def test_the_headline_is_over_subjects_and_micro_is_kept_apart():
    cf, mcf = [1] * 9 + [0] * 1 + [1] * 27 + [0] * 63, [1] * 100
    part = easy(cf, mcf, "mmlu", subjects=["small"] * 10 + ["large"] * 90)
    tasks, metrics, _ = summarize(table(part), {"mmlu": "char"})
    assert metrics["olmes/cf/mmlu"] == pytest.approx(0.6)
    assert tasks["mmlu"]["micro"]["cf"] == pytest.approx(0.36)
    assert "domains" not in tasks["mmlu"]  # these subjects are none of MMLU's
    # Signals go by the same rule: every question's labels have the mass of one right answer.
    signal = np.exp(-0.5) / (np.exp(-0.5) + 3 * np.exp(-3)), np.exp(-3) / (np.exp(-0.5) + 3 * np.exp(-3))
    assert tasks["mmlu"]["gold_probability_cf"] == pytest.approx(0.6 * signal[0] + 0.4 * signal[1])
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


def test_smooth_signals_by_hand():
    """CF gives the gold choices 3 and 1 of 4 parts, MCF 2 and 8 of 10; ℓ_gold is 8 and 16 bits over 4 and 16 bytes."""
    ln2 = np.log(2)
    cf = [[-8 * ln2, -8 * ln2 - np.log(3)], [-16 * ln2, -16 * ln2 + np.log(3)]]
    mcf = np.log([[0.02, 0.08], [0.08, 0.02]]).tolist()
    texts = [[" abc", " x"], [" " + 15 * "y", " x"]]
    tasks, metrics, _ = summarize(table(rows("a", [0, 0], cf, mcf, texts=texts)), {"a": "none"})
    assert tasks["a"]["gold_probability_cf"] == pytest.approx((0.75 + 0.25) / 2)
    assert tasks["a"]["gold_probability_mcf"] == pytest.approx((0.2 + 0.8) / 2)
    assert tasks["a"]["bits_per_byte"] == pytest.approx((8 / 4 + 16 / 16) / 2)
    assert tasks["a"]["label_mass"] == pytest.approx(0.1)
    assert not [name for name in metrics if "gold" in name or "bits" in name]


def test_an_impossible_gold_choice_has_no_bits_per_byte_but_an_accuracy():
    tasks, _, problems = summarize(table(rows("a", [0, 0], [[-np.inf, -1.0], [-1.0, -2.0]])), {"a": "none"})
    assert problems == {}
    assert tasks["a"]["cf"] == 0.5
    assert "bits_per_byte" not in tasks["a"]
    assert tasks["a"]["gold_probability_cf"] == pytest.approx(0.5 / (1 + np.exp(-1)))


def test_every_normalization_that_was_asked_is_reported():
    """Per byte the long choice wins, by its sum the short one; two bytes more cost 2 nats."""
    cf, unconditional = [[-4.0, -6.0]] * 3, [[-5.0, -9.0]] * 3
    texts = [[" a", " aaa"]] * 3
    part = rows("csqa", [1] * 3, cf, unconditional=unconditional, texts=texts)
    tasks, _, _ = summarize(table(part), {"csqa": "pmi"})
    assert tasks["csqa"]["cf_by_normalization"] == {
        "none": 0.0,
        "token": 0.0,
        "char": 1.0,  # −2 against −1.5
        "byte": 1.0,
        "pmi": 1.0,  # 1 against 3
        "bayes": 0.0,  # −4 + 2 against −6 + 4: a tie, and the first wins
        "anpmi": 1.0,  # 1/5 against 3/9
    }
    assert tasks["csqa"]["length_bias"] == {
        "tau": {"none": -1.0, "token": -1.0, "char": 1.0, "byte": 1.0, "pmi": 1.0, "anpmi": 1.0},
        "undefined": {"none": 0, "token": 0, "char": 0, "byte": 0, "pmi": 0, "bayes": 3, "anpmi": 0},
        "slope": -1.0,
    }


@pytest.mark.parametrize("kind", ["bayes", "anpmi"])
def test_the_kinds_beyond_olmes_can_be_the_headline(kind):
    part = rows("own", [1] * 6, [[-6.0, -8.0]] * 6, unconditional=[[-7.0, -16.0]] * 6, texts=[[" a", " aaa"]] * 6)
    part[0]["cf"] = -5.9
    tasks, metrics, problems = summarize(table(part), {"own": kind})
    assert problems == {}
    assert metrics["olmes/cf/own"] == tasks["own"]["cf_by_normalization"][kind]


def test_label_bias_of_a_model_that_always_says_a():
    mcf = [[-0.1, -3.0, -3.0, -3.0]] * 8
    tasks, _, _ = summarize(table(rows("a", [0, 1, 2, 3] * 2, None, mcf)), {"a": "none"})
    assert tasks["a"]["label_bias"] == {
        "predicted": [8, 0, 0, 0],
        "gold": [2, 2, 2, 2],
        "total_variation": 0.75,
        "accuracy": [1.0, 0.0, 0.0, 0.0],
    }
    assert tasks["a"]["mcf"] == tasks["a"]["floor"] == 0.25


def test_domains_are_macro_over_their_own_subjects():
    """Stem: astronomy 1 of 2 and machine_learning 4 of 4 by CF, so ¾; other: virology 0 of 2. MCF is right on all."""
    subjects = ["astronomy"] * 2 + ["virology"] * 2 + ["machine_learning"] * 4
    cf = [1, 0, 0, 0, 1, 1, 1, 1]
    tasks, metrics, _ = summarize(table(easy(cf, [1] * 8, "mmlu", subjects=subjects)), {"mmlu": "char"})
    domains = tasks["mmlu"]["domains"]
    assert set(domains) == {"stem", "other"}
    assert (domains["stem"]["n"], domains["other"]["n"]) == (6, 2)
    assert domains["stem"]["cf"] == pytest.approx(0.75)
    assert domains["stem"]["gap"] == pytest.approx(0.25)
    assert domains["other"]["gap"] == domains["other"]["mcf"] == 1.0
    # Subjects of fewer than five questions share the domain's pooled variance: ½ on 4 degrees of freedom.
    assert domains["stem"]["stderr_cf"] == pytest.approx(np.sqrt(0.125 / 2 + 0.125 / 4) / 2)
    assert domains["stem"]["stderr_gap"] == pytest.approx(domains["stem"]["stderr_cf"])
    assert tasks["mmlu"]["cf"] == pytest.approx((0.5 + 0 + 1) / 3)
    assert not [name for name in metrics if "stem" in name]


@pytest.mark.parametrize(("mass", "warned"), [(8e-5, True), (0.003, True), (0.02, False), (0.9, False)])
def test_a_tiny_label_mass_is_warned_of(mass, warned):
    mcf = [[float(np.log(mass / 4))] * 4] * 3
    tasks, metrics, problems = summarize(table(rows("a", [0] * 3, None, mcf)), {"a": "none"})
    assert problems == {}
    assert metrics["olmes/mcf/a"] == 1.0
    warnings = tasks["a"].get("warnings", [])
    assert len(warnings) == warned
    if warned:
        assert warnings[0].startswith(f"label mass {mass:.1g}, normal only early in training: ")
        assert "tokenized differently" in warnings[0]


def test_every_fact_and_metric_is_defined_in_the_reference_and_no_other():
    subjects = ["astronomy"] * 3 + ["virology"] * 3
    mcf = [[-9.0, -10.0, -11.0, -12.0]] * 6
    part = rows("mmlu", [0, 1] * 3, answered([0, 1] * 3, [True] * 6), mcf, subjects=subjects)
    scores = table(part)
    for shift in (1, 2, 3):
        scores = scores.append_column(f"mcf_shift{shift}", scores["mcf"])
    tasks, metrics, _ = summarize(scores, {"mmlu": "char"})
    assert set(tasks["mmlu"]) == set(FACTS)
    assert {name.replace("/mmlu", "/<task>") for name in metrics if "average" not in name} == set(METRICS) - {
        "olmes/<any of these>/average"
    }


def test_the_page_of_metrics_is_the_reference():
    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    assert page.read_text(encoding="utf-8") == as_markdown()


def test_the_standard_suite_is_summarized_in_a_blink():
    random = np.random.default_rng(0)
    questions = {"mmlu": 14042} | dict.fromkeys(["arc_challenge", "csqa", "winogrande"], 1200)
    questions |= dict.fromkeys(["arc_easy", "boolq", "hellaswag", "piqa", "socialiqa", "openbookqa"], 1000)
    scores = pa.concat_tables(many(task, n, random) for task, n in questions.items()).unify_dictionaries()
    assert scores.num_rows > 90_000
    seconds = []
    for _ in range(5):
        started = time.process_time()
        summarize(scores, dict.fromkeys(questions, "pmi"))
        seconds.append(time.process_time() - started)
    assert min(seconds) < 0.3  # measured: 0.1


def many(task, n, random, choices=4):
    """A table of random scores, made column by column."""
    rows, subjects = n * choices, np.array([""] * n) if task != "mmlu" else np.array(sorted(DOMAINS))[np.arange(n) % 57]
    lengths = random.integers(2, 80, rows)
    columns = {
        "task": pa.array([task] * rows).dictionary_encode(),
        "subject": pa.array(np.repeat(subjects, choices).tolist(), pa.string()).dictionary_encode(),
        "question": [f"{task}/{i // choices}" for i in range(rows)],
        "index": np.repeat(np.arange(n), choices),
        "choice": np.tile(np.arange(choices), n),
        "gold": np.tile(np.arange(choices), n) == np.repeat(random.integers(0, choices, n), choices),
        "unconditional": -0.7 * lengths - random.gamma(2, 2, rows),
        "cf": -0.6 * lengths - random.gamma(2, 2, rows),
        "mcf": -random.gamma(2, 2, rows),
    }
    return pa.table(columns | dict.fromkeys(["tokens", "chars", "bytes"], lengths))


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
