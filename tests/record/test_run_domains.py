"""MMLU's domains have crossovers of their own, against their own floors."""

import numpy as np
from synthetic import answered, rows, table

from olmes_monitor import find_crossover, load_run
from olmes_monitor.measure import summarize
from olmes_monitor.record import Evaluation, Point, Recorder

SUBJECTS = {"astronomy": "stem", "virology": "other", "anatomy": "other", "prehistory": "humanities"}
N = 240


def write(folder, cf_level, mcf_levels):
    """mcf_levels: evaluation → {domain: accuracy}."""
    fixed = np.random.default_rng(0)
    gold, ease = fixed.integers(0, 4, N), fixed.permutation(N) / N
    subjects = [list(SUBJECTS)[i % 4] for i in range(N)]
    kept = []
    for number, levels in enumerate(mcf_levels):
        cf = ease < cf_level
        mcf = ease < np.array([levels[SUBJECTS[subject]] for subject in subjects])
        scores = table(
            rows("mmlu", gold.tolist(), *(answered(gold, right) for right in (cf, mcf)), subjects=subjects),
            rows("arc_easy", gold.tolist(), *(answered(gold, right) for right in (cf, cf))),
        )
        tasks, metrics, problems = summarize(scores, {"mmlu": "char", "arc_easy": "char"})
        Recorder(folder).write(Evaluation(Point(number + 1, number), "own", "ff", scores, metrics, tasks, problems))
        kept.append((cf, mcf))
    return gold, subjects, kept


def test_each_domain_has_its_crossover_between_the_task_and_the_average(tmp_path):
    levels = [{"stem": 0.3, "humanities": 0.9, "other": 0.3 + 0.4 * (i > 6)} for i in range(14)]
    gold, subjects, kept = write(tmp_path, 0.5, levels)
    found = load_run(tmp_path).crossovers()
    assert list(found) == ["mmlu", "mmlu_stem", "mmlu_humanities", "mmlu_other", "arc_easy", "average"]
    assert [found[f"mmlu_{d}"].state for d in ("stem", "humanities", "other")] == [
        "not_reached",
        "from_start",
        "confirmed",
    ]
    assert 7 <= found["mmlu_other"].tokens <= 8
    inside = np.array([SUBJECTS[subject] == "other" for subject in subjects])
    by_subject = [inside & (np.array(subjects) == name) for name in ("virology", "anatomy")]
    floor = max(np.mean([np.mean(gold[part] == label) for part in by_subject]) for label in range(4))
    cf, mcf = (np.stack([pair[form][inside] for pair in kept]) for form in (0, 1))
    alone = find_crossover(
        np.arange(1, 15), cf, mcf, steps=np.arange(14), floor=max(floor, 0.25), subjects=np.array(subjects)[inside]
    )
    assert found["mmlu_other"] == alone


def test_a_domain_at_its_own_floor_has_overtaken_nothing(tmp_path):
    """CF at a tenth, MCF at 0.24: ahead of CF, but not of what always the same label scores."""
    write(tmp_path, 0.1, [dict.fromkeys(("stem", "humanities", "other"), 0.24)] * 6)
    assert {found.state for found in load_run(tmp_path).crossovers().values()} == {"not_reached"}
