"""olmes-monitor upload: a record into a W&B run of its own, each evaluation once. Real W&B sessions, offline, read back;
what only a server knows (how many rows a run has already) comes from a fake run."""

import pytest
import wandb
from fake_wandb import FakeRun
from synthetic import RISE, failed_evaluation, write_rise
from wandb_file import axes, config, history, records, summary, table

from olmes_monitor.cli import main
from olmes_monitor.errors import RecordError, SetupError
from olmes_monitor.record import Recorder, load_run, wandb_runs
from olmes_monitor.record.loggers import WandbSink
from olmes_monitor.record.upload import make_plan, upload

FINGERPRINT = "0123456789abcdef"
B = 10**9


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "olmes"


def sessions(tmp_path):
    """The files of all offline sessions below a folder, oldest first."""
    return sorted(tmp_path.rglob("run-*.wandb"), key=lambda path: path.stat().st_mtime_ns)


def tokens(path):
    return [row["olmes/tokens"] for row in history(path)]


def offline(folder, tmp_path, **settings):
    return upload(folder, mode="offline", dir=str(tmp_path), **{"project": "test", **settings})


def test_a_record_becomes_one_run_with_the_curves_the_charts_and_the_verdicts(folder, tmp_path):
    write_rise(folder)
    done = offline(folder, tmp_path)
    (path,) = sessions(tmp_path)
    assert (done.added, done.rows, done.offline) == (8, 8, True)
    assert path.is_relative_to(done.place)
    rows, run = history(path), load_run(folder)
    assert tokens(path) == [i * B for i in range(8)]
    for row, evaluation in zip(rows, run.evaluations, strict=True):
        assert row.items() >= evaluation.metrics.items()
        assert axes(path)["olmes/mcf/arc_easy"] == "olmes/tokens"
    drawn = [value for _, line, value in table(path, rows[-1]["olmes/chart/arc_easy_table"])[1] if line == "MCF"]
    assert drawn == [evaluation.metrics["olmes/mcf/arc_easy"] for evaluation in run.evaluations]
    assert summary(path)["olmes/crossover/arc_easy/tokens"] == run.crossovers()["arc_easy"].tokens
    assert config(path)["olmes"]["fingerprint"] == FINGERPRINT


def test_again_offline_writes_nothing_new_and_with_more_a_session_that_holds_all(folder, tmp_path):
    write_rise(folder, RISE[:3])
    first, again = offline(folder, tmp_path), offline(folder, tmp_path)
    assert (again.added, again.run_id, again.place) == (0, first.run_id, first.place)
    assert len(sessions(tmp_path)) == 1
    write_rise(folder, RISE[3:5], start=3)
    more = offline(folder, tmp_path)
    assert more.run_id == first.run_id
    assert tokens(sessions(tmp_path)[-1]) == [i * B for i in range(5)], "synced, it takes the place of the first"


def test_two_offline_sessions_of_training_are_one_curve(folder, tmp_path):
    """Each session of a job that was stopped and went on has a half; synced under one id, the second replaces the first."""
    for name, levels, start in (("a", RISE[:4], 0), ("b", RISE[4:], 4)):
        place = tmp_path / name
        place.mkdir()
        with wandb.init(mode="offline", dir=str(place), project="test", id="training", resume="allow"):
            sink = WandbSink()
            folder.mkdir(parents=True, exist_ok=True)
            sink.start({}, folder)
            for evaluation in write_rise(folder, levels, start=start):
                sink({"olmes/tokens": evaluation.point.tokens})
    assert [len(tokens(path)) for path in sessions(tmp_path)] == [4, 4]
    (tmp_path / "c").mkdir()
    done = offline(folder, tmp_path / "c", project=None)
    (path,) = sessions(tmp_path / "c")
    assert tokens(path) == [i * B for i in range(8)]
    assert done.run_id != "training"
    (begin,) = [record.run for record in records(path) if record.WhichOneof("record_type") == "run"][:1]
    assert (begin.project, begin.run_group, begin.job_type) == ("test", "training", "olmes-upload")


def test_superseded_and_failed_evaluations_stay_at_home(folder, tmp_path):
    write_rise(folder, RISE[:4])
    Recorder(folder).write(failed_evaluation(4 * B))
    write_rise(folder, [(0.6, 0.6)], start=2)  # training went back
    offline(folder, tmp_path)
    (path,) = sessions(tmp_path)
    assert tokens(path) == [0, B, 2 * B]
    assert history(path)[-1]["olmes/cf/arc_easy"] == pytest.approx(0.6, abs=0.03)


def test_what_was_uploaded_and_given_up_since_calls_for_a_new_run(folder, tmp_path, capsys):
    write_rise(folder, RISE[:4])
    first = offline(folder, tmp_path)
    write_rise(folder, [(0.6, 0.6)], start=2)
    second = offline(folder, tmp_path)
    assert second.renewed
    assert second.run_id != first.run_id
    assert tokens(sessions(tmp_path)[-1]) == [0, B, 2 * B]
    with pytest.raises(RecordError, match=f"{first.run_id} holds other evaluations.*leave out --run-id"):
        offline(folder, tmp_path, run_id=first.run_id)
    assert offline(folder, tmp_path).added == 0


@pytest.fixture
def server(monkeypatch):
    """W&B's server as far as it matters: it keeps runs by id, counts their rows, and refuses resume="never" for a known id."""
    runs, calls = {}, []

    def init(*, id, resume, **settings):
        calls.append({"id": id, "resume": resume, **settings})
        if resume == "never" and id in runs:
            raise wandb.errors.UsageError(f"run {id} exists")
        run = runs.setdefault(id, FakeRun(id))
        run.resumed, run.starting_step, run.rules = bool(run.rows), len(run.rows), {}
        return run

    monkeypatch.setattr(wandb, "init", init)
    server = type("Server", (), {"runs": runs, "calls": calls})
    return server


def online(folder, **settings):
    return upload(folder, mode="online", **settings)


def test_again_online_only_what_is_new_is_sent(folder, server):
    write_rise(folder, RISE[:3])
    first = online(folder)
    assert online(folder).added == 0
    write_rise(folder, RISE[3:5], start=3)
    more = online(folder)
    assert (first.added, more.added, more.rows) == (3, 2, 5)
    (run,) = server.runs.values()
    assert [row["olmes/tokens"] for row in run.rows] == [i * B for i in range(5)]


def test_an_upload_that_broke_off_goes_on_where_it_was(folder, server):
    write_rise(folder, RISE[:5])

    class Breaks(FakeRun):
        def log(self, row):
            if len(self.rows) == 2 and not self.resumed:
                raise KeyboardInterrupt
            super().log(row)

    state = wandb_runs.read(folder)
    server.runs["mine"] = Breaks("mine")
    write_state = {
        **state,
        "uploads": {"mine": {"fingerprint": FINGERPRINT, "ours": True, "names": [], "session": None}},
    }
    wandb_runs.write(folder, write_state)
    with pytest.raises(KeyboardInterrupt):
        online(folder)
    assert len(server.runs["mine"].rows) == 2
    assert online(folder).added == 3
    assert [row["olmes/tokens"] for row in server.runs["mine"].rows] == [i * B for i in range(5)]


def test_the_trainings_own_run_is_refused_unless_forced_and_then_each_evaluation_goes_there_once(
    folder, server, capsys
):
    write_rise(folder, RISE[:3])
    server.runs["live"] = FakeRun("live", rows=[{"loss": 1.0}] * 7)
    wandb_runs.remember_live(folder, server.runs["live"])
    with pytest.raises(RecordError, match="live is a run that training itself logs to"):
        online(folder, run_id="live")
    assert server.calls == []
    assert main(["upload", str(folder), "--run-id", "live"]) == 2
    assert "pass --force when training is over" in capsys.readouterr().err
    assert online(folder, run_id="live", force=True).added == 3
    assert online(folder, run_id="live", force=True).added == 0
    assert len(server.runs["live"].rows) == 10
    assert "group" not in server.calls[0]
    # It did not become the run that later uploads go to.
    assert online(folder).run_id != "live"


def test_a_run_that_someone_else_made_is_refused_by_the_server(folder, server):
    write_rise(folder, RISE[:2])
    server.runs["theirs"] = FakeRun("theirs", rows=[{"loss": 1.0}])
    with pytest.raises(SetupError, match=r"could not start run theirs.*give another --run-id"):
        online(folder, run_id="theirs")
    assert len(server.runs["theirs"].rows) == 1
    assert online(folder, run_id="theirs", force=True).added == 2
    assert online(folder, run_id="theirs", force=True).added == 0
    with pytest.raises(RecordError, match="theirs is a run that something else logs to"):
        online(folder, run_id="theirs")
    assert len(server.runs["theirs"].rows) == 3


def test_an_offline_session_never_replaces_a_run_of_others(folder, tmp_path):
    write_rise(folder, RISE[:2])
    wandb_runs.remember_live(folder, FakeRun("live"))
    for run_id in ("live", "of someone"):
        with pytest.raises(RecordError, match="upload it online"):
            offline(folder, tmp_path, run_id=run_id.replace(" ", "-"), force=True)


def test_the_id_of_a_training_job_in_the_environment_leads_nowhere(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "live")
    write_rise(folder, RISE[:2])
    assert offline(folder, tmp_path).run_id != "live"
    (path,) = sessions(tmp_path)
    assert "live" not in path.name


def test_nothing_to_upload_and_a_disabled_wandb_are_errors(folder, tmp_path):
    Recorder(folder).write(failed_evaluation(0))
    with pytest.raises(RecordError, match="no evaluation to upload"):
        offline(folder, tmp_path)
    write_rise(folder, RISE[:1], start=1)
    with pytest.raises(SetupError, match="disabled"):
        upload(folder, mode="disabled", project="test")


def test_a_damaged_list_of_runs_is_an_error_and_not_a_second_upload(folder, tmp_path):
    write_rise(folder, RISE[:1])
    (folder / wandb_runs.FILE).write_text("{")
    with pytest.raises(RecordError, match="which says which W&B runs this record has"):
        offline(folder, tmp_path)


def test_evaluations_that_a_scan_adds_in_the_middle_are_appended():
    uploads = {"mine": {"fingerprint": FINGERPRINT, "ours": True, "names": ["1", "5"], "session": None}}
    plan = make_plan({"live": {}, "uploads": uploads}, FINGERPRINT, ["1", "3", "5", "7"])
    assert (plan.run_id, plan.names) == ("mine", ["1", "5", "3", "7"])
    other = make_plan({"live": {}, "uploads": uploads}, "another suite", ["1"])
    assert other.run_id != "mine"
    assert not other.renewed


def test_the_command_says_what_it_did(folder, tmp_path, monkeypatch, capsys):
    pytest.importorskip("wandb_workspaces")
    write_rise(folder, RISE[:2])
    monkeypatch.setattr("wandb.init", lambda **settings: wandb_init(**settings, dir=str(tmp_path), mode="offline"))
    assert main(["upload", str(folder.parent), "--project", "test", "--group", "mine", "--workspace"]) == 0
    shown = capsys.readouterr().out
    assert ": 2 evaluations logged, 2 in all" in shown
    assert f"wandb sync {sessions(tmp_path)[0].parent}" in shown
    assert "no workspace was saved" in shown
    assert main(["upload", str(folder.parent), "--project", "test"]) == 0
    assert "nothing new, 2 in all" in capsys.readouterr().out


wandb_init = wandb.init


def test_the_workspace_has_both_curves_of_a_task_in_one_panel_on_the_token_axis():
    """Built, not saved: saving needs W&B's server."""
    pytest.importorskip("wandb_workspaces")
    from olmes_monitor.record.workspace import make_workspace

    workspace = make_workspace("me", "project", ["arc_easy", "csqa"])
    sections = {section.name: section.panels for section in workspace.sections}
    assert list(sections) == ["OLMES", "CF and MCF", "Where MCF overtook CF", "What it costs"]
    assert [panel.y for panel in sections["CF and MCF"]] == [
        ["olmes/cf/arc_easy", "olmes/mcf/arc_easy"],
        ["olmes/cf/csqa", "olmes/mcf/csqa"],
    ]
    panels = [panel for found in sections.values() for panel in found]
    assert {panel.x for panel in panels} == {"olmes/tokens"}
    assert sections["OLMES"][0].y == ["olmes/cf/average", "olmes/mcf/average"]
    saved = workspace._to_model().model_dump_json(by_alias=True)  # what `save` would send
    assert saved.count("olmes/mcf/csqa") == 1
    alone = make_workspace("me", "project", ["arc_easy"])
    assert [len(section.panels) for section in alone.sections] == [1, 1, 1, 2], "one task has no average"


def test_without_the_library_a_workspace_says_what_to_install(folder, monkeypatch, capsys):
    write_rise(folder, RISE[:1])
    monkeypatch.setitem(__import__("sys").modules, "wandb_workspaces.workspaces", None)
    assert main(["upload", str(folder), "--workspace"]) == 2
    assert "pip install 'olmes_monitor[workspace]'" in capsys.readouterr().err
    assert not (folder / wandb_runs.FILE).exists(), "nothing was sent"
