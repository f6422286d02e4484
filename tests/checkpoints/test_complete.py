"""Half-written, damaged and deleted checkpoints are told from whole ones, format by format."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from made import save_ckpt, save_folder
from parts import make_llama
from safetensors.torch import save_file

from olmes_monitor.checkpoints import find
from olmes_monitor.checkpoints.checkpoint import CheckpointError
from olmes_monitor.checkpoints.complete import VANISHED, why_incomplete
from olmes_monitor.checkpoints.find import find_checkpoints
from olmes_monitor.checkpoints.load import read_state
from olmes_monitor.checkpoints.weights import read_tensors, why_cut_off


def only(place):
    (found,) = find_checkpoints([place], axis="steps")
    return found


@pytest.fixture
def sharded(tmp_path) -> Path:
    folder = tmp_path / "checkpoint-5"
    make_llama().save_pretrained(folder, max_shard_size="40KB")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 5}))
    assert only(folder).problem is None
    return folder


def cut(path: Path, share: float = 0.6) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def first(folder: Path, kind: str) -> Path:
    return sorted(folder.glob(kind))[0]


DAMAGES = {
    "a shard removed": (lambda f: first(f, "*.safetensors").unlink(), "shard model-00001-of-.* is missing"),
    "a shard cut off": (lambda f: cut(first(f, "*.safetensors")), "bytes, its header says"),
    "a shard cut off in its header": (
        lambda f: cut(first(f, "*.safetensors"), 0.001),
        "cut off or has a corrupt header",
    ),
    "an empty shard": (lambda f: first(f, "*.safetensors").write_bytes(b""), "is empty"),
    "the index removed": (lambda f: (f / "model.safetensors.index.json").unlink(), "index of its . shards is missing"),
    "the index cut off": (lambda f: cut(f / "model.safetensors.index.json"), "index of its shards cannot be read"),
    "the trainer state cut off": (lambda f: cut(f / "trainer_state.json"), "trainer_state.json cannot be read"),
    "nothing in it yet": (lambda f: [path.unlink() for path in f.iterdir()], "holds no weights"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_half_written_transformers_folder_is_told_and_may_mend(sharded, damage):
    harm, reason = DAMAGES[damage]
    whole = only(sharded)
    harm(sharded)
    found = only(sharded)
    assert found.may_mend
    assert found.step == 5
    assert re.search(reason, found.problem), found.problem
    assert why_incomplete(whole) == (found.problem, True)


def test_a_corrupt_header_is_told(sharded):
    shard = first(sharded, "*.safetensors")
    data = bytearray(shard.read_bytes())
    data[8:40] = b"\x00" * 32
    shard.write_bytes(data)
    assert "corrupt header" in only(sharded).problem


def test_a_header_whose_shapes_and_bytes_disagree_is_told(sharded):
    shard = first(sharded, "*.safetensors")
    data = shard.read_bytes()
    assert b'"dtype":"F32"' in data
    shard.write_bytes(data.replace(b'"dtype":"F32"', b'"dtype":"F64"', 1))
    assert "corrupt header" in only(sharded).problem


def test_the_trainers_state_is_written_last_so_its_absence_tells(sharded):
    (sharded / "trainer_state.json").unlink()
    assert only(sharded).problem is None  # saved by something else than a trainer
    torch.save({}, sharded / "optimizer.pt")
    assert "written last" in only(sharded).problem
    assert only(sharded).may_mend


def test_folders_being_made_are_not_looked_into(tmp_path):
    for name in ("tmp-checkpoint-10", "checkpoint-15.tmp", ".checkpoint-20"):
        save_folder(tmp_path / name, seed=1)
    save_folder(tmp_path / "checkpoint-5", seed=2)
    assert [c.step for c in find_checkpoints([tmp_path], axis="steps")] == [5]


@pytest.mark.parametrize("name", ["pytorch_model.bin", "epoch=0-step=5.ckpt", "step5.pt"])
def test_torch_files_that_were_cut_off_are_told(tmp_path, name):
    folder = save_folder(tmp_path / "checkpoint-5")
    (folder / "model.safetensors").unlink()
    path = (folder if name == "pytorch_model.bin" else tmp_path) / name
    torch.save({"state_dict": make_llama().state_dict(), "global_step": 5}, path)
    place = folder if name == "pytorch_model.bin" else path
    assert only(place).problem is None
    whole = path.read_bytes()
    for share in (0, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:share])
        found = only(place)
        assert found.problem is not None, share
        assert found.may_mend
        with pytest.raises(CheckpointError):
            read_state(found)


def test_a_file_of_the_format_before_zip_cannot_be_told_but_never_loads_in_part(tmp_path):
    path = tmp_path / "step5.pt"
    torch.save(make_llama().state_dict(), path, _use_new_zipfile_serialization=False)
    assert why_cut_off(path) is None
    assert len(read_tensors(path)) == 21
    cut(path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_tensors(path)


def test_a_file_that_still_grows_may_mend(tmp_path):
    path = tmp_path / "step5.pt"
    torch.save(make_llama().state_dict(), path, _use_new_zipfile_serialization=False)
    found = only(path)
    assert found.problem is None
    writer = "import sys, time\nwith open(sys.argv[1], 'ab', 0) as f:\n while True: f.write(b'0'); time.sleep(0.01)"
    process = subprocess.Popen([sys.executable, "-c", writer, str(path)])
    try:
        size = path.stat().st_size
        while path.stat().st_size == size:
            pass
        assert why_incomplete(found) == ("step5.pt is being written", True)
        assert (only(path).problem, only(path).may_mend) == ("step5.pt is being written", True)
    finally:
        process.kill()
        process.wait()


def test_a_deleted_checkpoint_has_vanished_wherever_it_is_noticed(sharded, tmp_path):
    folder, file = only(sharded), only(save_ckpt(tmp_path / "other" / "epoch=0-step=3.ckpt", step=3))
    shutil.rmtree(sharded)
    Path(file.path).unlink()
    for found in (folder, file):
        reason, may_mend = why_incomplete(found)
        assert reason.startswith(VANISHED)
        assert not may_mend
        with pytest.raises(CheckpointError, match="vanished") as caught:
            read_state(found)
        assert caught.value.vanished


def test_a_shard_that_vanishes_while_others_are_read_is_vanished(sharded):
    whole = only(sharded)
    first(sharded, "model-00003*").unlink()
    with pytest.raises(CheckpointError) as caught:
        read_state(whole)
    assert caught.value.vanished


def test_a_checkpoint_that_is_rotated_away_during_the_listing_is_listed_as_vanished(tmp_path, monkeypatch):
    for step in (5, 10):
        save_folder(tmp_path / f"checkpoint-{step}", seed=step, step=step)
    look = find.why_not_whole

    def rotate(checkpoint):
        shutil.rmtree(tmp_path / "checkpoint-5", ignore_errors=True)
        return look(checkpoint)

    monkeypatch.setattr(find, "why_not_whole", rotate)
    gone, kept = find_checkpoints([tmp_path], tokens_per_step=7)
    assert (gone.step, gone.may_mend) == (5, False)
    assert gone.problem.startswith(VANISHED)
    assert (kept.step, kept.problem) == (10, None)


def test_an_adapter_without_its_config_is_half_written(tmp_path):
    folder = tmp_path / "checkpoint-5"
    folder.mkdir()
    save_file({"base_model.model.x.lora_A.weight": torch.ones(2, 2)}, folder / "adapter_model.safetensors")
    found = only(folder)
    assert (found.kind, found.problem, found.may_mend) == (
        "peft",
        "its adapter_config.json is missing (it is written last)",
        True,
    )
    (folder / "adapter_config.json").write_text("{}")
    assert why_incomplete(replace(found, problem=None)) is None
