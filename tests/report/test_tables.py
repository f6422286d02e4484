"""Verdicts and curves as data: the same numbers as the record's, whole counts whole."""

import json

import numpy as np
import pandas as pd

from olmes_monitor.record import load_run
from olmes_monitor.record.files import plain
from olmes_monitor.report.curves import read_run
from olmes_monitor.report.tables import VERDICTS, as_json, curve_frame


def test_verdicts_are_the_crossovers_as_a_table(runs):
    run = load_run(runs / "early")
    frame, found = run.verdicts(), run.crossovers()
    assert list(frame.columns) == list(VERDICTS)
    assert frame["task"].tolist() == list(found)
    assert str(frame["tokens"].dtype) == "Int64"
    for row in frame.to_dict("records"):
        crossover = found[row["task"]]
        assert row["state"] == crossover.state
        for name in ("tokens", "lo", "hi", "step", "confirmed"):
            value = getattr(crossover, name)
            assert pd.isna(row[name]) if value is None else row[name] == value
        assert row["gap"] == crossover.gap[-1]


def test_curves_are_the_frame_of_the_run_with_every_normalization(runs):
    run = load_run(runs / "early")
    frame = curve_frame([read_run(run, "early")])
    mine = frame.query("normalization == 'olmes'").sort_values(["tokens", "task"])
    theirs = run.frame().sort_values(["tokens", "task"])
    for name in ("tokens", "step", "cf", "mcf", "gap", "stderr_cf", "stderr_mcf", "stderr_gap", "floor"):
        np.testing.assert_allclose(mine[name].astype(float), theirs[name].astype(float), atol=1e-12)
    assert set(frame["normalization"]) >= {"olmes", "none", "char", "pmi"}


def test_json_holds_the_verdicts_and_every_evaluation(runs):
    run = load_run(runs / "early")
    found = json.loads(json.dumps(plain(as_json([read_run(run, "early", others=False)])), allow_nan=False))
    (one,) = found["runs"]
    assert one["fingerprint"] == run.fingerprint
    assert [row["task"] for row in one["verdicts"]] == list(run.crossovers())
    assert len(one["evaluations"]) == len(run.evaluations)
    assert one["evaluations"][0]["point"]["tokens"] == 0
