"""Which checkpoints are found, in which order, and at how many tokens."""

import json
import os
import shutil

import pytest
import torch
from made import same_weights, save_ckpt, save_folder
from parts import make_llama

from olmes_monitor.checkpoints.checkpoint import Checkpoint
from olmes_monitor.checkpoints.find import find_checkpoints
from olmes_monitor.checkpoints.load import open_model
from olmes_monitor.checkpoints.names import stage_in, step_in, tokens_in
from olmes_monitor.errors import SetupError

CPU = torch.device("cpu")


def summary(checkpoints: list[Checkpoint]) -> list[tuple]:
    return [(c.name, c.step, c.tokens, c.dated_by) for c in checkpoints]


def test_order_is_by_number_not_by_text_or_time(tmp_path):
    for age, step in enumerate((1000, 200, 10000)):
        folder = save_folder(tmp_path / f"checkpoint-{step}", seed=step)
        for path in (*folder.iterdir(), folder):
            os.utime(path, (1_000_000 - age, 1_000_000 - age))
    assert [c.step for c in find_checkpoints([tmp_path], axis="steps")] == [200, 1000, 10000]


@pytest.mark.parametrize(
    ("name", "step", "tokens"),
    [
        ("stage1-step72000-tokens302B", 72000, 302_000_000_000),
        ("step1000", 1000, None),
        ("step0-tokens0B", 0, 0),
        ("checkpoint-500", 500, None),
        ("epoch=3-step=200.ckpt", 200, None),
        ("epoch=3-step=200-v1.ckpt", 200, None),
        ("epoch=0-step=2-val_loss=3.10.ckpt", 2, None),
        ("epoch=7.ckpt", None, None),
        ("last.ckpt", None, None),
        ("last-v1.ckpt", None, None),
        ("global_step20", 20, None),
        ("iter_0000500", 500, None),
        ("ckpt_1000.pt", 1000, None),
        ("0400.safetensors", 400, None),
        ("model_000100.pt", 100, None),
        ("model-7b", None, None),
        ("run2", None, None),
        ("20B-tokens", None, 20_000_000_000),
        ("run-tokens=1.5M", None, 1_500_000),
        ("model_and_optim", None, None),
    ],
)
def test_what_names_tell(name, step, tokens):
    assert (step_in(name), tokens_in(name)) == (step, tokens)


def test_saved_counts_go_before_names_and_the_callbacks_own_before_all(tmp_path):
    def state(name, **entries):
        folder = save_folder(tmp_path / name, seed=len(name))
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": 3, **entries}))

    state("a-tokens7M", num_input_tokens_seen=0)  # 0: the trainer did not count
    state("bb-tokens7M", num_input_tokens_seen=2100)
    own = {"OLMESCallback": [{"args": {}, "attributes": {"restored": {"tokens": 2000, "step": 3}}}]}
    state("ccc-tokens7M", num_input_tokens_seen=2100, stateful_callbacks=own)
    state("dddd-tokens7M", num_input_tokens_seen=0)
    found = summary(find_checkpoints([tmp_path / "a-tokens7M", tmp_path / "bb-tokens7M", tmp_path / "ccc-tokens7M"]))
    assert found == [
        ("ccc-tokens7M", 3, 2000, "callback state"),
        ("bb-tokens7M", 3, 2100, "trainer state"),
        ("a-tokens7M", 3, 7_000_000, "name"),
    ]
    # Said by the user, and exact where a name is rounded.
    (given,) = find_checkpoints([tmp_path / "dddd-tokens7M"], tokens_per_step=2_333_333)
    assert (given.tokens, given.dated_by) == (6_999_999, "tokens per step")


def test_unknown_tokens_are_a_problem_that_names_the_ways_out(tmp_path):
    save_folder(tmp_path / "checkpoint-5", step=5)
    (found,) = find_checkpoints([tmp_path])
    assert found.tokens is None
    assert not found.may_mend
    for way in ("--tokens-per-step", "step1000-tokens2B", "OLMESCallback", "--axis steps"):
        assert way in found.problem
    assert summary(find_checkpoints([tmp_path], tokens_per_step=100)) == [("checkpoint-5", 5, 500, "tokens per step")]
    (by_steps,) = find_checkpoints([tmp_path], axis="steps")
    assert (by_steps.tokens, by_steps.dated_by, by_steps.problem) == (5, "step", None)
    save_folder(tmp_path / "final", seed=9)
    assert "optimizer step is not known" in find_checkpoints([tmp_path], axis="steps")[1].problem


def test_step_zero_is_zero_tokens(tmp_path):
    save_folder(tmp_path / "step0")
    assert [(c.tokens, c.problem) for c in find_checkpoints([tmp_path])] == [(0, None)]


def test_a_count_saved_one_step_early_is_brought_up_or_not_taken(tmp_path):
    own = {"OLMESCallback": {"tokens": 120, "step": 3, "evaluated": 0}}
    save_ckpt(tmp_path / "even" / "a.ckpt", step=4, callbacks=own)
    uneven = {"OLMESCallback": {"tokens": 121, "step": 3, "evaluated": 0}}
    save_ckpt(tmp_path / "uneven" / "a.ckpt", seed=1, step=4, callbacks=uneven)
    assert [c.tokens for c in find_checkpoints([tmp_path])] == [160, None]


def test_links_and_copies_are_counted_once(tmp_path):
    save_ckpt(tmp_path / "epoch=0-step=2.ckpt", seed=1, step=2)
    newest = save_ckpt(tmp_path / "epoch=0-step=4.ckpt", seed=2, step=4)
    (tmp_path / "last.ckpt").symlink_to(newest.name)
    # Saved a second time: the same tensors, other paths inside.
    save_ckpt(
        tmp_path / "best.ckpt", seed=2, step=4, callbacks={"ModelCheckpoint": {"last_model_path": "elsewhere" * 9}}
    )
    found = find_checkpoints([tmp_path], axis="steps")
    assert [c.name for c in found] == ["epoch=0-step=2.ckpt", "epoch=0-step=4.ckpt"]
    assert found == find_checkpoints([tmp_path, tmp_path / "last.ckpt"], axis="steps")


def test_the_final_model_in_a_runs_folder_is_its_last_checkpoint(tmp_path):
    for step in (5, 10):
        save_folder(tmp_path / f"checkpoint-{step}", seed=step, step=step)
    save_folder(tmp_path, seed=10)
    assert [c.name for c in find_checkpoints([tmp_path], axis="steps")] == ["checkpoint-5", "checkpoint-10"]
    # Not so if training went on after it.
    save_folder(tmp_path, seed=11)
    assert [c.problem is None for c in find_checkpoints([tmp_path], axis="steps")] == [True, True, False]


def test_equal_weights_at_two_steps_are_two_checkpoints(tmp_path):
    for step in (5, 10):
        save_folder(tmp_path / f"checkpoint-{step}", seed=0, step=step)
    assert [c.step for c in find_checkpoints([tmp_path], axis="steps")] == [5, 10]


def test_the_key_is_the_contents_and_not_the_times_or_the_place(tmp_path):
    save_folder(tmp_path / "step1", seed=1)
    shutil.copytree(tmp_path / "step1", tmp_path / "moved" / "step1", copy_function=shutil.copyfile)
    save_folder(tmp_path / "step2", seed=2)  # same names, sizes and headers

    def keys(place):
        return [c.key for c in find_checkpoints([place], axis="steps")]

    first, other = keys(tmp_path / "step1"), keys(tmp_path / "step2")
    assert keys(tmp_path / "moved") == first != other
    config = tmp_path / "moved" / "step1" / "config.json"
    config.write_text(config.read_text().replace("10000.0", "500000.0"))
    assert keys(tmp_path / "moved") != first


def test_every_kind_is_known_by_its_files(tmp_path):
    model = make_llama()
    save_folder(tmp_path / "step1", seed=1)
    make_llama(seed=2).save_pretrained(tmp_path / "step2", max_shard_size="40KB")
    save_folder(tmp_path / "step3")
    (tmp_path / "step3" / "model.safetensors").unlink()
    torch.save(make_llama(seed=3).state_dict(), tmp_path / "step3" / "pytorch_model.bin")
    save_ckpt(tmp_path / "logs" / "version_0" / "checkpoints" / "epoch=0-step=4.ckpt", seed=4, step=4)
    torch.save(model.state_dict(), tmp_path / "step5.pt")
    (tmp_path / "step6").mkdir()
    torch.save({"model": make_llama(seed=6).state_dict()}, tmp_path / "step6" / "weights.pth")
    for name in ("optimizer.pt", "rng_state_0.pth", "training_args.bin", "scheduler.pt"):
        torch.save({"w": torch.ones(2)}, tmp_path / name)
    found = find_checkpoints([tmp_path], axis="steps")
    assert [(c.step, c.kind) for c in found] == [
        (1, "transformers"),
        (2, "transformers"),
        (3, "transformers"),
        (4, "lightning"),
        (5, "state_dict"),
        (6, "state_dict"),
    ]
    assert all(c.problem is None for c in found)
    assert len(found[1].files) > 2


def test_a_place_that_is_not_there_or_empty_is_an_error(tmp_path):
    with pytest.raises(SetupError, match="there is no"):
        find_checkpoints([tmp_path / "nowhere"])
    with pytest.raises(SetupError, match="holds no checkpoint"):
        find_checkpoints([tmp_path])


class Hub:
    """A folder laid out as the hub's cache: refs/<revision>, snapshots/<commit>."""

    def __init__(self, folder):
        self.folder = folder

    def add(self, revision: str, seed: int, **config) -> None:
        commit = f"{seed:040x}"
        save_folder(self.folder / "snapshots" / commit, seed=seed, **config)
        (self.folder / "refs" / revision).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / "refs" / revision).write_text(commit)


def test_revisions_of_a_repository_in_the_names_of_olmo_and_pythia(tmp_path):
    hub = Hub(tmp_path / "models--owner--olmo")
    for seed, name in enumerate(
        ("main", "stage1-step10000-tokens21B", "stage1-step2000-tokens5B", "stage2-step1-tokens1B")
    ):
        hub.add(name, seed)
    found = find_checkpoints([hub.folder], revisions="stage1-step*")
    assert summary(found) == [
        ("stage1-step2000-tokens5B", 2000, 5_000_000_000, "name"),
        ("stage1-step10000-tokens21B", 10000, 21_000_000_000, "name"),
    ]
    assert same_weights(open_model(found[1], device=CPU), make_llama(seed=1))
    pythia = Hub(tmp_path / "pythia")
    for seed, step in enumerate((0, 512, 1000)):
        pythia.add(f"step{step}", seed)
    dated = find_checkpoints([pythia.folder], revisions="step*", tokens_per_step=2_097_152)
    assert [c.tokens for c in dated] == [0, 1_073_741_824, 2_097_152_000]


def test_stages_whose_tokens_begin_again_are_not_mixed(tmp_path):
    hub = Hub(tmp_path / "olmo")
    for seed, name in enumerate(("stage1-step2000-tokens5B", "stage2-ingredient1-step1000-tokens3B")):
        hub.add(name, seed)
    assert stage_in("stage2-ingredient1-step1000-tokens3B") == "stage2-ingredient1"
    with pytest.raises(SetupError, match="several stages"):
        find_checkpoints([hub.folder], revisions="stage*")
    with pytest.raises(SetupError, match="no revision"):
        find_checkpoints([hub.folder], revisions="step*")
    with pytest.raises(SetupError, match="--revisions"):
        find_checkpoints([hub.folder])


def test_a_repository_that_cannot_be_reached_is_taken_from_the_cache(tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    Hub(tmp_path / "models--owner--name").add("step7", seed=7)
    (found,) = find_checkpoints(["owner/name"], revisions="step*", axis="steps")
    assert (found.path, found.revision, found.tokens) == ("owner/name", "step7", 7)
    with pytest.raises(SetupError, match="cannot be listed"):
        find_checkpoints(["owner/other"], revisions="step*")
    with pytest.raises(SetupError, match=r"there is no folder runs/mistyped; if .* --revisions"):
        find_checkpoints(["runs/mistyped"])
