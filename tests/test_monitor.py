import json
import logging

import pytest
import torch
from parts import make_task

from olmes_monitor import Monitor, Suite, load_run
from olmes_monitor.errors import OLMESError, RecordError, SetupError


def quiet(model, tokenizer, suite, out, **settings):
    return Monitor(model, tokenizer, suite=suite, out=out, console=False, **{"every": 1000, **settings})


def test_it_evaluates_at_the_start_at_each_boundary_and_at_the_end(suite, tokenizer, llama, tmp_path):
    rows = []
    with quiet(llama, tokenizer, suite, tmp_path, log=rows.append) as monitor:
        for _ in range(7):
            monitor.step(tokens=400)
    assert [row["olmes/tokens"] for row in rows] == [0, 1200, 2000, 2800]
    assert [row["olmes/step"] for row in rows] == [0, 3, 5, 7]
    assert all(row["olmes/seconds"] > 0 for row in rows)
    assert "olmes/overhead" not in rows[0]  # before training it would be a share of nothing but itself
    assert all(0 < row["olmes/overhead"] < 1 for row in rows[1:])
    assert {"olmes/cf/boxes", "olmes/mcf/balls", "olmes/score/average", "olmes/gap/boxes"} <= rows[0].keys()


def test_the_end_is_not_evaluated_twice(suite, tokenizer, llama, tmp_path):
    with quiet(llama, tokenizer, suite, tmp_path, at_start=False) as monitor:
        monitor.step(tokens=1000)
    assert [e.point.tokens for e in load_run(tmp_path).evaluations] == [1000]


def test_start_and_end_can_be_left_out(suite, tokenizer, llama, tmp_path):
    rows = []
    with quiet(llama, tokenizer, suite, tmp_path, log=rows.append, at_start=False, at_end=False) as monitor:
        monitor.step(tokens=999)
    assert rows == []


def test_the_record_holds_what_was_logged(suite, tokenizer, llama, tmp_path):
    rows = []
    with quiet(llama, tokenizer, suite, tmp_path, log=rows.append) as monitor:
        monitor.step(tokens=1000)
    lines = (tmp_path / "olmes" / "evaluations.jsonl").read_text().splitlines()
    assert len(lines) == 2
    for line, row in zip(map(json.loads, lines), rows, strict=True):
        assert line["fingerprint"] == suite.fingerprint
        assert line["metrics"] == {k: v for k, v in row.items() if k in line["metrics"]}
        assert (
            line["versions"]["torch"] == torch.__version__.split("+")[0]
            or line["versions"]["torch"] == torch.__version__
        )
        assert line["cost"]["tokens"] > 0
        assert line["settings"]["path"] == "packed"
    run = load_run(tmp_path)
    assert run.scores(0).num_rows == sum(len(q.choices) for t in suite.tasks.values() for q in t.questions)
    assert run.evaluations[1].metrics["olmes/cf/boxes"] == rows[1]["olmes/cf/boxes"]


def test_scoring_settings_reach_the_scorer(suite, tokenizer, llama, tmp_path):
    with quiet(llama, tokenizer, suite, tmp_path, at_end=False, permutations="cyclic"):
        pass
    assert "debiased" in load_run(tmp_path).evaluations[0].tasks["boxes"]["cyclic"]


def test_a_failed_evaluation_is_recorded_and_training_goes_on(suite, tokenizer, llama, tmp_path, caplog):
    rows = []
    monitor = quiet(llama, tokenizer, suite, tmp_path, log=rows.append)
    monitor.start()
    hook = llama.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("no memory")))
    with caplog.at_level(logging.WARNING, "olmes_monitor"):
        assert monitor.step(tokens=1000) is None
    assert "evaluation at 1,000 tokens is missing: rank 0 of 1 failed in boxes cf" in caplog.text
    assert "RuntimeError: no memory" in caplog.text
    hook.remove()
    assert monitor.step(tokens=1000) is not None
    assert [row["olmes/tokens"] for row in rows] == [0, 2000]
    failed = load_run(tmp_path).evaluations[1]
    assert failed.point.tokens == 1000
    assert "no memory" in failed.problems["evaluation"]
    assert failed.metrics == {}


def test_a_record_that_cannot_be_written_does_not_stop_training(suite, tokenizer, llama, tmp_path, caplog, monkeypatch):
    rows = []
    monitor = quiet(llama, tokenizer, suite, tmp_path, log=rows.append, at_start=False)
    monitor.start()

    def full(self, evaluation):
        raise RecordError("no space left")

    monkeypatch.setattr(type(monitor._recorder), "write", full)
    with caplog.at_level(logging.WARNING, "olmes_monitor"):
        monitor.step(tokens=1000)
    assert "the evaluation at 1,000 tokens is not on disk: no space left" in caplog.text
    assert [row["olmes/tokens"] for row in rows] == [1000]
    monitor.on_error = "raise"
    with pytest.raises(RecordError, match="no space left"):
        monitor.step(tokens=1000)


def test_a_defect_outside_the_forward_does_not_stop_training_either(
    suite, tokenizer, llama, tmp_path, caplog, monkeypatch
):
    monitor = quiet(llama, tokenizer, suite, tmp_path)
    monkeypatch.setattr("olmes_monitor.scoring.score.summarize", lambda *_: 1 / 0)
    with caplog.at_level(logging.WARNING, "olmes_monitor"):
        monitor.start()
    assert "ZeroDivisionError" in caplog.text
    assert "Traceback" in caplog.text


def test_on_error_raise_stops_with_the_cause_after_recording_it(suite, tokenizer, llama, tmp_path):
    monitor = quiet(llama, tokenizer, suite, tmp_path, on_error="raise", at_start=False)
    monitor.start()
    llama.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("no memory")))
    with pytest.raises(OLMESError, match="no memory"):
        monitor.step(tokens=1000)
    assert len(load_run(tmp_path).evaluations) == 1


def test_a_restored_monitor_goes_on_and_repeats_nothing(suite, tokenizer, llama, tmp_path):
    first = quiet(llama, tokenizer, suite, tmp_path)
    first.start()
    first.step(tokens=1500)
    state = json.loads(json.dumps(first.state_dict()))
    second = quiet(llama, tokenizer, suite, tmp_path)
    second.load_state_dict(state)
    second.start()
    second.step(tokens=400)
    second.step(tokens=400)
    second.finish()
    run = load_run(tmp_path)
    assert [e.point.tokens for e in run.evaluations] == [0, 1500, 2300]
    assert [e.point.step for e in run.evaluations] == [0, 1, 3]
    assert run.superseded == []


def test_going_on_with_another_suite_is_refused_before_training(suite, tokenizer, llama, tmp_path):
    first = quiet(llama, tokenizer, suite, tmp_path)
    first.start()
    first.step(tokens=1000)
    second = quiet(llama, tokenizer, Suite("other", [make_task("boxes", 5)]), tmp_path)
    second.load_state_dict(first.state_dict())
    with pytest.raises(SetupError, match=f"{suite.fingerprint}.*one curve has one suite"):
        second.start()


def test_an_empty_first_step_is_an_error_a_later_one_is_not(suite, tokenizer, llama, tmp_path):
    monitor = quiet(llama, tokenizer, suite, tmp_path, at_start=False)
    with pytest.raises(SetupError, match="empty batch"):
        monitor.step(tokens=0)
    monitor.step(tokens=10)
    monitor.step(tokens=0)
    assert monitor.tokens == 10
    with pytest.raises(SetupError, match="got -1"):
        monitor.step(tokens=-1)


def test_a_folder_that_cannot_be_written_is_an_error_before_training(suite, tokenizer, llama, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError):
        quiet(llama, tokenizer, suite, tmp_path / "file")


@pytest.mark.parametrize(
    "settings", [{"every": 0}, {"every": "soon"}, {"on_error": "ignore"}, {"suite": "big"}, {"limit": 3}]
)
def test_wrong_settings_are_refused(suite, tokenizer, llama, tmp_path, settings):
    with pytest.raises(SetupError):
        quiet(llama, tokenizer, settings.pop("suite", suite), tmp_path, **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"evry": "1B"}, "Monitor has no setting 'evry'; did you mean every"),
        ({"batch_token": 64}, "Monitor has no setting 'batch_token'; did you mean batch_tokens"),
        ({"on_crossover": 3}, "on_crossover takes a function; got 3"),
    ],
)
def test_a_setting_that_is_none_is_named_with_the_nearest(suite, tokenizer, llama, tmp_path, settings, words):
    with pytest.raises(SetupError, match=words):
        quiet(llama, tokenizer, suite, tmp_path, **settings)


def test_a_setting_like_none_is_answered_with_all_of_them_each_once(suite, tokenizer, llama, tmp_path):
    with pytest.raises(SetupError) as caught:
        quiet(llama, tokenizer, suite, tmp_path, zzzzqq=1)
    names = str(caught.value).split("; it has ")[1].split(", ")
    assert {"every", "batch_tokens"} <= set(names)
    assert len(set(names)) == len(names)


def test_the_console_shows_the_cost_the_tables_and_the_crossings(suite, tokenizer, llama, tmp_path, capsys):
    with Monitor(llama, tokenizer, every=1000, suite=suite, out=tmp_path) as monitor:
        monitor.step(tokens=1000)
    shown = capsys.readouterr().out
    assert f"suite tiny ({suite.fingerprint}): 2 tasks, 21 questions" in " ".join(shown.split())
    assert "of the training compute" in " ".join(shown.split())
    assert shown.count("boxes") >= 3
    assert "average" in shown


def test_an_evaluation_that_costs_much_of_the_training_says_so_before_the_first_step(
    suite, tokenizer, llama, tmp_path, caplog
):
    cheap = quiet(llama, tokenizer, suite, tmp_path / "a", every="1B", at_start=False)
    with caplog.at_level(logging.WARNING, "olmes_monitor"):
        cheap.start()
    assert caplog.text == ""
    dear = quiet(llama, tokenizer, suite, tmp_path / "b", every=cheap.scorer.tokens, at_start=False)
    with caplog.at_level(logging.WARNING, "olmes_monitor"):
        dear.start()
    forwarded = f"{cheap.scorer.tokens:,}"
    assert "an evaluation costs 33 % of the training compute" in caplog.text
    assert f"it forwards {forwarded} tokens, and the shortest interval trains on {forwarded}" in caplog.text


def test_an_interval_shorter_than_a_step_is_said_once(suite, tokenizer, llama, tmp_path, caplog):
    monitor = quiet(llama, tokenizer, suite, tmp_path, every="1M", at=[100], at_start=False)
    with caplog.at_level(logging.WARNING, "olmes_monitor"):
        monitor.start()
        caplog.clear()
        monitor.step(tokens=101)
        monitor.step(tokens=101)
    assert caplog.text.count("one optimizer step feeds 101 tokens, more than the 100 between two scheduled points") == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"every": "1B"}, "an evaluation every 1B tokens, "),
        (
            {"every": "geometric:1M,1.5", "at": [5, 7]},
            "at 1M tokens and each 1.5-fold from there, at 2 given token counts, ",
        ),
        ({"every": None, "at_checkpoints": True}, "an evaluation at each saved checkpoint; record in"),
        ({"every": None}, "an evaluation at the start and the end only; record in"),
    ],
)
def test_the_first_line_says_the_schedule(suite, tokenizer, llama, tmp_path, settings, words):
    assert words in quiet(llama, tokenizer, suite, tmp_path, **settings).describe()


def test_a_checkpoint_is_named_by_its_points_evaluation_whichever_came_first(suite, tokenizer, llama, tmp_path):
    monitor = quiet(llama, tokenizer, suite, tmp_path, at_end=False)
    monitor.start()
    monitor.step(tokens=1000)
    assert monitor.saved("step1") is None  # evaluated before it was saved
    monitor.step(tokens=500)
    monitor.saved(tmp_path / "step2")  # saved, not evaluated
    monitor.evaluate()  # and then evaluated after all
    monitor.step(tokens=500)
    monitor.saved(None)  # saved nobody knows where
    run = load_run(tmp_path)
    saved = {e.point.tokens: e.point.checkpoint for e in run.evaluations}
    assert saved == {0: None, 1000: "step1", 1500: str(tmp_path / "step2"), 2000: None}


def test_each_saved_checkpoint_is_evaluated_if_asked(suite, tokenizer, llama, tmp_path):
    monitor = quiet(llama, tokenizer, suite, tmp_path, every=None, at_checkpoints=True)
    with monitor:
        for step in range(1, 5):
            monitor.step(tokens=100)
            if step in (2, 3):
                assert monitor.saved(f"step{step}").point.checkpoint == f"step{step}"
                assert monitor.saved(f"again{step}") is None
    saved = [(e.point.tokens, e.point.checkpoint) for e in load_run(tmp_path).evaluations]
    assert saved == [(0, None), (200, "again2"), (300, "again3"), (400, None)]


def test_a_checkpoint_that_cannot_be_noted_does_not_stop_training(
    suite, tokenizer, llama, tmp_path, caplog, monkeypatch
):
    monitor = quiet(llama, tokenizer, suite, tmp_path)
    monitor.start()

    def full(self, name, checkpoint):
        raise RecordError("no space left")

    monkeypatch.setattr(type(monitor._recorder), "amend", full)
    with caplog.at_level(logging.WARNING, "olmes_monitor"):
        monitor.saved("here")
    assert "the checkpoint here is not on disk: no space left" in caplog.text


def test_a_name_goes_into_the_rows_and_not_into_the_record(suite, tokenizer, llama, tmp_path):
    rows = []
    with quiet(llama, tokenizer, suite, tmp_path, log=rows.append, name="big", at_end=False):
        pass
    assert {"olmes/tokens", "olmes/step", "olmes/big/seconds", "olmes/big/stderr/cf/boxes"} <= rows[0].keys()
    assert "olmes/cf/boxes" in load_run(tmp_path).evaluations[0].metrics


def test_a_run_that_never_evaluated_ends_without_an_error(suite, tokenizer, llama, tmp_path, caplog):
    monitor = Monitor(llama, tokenizer, every="1B", suite=suite, out=tmp_path, at_start=False, at_end=False)
    with monitor, caplog.at_level(logging.WARNING, "olmes_monitor"):
        monitor.step(tokens=5)
    assert "no crossings to tell: no record of evaluations" in caplog.text


def test_a_run_restarted_with_another_suite_in_its_folder_can_be_resumed(suite, tokenizer, llama, tmp_path):
    quiet(llama, tokenizer, Suite("other", [make_task("boxes", 5)]), tmp_path).start()
    restarted = quiet(llama, tokenizer, suite, tmp_path)
    restarted.start()
    restarted.step(tokens=1500)
    resumed = quiet(llama, tokenizer, suite, tmp_path)
    resumed.load_state_dict(restarted.state_dict())
    resumed.start()
    resumed.step(tokens=500)
    run = load_run(tmp_path, fingerprint=suite.fingerprint)
    assert [e.point.tokens for e in run.evaluations] == [0, 1500, 2000]
