"""A scan's engine: the numbers are those of each checkpoint by itself, one plan serves them all, nothing is done twice."""

import json
import shutil
import threading
import time

import pytest
import torch
from parts import make_llama
from scan_parts import BATCH_TOKENS, TOKENS, age, make_scan, same, save
from transformers import AutoModelForCausalLM

from olmes_monitor import load_run, score
from olmes_monitor.checkpoints import load, scan
from olmes_monitor.errors import SetupError
from olmes_monitor.scoring import encode
from olmes_monitor.scoring.jobs import Job


@pytest.fixture(autouse=True)
def short_pause(monkeypatch):
    monkeypatch.setattr(scan, "PAUSE", 0.5)


@pytest.fixture
def folder(tokenizer, tmp_path):
    for step in (1, 2, 10):
        save(tmp_path, step, tokenizer)
    return tmp_path


def alone(place, tokenizer, suite):
    """What score() says of a checkpoint by itself."""
    model = AutoModelForCausalLM.from_pretrained(place)
    return score(model, tokenizer, suite, batch_tokens=BATCH_TOKENS).scores


def test_each_number_is_that_of_the_checkpoint_by_itself(folder, tokenizer, suite):
    done = make_scan(folder, suite)
    done.once()
    assert done.watcher.states == [("checkpoint-1", "scored"), ("checkpoint-2", "scored"), ("checkpoint-10", "scored")]
    run = load_run(folder)
    assert [e.point.tokens for e in run.evaluations] == [TOKENS, 2 * TOKENS, 10 * TOKENS]
    assert [(e.point.step, e.point.origin) for e in run.evaluations] == [(1, "scan"), (2, "scan"), (10, "scan")]
    for i, step in enumerate((1, 2, 10)):
        same(run.scores(i), alone(folder / f"checkpoint-{step}", tokenizer, suite))
    assert run.scores(0)["cf"] != run.scores(1)["cf"]


def test_one_model_and_one_plan_serve_all(folder, suite, monkeypatch):
    counts = {"plans": 0, "texts": 0}
    plan, task = Job.plan, encode.Encoder.encode_task

    def count(name, function):
        def counted(*args, **kwargs):
            counts[name] += 1
            return function(*args, **kwargs)

        return counted

    monkeypatch.setattr(Job, "plan", count("plans", plan))
    monkeypatch.setattr(encode.Encoder, "encode_task", count("texts", task))
    done = make_scan(folder, suite)
    first = done.find()[0]
    done.take(first)
    at_first = dict(counts)
    done.once()
    assert (done.skeleton.opened, done.skeleton.swapped) == (1, 2)
    assert counts == at_first


def test_a_second_scan_does_only_what_is_new(folder, tokenizer, suite):
    make_scan(folder, suite).once()
    before = (folder / "olmes" / "evaluations.jsonl").read_bytes()
    again = make_scan(folder, suite)
    again.once()
    assert (again.skeleton.opened, {state for _, state in again.watcher.states}) == (0, {"known"})
    assert (folder / "olmes" / "evaluations.jsonl").read_bytes() == before
    save(folder, 5, tokenizer)  # lower tokens, later
    third = make_scan(folder, suite)
    third.once()
    assert [name for name, state in third.watcher.states if state == "scored"] == ["checkpoint-5"]
    run = load_run(folder)
    assert [e.point.step for e in run.evaluations] == [1, 2, 5, 10]
    assert run.superseded == run.others == []


def test_a_checkpoint_that_was_written_over_is_scored_anew(folder, tokenizer, suite):
    make_scan(folder, suite).once()
    make_llama(seed=99).save_pretrained(folder / "checkpoint-2")
    age(folder / "checkpoint-2")
    again = make_scan(folder, suite)
    again.once()
    assert [name for name, state in again.watcher.states if state == "scored"] == ["checkpoint-2"]
    run = load_run(folder)
    same(run.scores(1), alone(folder / "checkpoint-2", tokenizer, suite))
    assert len(run.superseded) == 1


def test_another_suite_is_another_curve(folder, suite):
    from parts import make_task

    from olmes_monitor import Suite

    make_scan(folder, suite).once()
    other = Suite("other", [make_task("boxes", 3)])
    done = make_scan(folder, other)
    done.once()
    assert {state for _, state in done.watcher.states} == {"scored"}
    assert len(load_run(folder, other.fingerprint).evaluations) == len(load_run(folder, suite.fingerprint).evaluations)


def test_equal_shapes_do_not_make_equal_models(tokenizer, suite, tmp_path):
    """A RoPE base that changes in mid-training changes nothing about the weights' names and shapes."""
    rope = {"rope_theta": 100.0, "rope_type": "default"}
    save(tmp_path, 1, tokenizer)
    save(tmp_path, 2, tokenizer, rope_parameters=rope)
    save(tmp_path, 3, tokenizer, rope_parameters=rope)
    done = make_scan(tmp_path, suite)
    done.once()
    assert (done.skeleton.opened, done.skeleton.swapped) == (2, 1)
    run = load_run(tmp_path)
    for i in range(3):
        same(run.scores(i), alone(tmp_path / f"checkpoint-{i + 1}", tokenizer, suite))


def test_each_checkpoint_is_scored_in_the_dtype_it_was_saved_in(tokenizer, suite, tmp_path):
    for step, dtype in ((1, torch.float32), (2, torch.bfloat16), (3, torch.bfloat16)):
        place = save(tmp_path, step, tokenizer)
        make_llama(seed=step).to(dtype).save_pretrained(place)
        age(place)
    make_scan(tmp_path, suite).once()
    dtypes = [evaluation.settings["dtype"] for evaluation in load_run(tmp_path).evaluations]
    assert dtypes == ["torch.float32", "torch.bfloat16", "torch.bfloat16"]
    done = make_scan(tmp_path, suite, tmp_path / "asked", dtype="float32")
    done.once()
    assert {e.settings["dtype"] for e in load_run(tmp_path / "asked").evaluations} == {"torch.float32"}
    assert done.skeleton.swapped >= 1


def test_what_cannot_be_scored_never_has_a_score_and_the_rest_goes_on(folder, tokenizer, suite):
    save(folder, 3, tokenizer, hidden_size=64)  # another model; its config says so, so it is scored as what it is
    broken = save(folder, 4, tokenizer)
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    cut = save(folder, 5, tokenizer) / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-100])
    done = make_scan(folder, suite)
    done.once()
    states = {outcome.checkpoint.name: outcome for outcome in done.outcomes.values()}
    assert {name: outcome.state for name, outcome in states.items()} == {
        "checkpoint-1": "scored",
        "checkpoint-2": "scored",
        "checkpoint-3": "scored",
        "checkpoint-4": "failed",
        "checkpoint-5": "incomplete",
        "checkpoint-10": "scored",
    }
    assert "layers.2" in states["checkpoint-4"].why
    run = load_run(folder)
    scored = {e.point.step for e in run.evaluations if e.scores is not None or e.metrics}
    assert scored == {1, 2, 3, 10}
    (failed,) = [e for e in run.evaluations if e.point.step == 4]
    assert failed.problems["evaluation"].startswith("failed: ")
    make_scan(folder, suite).once()  # said once, not at every scan
    assert len(load_run(folder).superseded) == 0


def test_a_half_written_checkpoint_is_looked_at_again_after_a_moment(folder, suite):
    state = folder / "checkpoint-2" / "trainer_state.json"
    text = state.read_text()
    state.write_text(text[:10])

    def finish():
        time.sleep(0.3)
        state.write_text(text)

    done = make_scan(folder, suite)
    found = done.find()
    assert [c.may_mend for c in found if c.name == "checkpoint-2"] == [True]
    threading.Timer(0.0, finish).start()
    done.deal_with(found)
    time.sleep(0.4)
    done.once()
    assert ("checkpoint-2", "incomplete") in done.watcher.states
    assert {outcome.state for outcome in done.outcomes.values()} == {"scored"}
    assert len(load_run(folder).evaluations) == 3


def test_a_checkpoint_deleted_while_it_is_read_is_recorded_as_vanished(folder, suite, monkeypatch):
    read = load.read_state

    def rotate(checkpoint, **settings):
        if checkpoint.name == "checkpoint-2":
            shutil.rmtree(checkpoint.path)
        return read(checkpoint, **settings)

    monkeypatch.setattr(load, "read_state", rotate)
    done = make_scan(folder, suite)
    done.once()
    assert [state for _, state in done.watcher.states] == ["scored", "vanished", "scored"]
    (gone,) = [e for e in load_run(folder).evaluations if e.point.step == 2]
    assert gone.problems["evaluation"].startswith("vanished")
    assert not gone.metrics


def test_a_checkpoint_deleted_after_it_was_found_is_vanished_and_not_the_next_ones_weights(folder, suite):
    done = make_scan(folder, suite)
    found = done.find()
    shutil.rmtree(found[1].path)
    done.deal_with(found)
    assert [state for _, state in done.watcher.states] == ["scored", "vanished", "scored"]


def test_a_file_written_over_while_others_are_scored_is_not_taken_for_what_was_found(folder, tokenizer, suite):
    done = make_scan(folder, suite)
    found = done.find()
    make_llama(seed=99).save_pretrained(folder / "checkpoint-2")
    done.deal_with(found)
    assert [state for _, state in done.watcher.states] == ["scored", "incomplete", "scored"]
    done.once()
    assert {outcome.state for outcome in done.outcomes.values()} == {"scored"}
    same(load_run(folder).scores(1), alone(folder / "checkpoint-2", tokenizer, suite))


def test_one_record_has_one_axis(folder, suite):
    from olmes_monitor.checkpoints.store import Results

    make_scan(folder, suite).once()
    with pytest.raises(SetupError, match=r"holds a curve over tokens, and this scan is over steps.*--out"):
        Results(folder / "olmes", suite, "steps")


def test_a_tokenizer_that_does_not_fit_is_refused_for_each(tmp_path, tokenizer, suite):
    save(tmp_path, 1, tokenizer, vocab_size=300)
    done = make_scan(tmp_path, suite)
    done.once()
    (outcome,) = done.outcomes.values()
    assert (outcome.state, "embedding has 300 rows" in outcome.why) == ("failed", True)


def test_a_device_map_gives_the_same_numbers_and_still_refuses_what_is_not_whole(folder, tokenizer, suite):
    broken = save(folder, 3, tokenizer)
    config = (broken / "config.json").read_text()
    (broken / "config.json").write_text(config.replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    done = make_scan(folder, suite, device_map="auto")
    done.once()
    assert [state for _, state in done.watcher.states] == ["scored", "scored", "failed", "scored"]
    run = load_run(folder)
    for i, step in ((0, 1), (1, 2), (3, 10)):
        same(run.scores(i), alone(folder / f"checkpoint-{step}", tokenizer, suite))
    assert done.skeleton.swapped == 1
