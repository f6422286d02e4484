"""Scans by several real processes: each checkpoint's questions shared, or the checkpoints; one of them killed."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from parts import make_task, make_tokenizer
from scan_parts import Told, make_scan, same, save

sys.path.append(str(Path(__file__).parents[1] / "scoring"))

from ranks import run_ranks

from olmes_monitor import Suite, load_run, load_suite
from olmes_monitor.checkpoints import split
from olmes_monitor.checkpoints.job import Job, find_job
from olmes_monitor.errors import SetupError
from olmes_monitor.scoring.parallel import Ranks

STEPS = (1, 2, 3, 4, 5, 6)


def tiny() -> Suite:
    return Suite("tiny", [make_task("boxes", 7), make_task("balls", 4, seed=1, normalization="pmi")])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("saved")
    tokenizer = make_tokenizer(tiny())
    for step in STEPS:
        save(place, step, tokenizer)
    return place


@pytest.fixture(scope="module")
def alone(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone")
    make_scan(folder, tiny(), out).once()
    return load_run(out)


def equal_runs(one, other, tolerance) -> None:
    assert [e.point.tokens for e in one.evaluations] == [e.point.tokens for e in other.evaluations]
    for i in range(len(one.evaluations)):
        same(one.scores(i), other.scores(i), tolerance)


def share_questions(rank, folder, out, fails_on):
    from olmes_monitor.checkpoints import load

    read = load.read_state

    def broken(checkpoint, **settings):
        if rank == 1 and checkpoint.name == fails_on:
            raise OSError("this machine's disk is gone")
        return read(checkpoint, **settings)

    scan = make_scan(folder, tiny(), out, Ranks.current(torch.device("cpu")))
    load.read_state = broken
    try:
        scan.once()
    finally:
        load.read_state = read  # the processes are kept for other tests
    return [(o.checkpoint.name, o.state, o.why) for o in scan.outcomes.values()], scan.skeleton.opened


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_share_each_checkpoints_questions_get_the_numbers_of_one_process(folder, alone, tmp_path, size):
    results = run_ranks(share_questions, size, folder, tmp_path, None)
    assert all(found == results[0] for found in results)
    assert [state for _, state, _ in results[0][0]] == ["scored"] * 6
    assert results[0][1] == 1
    run = load_run(tmp_path)
    equal_runs(run, alone, 1e-5)
    assert {e.cost["ranks"] for e in run.evaluations} == {size}
    assert len(run.superseded) == 0  # one rank writes


def test_what_one_rank_cannot_read_is_failed_on_all_and_the_next_goes_on(folder, alone, tmp_path):
    results = run_ranks(share_questions, 2, folder, tmp_path, "checkpoint-3")
    assert results[0] == results[1]
    states = {name: (state, why) for name, state, why in results[0][0]}
    assert states.pop("checkpoint-3") == (
        "failed",
        "rank 1 of 2 failed in loading checkpoint-3: OSError: this machine's disk is gone",
    )
    assert {state for state, _ in states.values()} == {"scored"}


class Killed(Told):
    """Ends its own process without a word at the checkpoint of a number."""

    def __init__(self, number):
        super().__init__()
        self.left = number

    def begin(self, checkpoint, left):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def share_checkpoints(rank, size, folder, out, dies, results):
    torch.set_num_threads(1)
    scan = make_scan(folder, tiny(), out)
    if rank == dies:
        scan.watcher = Killed(2)
    leases = split.Leases(lambda: split.open_store(out / "olmes", "test"), lease=1.5, beat=0.1)
    split.share_checkpoints(scan, leases, size)
    results.put((rank, [(o.checkpoint.name, o.state) for o in scan.outcomes.values()]))


@pytest.mark.slow
@pytest.mark.parametrize(("size", "dies"), [(2, None), (3, 1), (3, 0)], ids=["2", "3, one killed", "3, first killed"])
def test_workers_share_the_checkpoints_and_a_killed_ones_is_taken_again(folder, alone, tmp_path, size, dies):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    workers = [
        context.Process(target=share_checkpoints, args=(rank, size, folder, tmp_path, dies, results))
        for rank in range(size)
    ]
    for worker in workers:
        worker.start()
    told = dict(results.get(timeout=100) for _ in range(size - (dies is not None)))
    for worker in workers:
        worker.join(timeout=20)
    if dies is not None:
        assert workers[dies].exitcode == -signal.SIGKILL
    run = load_run(tmp_path)
    equal_runs(run, alone, 0.0)
    assert run.superseded == []
    for states in told.values():
        assert sorted(name for name, _ in states) == [f"checkpoint-{step}" for step in STEPS]
        assert {state for _, state in states} <= {"scored", "known"}
    scored = [name for states in told.values() for name, state in states if state == "scored"]
    assert len(scored) == len(set(scored)) == 6 - (dies is not None)


def test_what_no_worker_can_do_is_told_to_all_and_not_tried_by_each(folder, tmp_path):
    import json
    import shutil
    import threading

    place = tmp_path / "run"
    shutil.copytree(folder, place)
    config = place / "checkpoint-3" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_hidden_layers": 3}))
    scans = [make_scan(place, tiny(), tmp_path) for _ in range(2)]
    for scan in scans:
        lease = split.Leases(lambda: split.open_store(tmp_path / "olmes", "test"), lease=5, beat=0.05)
        thread = threading.Thread(target=split.share_checkpoints, args=(scan, lease, 2))
        thread.start()
        thread.join()
    tried = [[name for name, state in scan.watcher.states if state == "failed"] for scan in scans]
    assert tried == [["checkpoint-3"], []]
    assert [o.state for scan in scans for o in scan.outcomes.values() if o.checkpoint.name == "checkpoint-3"] == [
        "failed",
        "failed",
    ]


def test_a_lease_ends_with_its_workers_signs_of_life_and_not_before(tmp_path):
    mine, other = (split.Leases(lambda: split.open_store(tmp_path, "job"), lease=0.6, beat=0.1) for _ in range(2))
    assert mine.claim("a")
    assert mine.claim("a")
    for _ in range(10):
        assert not other.claim("a")
        time.sleep(0.1)
    assert other.claim("b")
    mine.end()
    other.claim("a")
    time.sleep(0.9)
    assert other.claim("a")
    assert not mine.claim("a")


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        ({}, Job()),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, Job(3, 8, 1)),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1"}, Job(5, 8, 1)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, Job()),  # a batch script's own shell: srun was not used
    ],
)
def test_a_process_knows_its_job(environment, job):
    assert find_job(environment) == job


def test_sruns_processes_on_several_machines_need_a_place_to_meet():
    several = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "2"}
    with pytest.raises(SetupError, match="export MASTER_ADDR="):
        find_job(several)
    assert find_job({**several, "MASTER_ADDR": "node1"}).size == 8


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["questions", "checkpoints"])
def test_torchrun_prints_one_table_and_scores_each_once(tmp_path, kind):
    quick = load_suite("quick", "csqa", 6)
    for step in (1, 2, 3, 4):
        save(tmp_path / "run", step, make_tokenizer(quick), max_position_embeddings=2048)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    asked = ["--suite", "quick", "--tasks", "csqa", "--limit", "6", "--device", "cpu", "--split", kind]
    command = [*torchrun, "-m", "olmes_monitor", "scan", str(tmp_path / "run"), *asked]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("record: ") == 1
    run = load_run(tmp_path / "run")
    assert [e.point.step for e in run.evaluations] == [1, 2, 3, 4]
    assert run.superseded == []
    assert {e.cost["ranks"] for e in run.evaluations} == {2 if kind == "questions" else 1}
