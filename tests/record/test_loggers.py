"""What trackers get. W&B is the real one, offline, read back from its file."""

import logging

import pytest
import wandb
from wandb_file import axes, history, offline_run

from olmes_monitor.record.loggers import WandbSink, live_wandb_run, log_everywhere

ROW = {"olmes/cf/boxes": 0.5, "olmes/mcf/boxes": 0.25, "olmes/tokens": 1000, "olmes/step": 3}


@pytest.fixture
def run(tmp_path):
    with wandb.init(mode="offline", dir=str(tmp_path), project="test") as run:
        yield run


def test_each_metric_has_the_token_axis_by_its_exact_name_beside_a_rule_for_all(run, tmp_path):
    run.define_metric("train/global_step")
    run.define_metric("*", step_metric="train/global_step", step_sync=True)
    sink = WandbSink(live_wandb_run)
    run.log({"loss": 1.0, "train/global_step": 7})
    sink(ROW)
    run.log({"loss": 0.9, "train/global_step": 8})
    sink({**ROW, "olmes/tokens": 2000})
    run.finish()
    rules = axes(offline_run(tmp_path))
    assert {name: rules[name] for name in ROW} == {
        "olmes/cf/boxes": "olmes/tokens",
        "olmes/mcf/boxes": "olmes/tokens",
        "olmes/tokens": "",
        "olmes/step": "olmes/tokens",
    }
    rows = [row for row in history(offline_run(tmp_path)) if "olmes/tokens" in row]
    assert [row["olmes/tokens"] for row in rows] == [1000, 2000]
    assert all("olmes/cf/boxes" in row for row in rows)
    assert rules["*"] == "train/global_step", "the trainer's own rule for its metrics must stand"


def test_step_is_never_passed_so_a_late_row_is_not_dropped(run, tmp_path):
    run.log({"loss": 1.0}, step=500)
    WandbSink(live_wandb_run)(ROW)
    run.finish()
    assert [row["olmes/tokens"] for row in history(offline_run(tmp_path)) if "olmes/tokens" in row] == [1000]


def test_without_a_run_nothing_is_started():
    assert wandb.run is None
    WandbSink(live_wandb_run)(ROW)
    assert wandb.run is None


def test_a_new_run_gets_the_rules_again(tmp_path):
    sink = WandbSink(live_wandb_run)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        with wandb.init(mode="offline", dir=str(tmp_path / name), project="test"):
            sink(ROW)
    assert axes(offline_run(tmp_path / "b"))["olmes/cf/boxes"] == "olmes/tokens"


def test_a_tracker_that_fails_is_a_warning_and_the_others_still_get_the_row(caplog):
    got = []

    def broken(row):
        raise ConnectionError("tracker is down")

    with caplog.at_level(logging.WARNING, "olmes_monitor"):
        log_everywhere([broken, got.append], ROW)
    assert got == [ROW]
    assert "ConnectionError: tracker is down" in caplog.text
    assert "the evaluation at 1000 tokens" in caplog.text
