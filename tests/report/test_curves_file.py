"""A table of accuracies from anywhere becomes the same curves and verdicts, or an error that names what is wrong."""

import numpy as np
import pytest

from olmes_monitor.errors import DataError
from olmes_monitor.measure import find_crossover
from olmes_monitor.report.curves_file import questions_from, read_curves

TOKENS = np.arange(1, 21) * 10**9
CF = np.round(np.linspace(0.30, 0.45, 20) * 1172) / 1172
MCF = np.round((0.25 + 0.35 / (1 + np.exp(-(np.arange(20) - 10)))) * 1172) / 1172


def write(path, header, rows):
    path.write_text("\n".join([header, *(",".join(str(cell) for cell in row) for row in rows)]) + "\n")
    return path


@pytest.fixture
def layout(tmp_path):
    """run,step,tokens,task,cf,mcf with six decimals, as published curves have them; no number of questions."""
    rows = [
        (run, 10 * i, TOKENS[i], task, f"{CF[i]:.6f}", f"{MCF[i]:.6f}")
        for run in ("7b", "13b")
        for task in ("arc_challenge", "other")
        for i in range(20)
    ]
    return write(tmp_path / "curves.csv", "run,step,tokens,task,cf,mcf", rows)


def test_a_table_of_several_runs_has_the_aggregate_verdicts(layout):
    sources = read_curves(layout)
    assert [source.name for source in sources] == ["7b", "13b"]
    curve = sources[0].curves["arc_challenge"]
    expected = find_crossover(TOKENS, np.round(CF, 6), np.round(MCF, 6), n=1172, steps=np.arange(20) * 10)
    assert curve.n == 1172, "found from the accuracies themselves"
    assert curve.crossovers["olmes"] == expected
    assert expected.tokens is not None
    np.testing.assert_allclose(curve.mcf_error, np.sqrt(np.round(MCF, 6) * (1 - np.round(MCF, 6)) / 1171))
    np.testing.assert_allclose(sources[0].curves["average"].cf["olmes"], np.round(CF, 6))


@pytest.mark.parametrize("n", [500, 1172, 3270, 10042])
def test_the_number_of_questions_is_what_the_accuracies_are_fractions_of(n):
    counts = np.random.default_rng(n).integers(n // 4, n, 60)
    assert questions_from(np.round(counts / n, 6)) == n


def test_no_number_of_questions_is_read_into_averages_or_a_few_values():
    macro = np.random.default_rng(0).random((60, 57)).mean(axis=1)
    assert questions_from(np.round(macro, 6)) is None
    assert questions_from([0.25, 0.5]) is None
    counts = np.random.default_rng(0).integers(200, 1172, 60) / 1172
    assert questions_from(np.round(counts, 2)) is None, "whole percents are no hundred questions"
    assert questions_from(np.round(counts, 3)) is None
    assert questions_from([]) is None


def test_without_a_number_of_questions_curves_are_shown_and_the_verdict_is_not_invented(tmp_path):
    noise = np.random.default_rng(0).normal(0, 1e-3, 20)
    rows = [(t, "mmlu", f"{c + e:.6f}", f"{m + e:.6f}") for t, c, m, e in zip(TOKENS, CF, MCF, noise, strict=True)]
    path = write(tmp_path / "x.csv", "tokens,task,cf,mcf", rows)
    (source,) = read_curves(path)
    assert source.curves["mmlu"].crossovers == {}
    assert "No verdict and no band for mmlu" in " ".join(source.notes)
    (source,) = read_curves(path, questions={"mmlu": 14042})
    assert source.curves["mmlu"].crossovers["olmes"].tokens is not None


def test_other_names_percent_and_steps_alone(tmp_path):
    rows = [(i, "piqa", 100 * CF[i], 100 * MCF[i]) for i in range(1, 20)]
    path = write(tmp_path / "x.csv", "iteration,benchmark,cloze,mc", rows)
    names = {"step": "iteration", "task": "benchmark", "cf": "cloze", "mcf": "mc"}
    with pytest.raises(DataError, match=r"no column 'tokens'.*--tokens-per-step"):
        read_curves(path, names)
    (source,) = read_curves(path, names, {"": 1172}, tokens_per_step=4e6)
    curve = source.curves["piqa"]
    assert source.name == "x"
    assert curve.tokens.tolist() == [i * 4_000_000 for i in range(1, 20)]
    np.testing.assert_allclose(curve.cf["olmes"], CF[1:])


def test_a_floor_must_be_exceeded(tmp_path):
    rows = [(t, "boolq", 0.4 + 0.001 * i, 0.41 + 0.002 * i, 1000, 0.62) for i, t in enumerate(TOKENS)]
    path = write(tmp_path / "x.csv", "tokens,task,cf,mcf,n,floor", rows)
    (source,) = read_curves(path)
    assert source.curves["boolq"].crossovers["olmes"].state == "not_reached"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tokens,task,cf\n1,a,0.5\n", "no column 'mcf'"),
        ("tokens,task,cf,mcf\n1,a,0.5,much\n", "line 2: mcf is 'much', not a number"),
        ("tokens,task,cf,mcf\n1,a,0.5,0.5\n1,a,0.5,0.5\n", "a has two rows at 1 tokens"),
        ("tokens,task,cf,mcf\n1,a,500,0.5\n", "the largest is 500"),
        ("tokens,task,cf,mcf\n", "no rows"),
        ("", "cannot read the table"),
    ],
)
def test_a_table_that_is_none_is_refused_in_words(tmp_path, text, message):
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_curves(path)
