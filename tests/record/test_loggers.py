"""What trackers get. W&B is the real one, offline, read back from its file."""

import logging
import random

import numpy as np
import pytest
import torch
import wandb
from fake_wandb import FakeRun
from synthetic import RISE, make_evaluation, write_rise
from wandb_file import alerts, artifacts, axes, config, history, offline_run, summary, table

from olmes_monitor.record import load_run, wandb_runs
from olmes_monitor.record.loggers import (
    WandbSink,
    alert_everywhere,
    finish_everywhere,
    live_wandb_run,
    log_everywhere,
    row_of,
    sinks_of,
    start_everywhere,
)
from olmes_monitor.record.verdicts import verdict_row
from olmes_monitor.record.wandb_charts import COLUMNS

ROW = {"olmes/cf/boxes": 0.5, "olmes/mcf/boxes": 0.25, "olmes/tokens": 1000, "olmes/step": 3}
CONFIG = {"suite": "quick", "fingerprint": "0123456789abcdef", "versions": {"torch": "2"}}


@pytest.fixture
def run(tmp_path):
    with wandb.init(mode="offline", dir=str(tmp_path), project="test") as run:
        yield run


def rows_with_curves(folder, levels=RISE):
    """What a Monitor gives its sinks after each evaluation: row, run, verdicts."""
    for index, level in enumerate(levels):
        (evaluation,) = write_rise(folder, [level], start=index)
        run = load_run(folder)
        crossovers = run.crossovers()
        yield row_of(evaluation) | verdict_row(crossovers), run, crossovers


def log_a_run(sinks, folder, levels=RISE):
    """A whole run through sinks; returns it and its verdicts at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    start_everywhere(sinks, CONFIG, folder)
    for row, run, crossovers in rows_with_curves(folder, levels):
        log_everywhere(sinks, row, run, crossovers)
    finish_everywhere(sinks, run, crossovers)
    return run, crossovers


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


def test_both_curves_of_a_task_are_one_chart_redrawn_in_place_in_the_evaluations_own_row(run, tmp_path):
    done, crossovers = log_a_run([WandbSink()], tmp_path / "olmes")
    run.finish()
    path = offline_run(tmp_path)
    rows = history(path)
    assert [row["olmes/tokens"] for row in rows] == [evaluation.point.tokens for evaluation in done.evaluations]
    charts = config(path)["_wandb"]["visualize"]
    assert set(charts) == {f"olmes/chart/{task}" for task in ("arc_easy", "csqa", "average")}, "one panel a task"
    panel = charts["olmes/chart/arc_easy"]["panel_config"]
    (query,) = panel["userQuery"]["queryFields"]
    (source,) = [field for field in query["fields"] if field["name"] == "summaryTable"]
    assert source["args"] == [{"name": "tableKey", "value": "olmes/chart/arc_easy_table"}]
    for number, row in enumerate(rows, start=1):
        columns, points = table(path, row["olmes/chart/arc_easy_table"])
        assert columns == ["step", "lineKey", "lineVal"]
        for name in ("CF", "MCF"):
            drawn = [(tokens, value) for tokens, line, value in points if line == name]
            logged = [(one["olmes/tokens"], one[f"olmes/{name.lower()}/arc_easy"]) for one in rows[:number]]
            assert drawn == logged
    crossing = crossovers["arc_easy"]
    upright = [tokens for tokens, line, _ in points if line.startswith("crossing at ")]
    assert upright == [crossing.tokens] * 2
    assert 3e9 < crossing.tokens < 4e9
    assert panel["stringSettings"]["title"].startswith("MCF overtook CF on arc_easy at 3.")
    never = {line for _, line, _ in table(path, rows[-1]["olmes/chart/csqa_table"])[1]}
    assert never == {"CF", "MCF", "floor"}
    rules, scalars = axes(path), {name for row in rows for name in row if not name.startswith("_")}
    assert {rules[name] for name in scalars - {"olmes/tokens"}} == {"olmes/tokens"}, "tables have it as well"


def test_the_latest_evaluation_is_a_table_and_the_end_is_in_the_summary(run, tmp_path):
    _, crossovers = log_a_run([WandbSink()], tmp_path / "olmes")
    run.finish()
    path = offline_run(tmp_path)
    last = history(path)[-1]
    columns, rows = table(path, last["olmes/latest"])
    assert columns == list(COLUMNS)
    assert [row[0] for row in rows] == ["arc_easy", "csqa", "average"]
    first = dict(zip(columns, rows[0], strict=True))
    assert (first["n"], first["CF"], first["MCF"]) == (200, last["olmes/cf/arc_easy"], last["olmes/mcf/arc_easy"])
    assert (first["state"], first["crossing"]) == ("confirmed", crossovers["arc_easy"].tokens)
    end = summary(path)
    assert end["olmes/score/arc_easy"] == last["olmes/score/arc_easy"] == first["score"]
    found = {name: end[f"olmes/crossover/arc_easy/{name}"] for name in ("state", "tokens", "lo", "hi")}
    assert found == {name: getattr(crossovers["arc_easy"], name) for name in found}
    assert end["olmes/crossover/csqa/state"] == "not_reached"
    assert end["olmes/crossover/csqa/tokens"] is None
    assert "olmes/crossover/csqa/tokens" not in last
    assert "olmes/crossover/arc_easy/state" not in last, "words belong into the summary, not on an axis"
    assert last["olmes/crossover/arc_easy/tokens"] == crossovers["arc_easy"].tokens


def test_a_crossing_that_is_gone_leaves_the_summary(run, tmp_path):
    _, crossovers = log_a_run([WandbSink()], tmp_path / "olmes", [*RISE, *[(0.9, 0.2)] * 6])
    run.finish()
    assert crossovers["arc_easy"].tokens is None
    path = offline_run(tmp_path)
    assert any("olmes/crossover/arc_easy/tokens" in row for row in history(path))
    assert summary(path)["olmes/crossover/arc_easy/tokens"] is None


def test_logging_touches_no_random_state(run, tmp_path):
    def states():
        numpy = np.random.get_state()  # noqa: NPY002 - the state that training code may draw from
        return random.getstate(), str(numpy), numpy[1].tolist(), torch.get_rng_state().tolist()

    before = states()
    log_a_run([WandbSink(artifact=True)], tmp_path / "olmes", RISE[:3])
    assert states() == before


def test_the_config_is_ours_under_one_key_and_the_users_stays(tmp_path):
    with wandb.init(mode="offline", dir=str(tmp_path), project="test", config={"lr": 0.1}) as run:
        start_everywhere([WandbSink()], CONFIG)
        start_everywhere([WandbSink()], {**CONFIG, "versions": {"torch": "3"}})  # as a resumed run does
        assert run.config["lr"] == 0.1
    assert config(offline_run(tmp_path))["olmes"] == {**CONFIG, "versions": {"torch": "3"}}


def test_a_key_that_the_user_has_is_left_to_him(tmp_path):
    with wandb.init(mode="offline", dir=str(tmp_path), project="test", config={"olmes": True}):
        start_everywhere([WandbSink()], CONFIG)
    found = config(offline_run(tmp_path))
    assert (found["olmes"], found["olmes_monitor"]) == (True, CONFIG)


def test_an_alert_reaches_the_run_its_title_cut_to_what_is_taken(run, tmp_path):
    alert_everywhere([WandbSink(), print], "x" * 100, "words")
    run.finish()
    assert alerts(offline_run(tmp_path)) == [("x" * 63, "words")]


def test_the_record_goes_up_as_an_artifact_only_if_asked(tmp_path):
    for wanted in (False, True):
        place = tmp_path / str(wanted)
        place.mkdir()
        with wandb.init(mode="offline", dir=str(place), project="test") as run:
            log_a_run([WandbSink(artifact=wanted)], place / "olmes", RISE[:2])
            name = f"olmes-{run.id}"
        found = artifacts(offline_run(place))
        assert (name in found) is wanted
    assert sorted(found[name]) == sorted(
        str(path.relative_to(place / "olmes"))
        for path in [place / "olmes" / "evaluations.jsonl", *(place / "olmes" / "scores").iterdir()]
    )


def test_a_resumed_run_gets_its_rules_and_config_again(tmp_path):
    """Two sessions under one id; the second process has new sinks."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        with wandb.init(mode="offline", dir=str(tmp_path / name), project="test", id="same", resume="allow") as run:
            run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
            log_a_run([WandbSink()], tmp_path / "olmes", RISE[:2])
        path = offline_run(tmp_path / name)
        assert axes(path)["olmes/cf/arc_easy"] == "olmes/tokens"
        assert config(path)["olmes"] == CONFIG


def test_a_new_run_of_one_process_gets_the_rules_again(tmp_path):
    sink = WandbSink(live_wandb_run)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        with wandb.init(mode="offline", dir=str(tmp_path / name), project="test", id="same"):
            sink(ROW)
    assert axes(offline_run(tmp_path / "b"))["olmes/cf/boxes"] == "olmes/tokens"


def test_a_grouped_run_keeps_its_group_and_its_id_is_kept_beside_the_record(tmp_path):
    with wandb.init(mode="offline", dir=str(tmp_path), project="test", group="sweep 7") as run:
        log_a_run([WandbSink()], tmp_path / "olmes", RISE[:2])
    assert run.group == "sweep 7"
    assert wandb_runs.read(tmp_path / "olmes")["live"] == {run.id: {"project": "test", "group": "sweep 7"}}


@pytest.mark.parametrize("facts", [{"id": "forked"}, {"id": "shared", "resumed": True}])
def test_a_forked_and_a_shared_run_are_runs_like_others(tmp_path, facts):
    """Both need W&B's server, so the run is a fake: it refuses step=, and a row whose axis it was not told of."""
    runs = [FakeRun("before"), FakeRun(**facts)]
    sink = WandbSink(lambda: runs[-1] if forked else runs[0])
    forked = False
    for row, run, crossovers in rows_with_curves(tmp_path / "olmes", RISE[:4]):
        forked = len(run.evaluations) > 2
        sink.curves(row, run, crossovers)
    assert [len(run.rows) for run in runs] == [2, 2]
    assert all(run.rules["olmes/mcf/arc_easy"] == "olmes/tokens" for run in runs)


def test_disabled_means_nothing_happens_and_nothing_breaks(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(wandb, "run", None)  # a disabled run stays there after its end
    with wandb.init(mode="disabled", project="test"), caplog.at_level(logging.WARNING, "olmes_monitor"):
        log_a_run([WandbSink(artifact=True)], tmp_path / "olmes", RISE[:2])
        alert_everywhere([WandbSink()], "title", "words")
    assert [record.message for record in caplog.records if record.name == "olmes_monitor"] == []
    assert not (tmp_path / "olmes" / "wandb.json").exists()


def test_without_a_run_nothing_is_started(tmp_path):
    assert wandb.run is None
    WandbSink(live_wandb_run)(ROW)
    log_a_run([WandbSink(artifact=True)], tmp_path / "olmes", RISE[:2])
    assert wandb.run is None
    assert not (tmp_path / "olmes" / "wandb.json").exists()


def test_a_long_run_is_not_drawn_anew_every_time_but_whole_at_the_end(tmp_path):
    """Drawn 200 times, 200 evaluations of ten tasks would be half a million points in two thousand tables."""
    evaluations = [make_evaluation(i * 10**9, {"arc_easy": (0.4, 0.25)}, n=4) for i in range(200)]
    write_rise(tmp_path / "olmes", RISE[:1])
    whole, fake = load_run(tmp_path / "olmes"), FakeRun()
    sink = WandbSink(lambda: fake)
    for count in range(1, 201):
        whole.evaluations = evaluations[:count]
        sink.curves(row_of(evaluations[count - 1]), whole, {})
    drawn = [number for number, row in enumerate(fake.rows, start=1) if "olmes/chart/arc_easy" in row]
    assert len(fake.rows) == 200
    assert drawn[:30] == list(range(1, 31))
    assert len(drawn) < 75
    assert np.max(np.divide(drawn[31:], drawn[30:-1])) < 1.08, "never far behind"
    sink.finish(whole, {})
    last = fake.rows[-1]["olmes/chart/arc_easy"].table
    assert max(tokens for tokens, _, _ in last.data) == 199 * 10**9


def test_log_takes_a_callable_a_run_or_several():
    run, rows = FakeRun(), []
    for sink in sinks_of([rows.append, run]):
        sink(ROW)
    assert rows == run.rows == [ROW]
    assert len(sinks_of(run)) == len(sinks_of(rows.append)) == 1


def test_a_sink_with_methods_is_told_everything_and_a_plain_one_gets_the_same_rows(tmp_path):
    class Tracker:
        def __init__(self):
            self.told = []

        def __call__(self, row):
            raise AssertionError("it takes the curves")

        def start(self, config, folder):
            self.told.append(("start", config, folder))

        def curves(self, row, run, crossovers):
            self.told.append(("curves", row, len(run.evaluations), set(crossovers)))

        def finish(self, run, crossovers):
            self.told.append(("finish", len(run.evaluations)))

    tracker, rows = Tracker(), []
    log_a_run([tracker, rows.append], tmp_path / "olmes", RISE[:2])
    tasks = {"arc_easy", "csqa", "average"}
    assert tracker.told == [
        ("start", CONFIG, tmp_path / "olmes"),
        ("curves", rows[0], 1, tasks),
        ("curves", rows[1], 2, tasks),
        ("finish", 2),
    ]


def test_a_tracker_that_fails_is_a_warning_and_the_others_still_get_everything(tmp_path, caplog):
    got = []

    class Broken:
        def fail(self, *_):
            raise ConnectionError("tracker is down")

        __call__ = start = curves = alert = finish = fail

    with caplog.at_level(logging.WARNING, "olmes_monitor"):
        log_everywhere([Broken(), got.append], ROW)
        alert_everywhere([Broken()], "title", "words")
        log_a_run([Broken()], tmp_path / "olmes", RISE[:1])
    assert got == [ROW]
    for what in ("the evaluation at 1000 tokens", "the alert 'title'", "what is measured", "the end of training"):
        assert f"a tracker refused {what} (ConnectionError: tracker is down)" in caplog.text


def test_two_monitors_with_names_share_a_run_and_nothing_of_one_hides_the_others(tmp_path):
    run, rows = FakeRun(), rows_with_curves(tmp_path / "olmes", RISE[:1])
    row, whole, crossovers = next(rows)
    for name in ("student", "teacher"):
        sink = WandbSink(lambda: run)
        sink.start({**CONFIG, "name": name})
        sink.curves({key.replace("olmes/", f"olmes/{name}/"): value for key, value in row.items()}, whole, crossovers)
    first, second = run.rows
    assert {key.split("/")[1] for key in first} == {"student"}
    assert {key.split("/")[1] for key in second} == {"teacher"}
    assert set(run.config) == {"olmes/student", "olmes/teacher"}
    assert run.summary["olmes/teacher/crossover/arc_easy/state"] == "undecided"
    assert run.rules["olmes/student/latest"] == run.rules["olmes/teacher/chart/csqa_table"] == "olmes/tokens"
