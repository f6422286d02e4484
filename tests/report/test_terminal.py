import io

import numpy as np
import pytest
from rich.console import Console
from synthetic import failed_evaluation, make_evaluation

from olmes_monitor.measure import Crossover
from olmes_monitor.report.terminal import crossover_line, crossover_lines, evaluation_table, format_tokens

TEN = [
    "arc_challenge",
    "arc_easy",
    "boolq",
    "csqa",
    "hellaswag",
    "mmlu",
    "openbookqa",
    "piqa",
    "socialiqa",
    "winogrande",
]


def printed(evaluation, width=80):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(evaluation_table(evaluation))
    return console.file.getvalue()


def test_ten_tasks_fit_80_columns_uncut():
    evaluation = make_evaluation(412_300_000_000, dict.fromkeys(TEN, (0.5, 0.4)), step=98_300, n=1200)
    text = printed(evaluation)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    assert "quick at 412.3B tokens, step 98,300, 12.3 s" in text
    lines = [line.split() for line in text.splitlines()]
    first = [line[0] for line in lines if line and line[0] in [*TEN, "average"]]
    assert first == [*TEN, "average"]


def test_a_row_shows_accuracies_errors_the_better_form_and_the_signed_gap():
    evaluation = make_evaluation(10**9, {"arc_easy": (0.5, 0.4)})
    facts = evaluation.tasks["arc_easy"]
    facts |= {"cf": 0.512, "mcf": 0.25, "gap": -0.262, "stderr_cf": 0.021, "stderr_mcf": 0.02, "stderr_gap": 0.031}
    row = next(line for line in printed(evaluation).splitlines() if "arc_easy" in line)
    assert row.split() == ["arc_easy", "60", "†", "51.2", "±", "2.1", "25.0", "±", "2.0", "−26.2", "±", "3.1"]
    facts |= {"cf": 0.25, "mcf": 0.512, "gap": 0.262}
    row = next(line for line in printed(evaluation).splitlines() if "arc_easy" in line)
    assert row.split() == ["arc_easy", "60", "25.0", "±", "2.1", "†", "51.2", "±", "2.0", "+26.2", "±", "3.1"]


def test_absent_values_are_dashes_with_the_reason_below():
    evaluation = make_evaluation(10**9, {"arc_easy": (0.5, 0.4), "csqa": (0.5, 0.4)})
    evaluation.problems["csqa"] = "mcf: 3 of 60 questions have NaN log-likelihoods, first 'a[b]'"
    for name in ("cf", "mcf", "gap", "score"):
        del evaluation.tasks["csqa"][name]
    evaluation.metrics = {name: value for name, value in evaluation.metrics.items() if "average" not in name}
    text = printed(evaluation)
    assert next(line for line in text.splitlines() if "csqa" in line).split() == ["csqa", "60", "–", "–", "–"]
    assert next(line for line in text.splitlines() if "average" in line).split() == ["average", "–", "–", "–"]
    assert "csqa: mcf: 3 of 60 questions have NaN log-likelihoods, first 'a[b]'" in " ".join(text.split())
    assert "average: absent unless every task has its value" in text


def test_the_olmes_score_is_the_average_of_the_marked_values():
    evaluation = make_evaluation(10**9, {"arc_easy": (0.5, 0.4), "csqa": (0.2, 0.8)})
    easy, csqa = evaluation.tasks.values()
    assert (easy["best"], csqa["best"]) == ("cf", "mcf")
    error = np.hypot(easy["stderr_cf"], csqa["stderr_mcf"]) / 2
    expected = f"OLMES score, the average of each task's †: {50 * (easy['cf'] + csqa['mcf']):.1f} ± {100 * error:.1f}"
    assert expected in printed(evaluation)
    assert "OLMES score" not in printed(make_evaluation(10**9, {"arc_easy": (0.5, 0.4)}))


def test_the_cyclic_orders_take_one_line_and_are_averages_of_all_tasks():
    evaluation = make_evaluation(10**9, dict.fromkeys(TEN[:2], (0.5, 0.4)))
    assert "cyclic" not in printed(evaluation)
    first, second = evaluation.tasks.values()
    errors = {"stderr_debiased": 0.03, "stderr_gain": 0.02}
    first["cyclic"] = {"debiased": 0.312, "gain": -0.05, "spread": 0.10, **errors}
    assert "cyclic: absent unless every task has its value" in printed(evaluation)
    second["cyclic"] = {"debiased": 0.512, "gain": 0.008, "spread": 0.30, **errors}
    lines = [line.strip() for line in printed(evaluation).splitlines() if "cyclic" in line]
    assert lines == ["cyclic: debiased MCF 41.2 ± 2.1 (−2.1 ± 1.4 on MCF), spread 20.0"]
    first["cyclic"] = second["cyclic"] = {"debiased": 1.0, "gain": 0.75, "spread": 1.0}  # one question: no error
    assert "cyclic: debiased MCF 100.0 (+75.0 on MCF), spread 100.0" in printed(evaluation)


def test_warnings_take_one_line_whatever_their_number():
    evaluation = make_evaluation(10**9, dict.fromkeys(TEN, (0.5, 0.4)))
    assert "!" not in printed(evaluation)
    for facts in evaluation.tasks.values():
        facts["warnings"] = ["label mass 0.0001, normal only early in training: the labels may be tokenized otherwise"]
    lines = printed(evaluation).splitlines()
    noted = [line.strip() for line in lines if "label mass" in line]
    assert noted == ["! arc_challenge and 9 more: label mass 0.0001, normal only early in training"]
    assert lines.index(next(line for line in lines if "label mass" in line)) == len(lines) - 1
    assert max(len(line) for line in lines) <= 80


def test_a_failed_evaluation_still_renders():
    assert "evaluation: rank 0: out of memory" in printed(failed_evaluation(10**9))


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1k"),
        (2_500_000, "2.5M"),
        (412_300_000_000, "412.3B"),
        (960_000_000, "960M"),
        (999_960_000, "1B"),
        (100_000_000, "100M"),
        (4_000_000_000_000, "4T"),
    ],
)
def test_format_tokens(tokens, text):
    assert format_tokens(tokens) == text


def test_crossovers_in_words():
    found = Crossover("tentative", 412_300_000_000, step=98_300)
    assert (
        crossover_line("arc_easy", found)
        == "MCF overtook CF on arc_easy at 412.3B tokens: step 98,300, not yet confirmed"
    )
    sure = Crossover("confirmed", 412_300_000_000, 398 * 10**9, 431 * 10**9, step=98_300, confirmed=450 * 10**9)
    assert (
        crossover_line("arc_easy", sure)
        == "MCF overtook CF on arc_easy at 412.3B tokens [398B, 431B]: step 98,300, confirmed at 450B"
    )
    open_end = Crossover("tentative", 412_300_000_000, 398 * 10**9)
    assert crossover_line("piqa", open_end) == "MCF overtook CF on piqa at 412.3B tokens [≥ 398B], not yet confirmed"
    curve = {"evaluated": np.array([10**9, 2 * 10**9]), "gap": np.array([-0.2, -0.125]), "stderr": np.ones(2)}
    assert (
        crossover_line("piqa", Crossover("not_reached", **curve))
        == "not yet on piqa: MCF has not overtaken CF; the gap at 2B tokens is −12.5 points"
    )
    assert "from the first evaluation on" in crossover_line("piqa", Crossover("from_start"))
    assert "is not now" in crossover_line("piqa", Crossover("reverted"))
    assert "fewer than two" in crossover_line("piqa", Crossover("undecided"))
    assert "not clearly" in crossover_line("piqa", Crossover("undecided", **curve))


def test_beside_a_single_task_the_average_says_nothing():
    found = Crossover("reverted")
    assert crossover_lines({"piqa": found, "average": found}) == [crossover_line("piqa", found)]
    three = {"piqa": found, "boolq": found, "average": found}
    assert crossover_lines(three) == [crossover_line(task, found) for task in three]
    assert len(crossover_lines({"piqa": found})) == 1
