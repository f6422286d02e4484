"""Token ids from disk: the fresh ones in every bit, for the same task and tokenizer only, and never a reason to fail."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace

import numpy as np
import pytest
import tokenizers_by_kind as kinds
from parts import make_task

from olmes_monitor import Suite
from olmes_monitor.errors import SetupError
from olmes_monitor.scoring import cache
from olmes_monitor.scoring.cache import CachedEncoder
from olmes_monitor.scoring.encode import Encoder
from olmes_monitor.scoring.jobs import assign, make_jobs
from olmes_monitor.suite import FORMULATIONS, Question, Task
from olmes_monitor.suite.cache import ENVIRONMENT

TASK = make_task("boxes", 12, normalization="pmi")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A cache root of the test's own, in which even a small task is worth a file."""
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "root"))
    monkeypatch.setattr(cache, "WORTH", 1)
    return tmp_path / "root" / "encoded"


def assert_same(found, fresh):
    for field in fields(fresh):
        if field.name == "key":  # what it is kept under, which an Encoder without a cache does not tell
            continue
        mine, right = getattr(found, field.name), getattr(fresh, field.name)
        if field.name not in ("requests", "unconditional"):
            assert mine == right, field.name
            continue
        for a, b in zip(mine, right, strict=True):
            assert (a.ids.dtype, a.ids.tolist(), a.start) == (b.ids.dtype, b.ids.tolist(), b.start)
            assert (type(a), type(a.start)) == (type(b), type(b.start))


def test_the_second_time_no_text_reaches_the_tokenizer(tokenizer, folder):
    suite = Suite("two", [TASK, make_task("balls", 9, seed=1)])
    first = make_jobs(suite, FORMULATIONS, CachedEncoder(tokenizer), "cyclic")
    encoder = CachedEncoder(tokenizer)
    second = make_jobs(suite, FORMULATIONS, encoder, "cyclic")
    assert encoder.characters == 0
    for a, b in zip(first, second, strict=True):
        assert_same(b.encoded, a.encoded)
        for order, right in zip(b.orders, a.orders, strict=True):
            assert_same(order.encoded, right.encoded)
    assert len(list(folder.iterdir())) == 4 + sum(len(job.orders) for job in first)


@pytest.mark.parametrize("settings", [{}, {"max_length": 120}, {"max_length": 40}, {"bos": True}])
def test_read_equals_fresh_also_where_prompts_were_cut(settings):
    tokenizer = kinds.fast(kinds.byte_level(), bos_token="<s>")
    for formulation in FORMULATIONS:
        fresh = Encoder(tokenizer, **settings).encode_task(TASK, formulation)
        written, read = (CachedEncoder(tokenizer, **settings).encode_task(TASK, formulation) for _ in range(2))
        assert_same(written, fresh)
        assert_same(read, fresh)


def test_whatever_changes_the_ids_changes_the_key():
    plain = kinds.byte_level()
    other = kinds.byte_level()
    other.add_tokens(["Box"])
    named = kinds.fast(kinds.byte_level(), bos_token="<s>")
    encoders = [
        CachedEncoder(plain),
        CachedEncoder(other),
        CachedEncoder(named, bos=True),
        CachedEncoder(plain, False, 99),
    ]
    question = TASK.questions[0]
    tasks = [
        TASK,
        replace(TASK, questions=TASK.questions[:-1]),
        replace(TASK, questions=TASK.questions[::-1]),
        replace(TASK, questions=[replace(question, choices=question.choices[::-1]), *TASK.questions[1:]]),
        replace(TASK, shots=TASK.shots[1:]),
        replace(TASK, normalization="char"),
    ]
    keys = [cache.cache_key(encoders[0], task, form) for task in tasks for form in FORMULATIONS]
    keys += [cache.cache_key(encoder, TASK, "cf") for encoder in encoders[1:]]
    assert len(set(keys)) == len(keys)
    assert None not in keys


def test_settings_that_change_no_ids_do_not_change_the_key():
    """Truncation and padding are the data loader's; an equal tokenizer loaded again is the same one."""
    cut = kinds.fast(kinds.byte_level())
    cut.backend_tokenizer.enable_truncation(8)
    cut.backend_tokenizer.enable_padding(length=16)
    keys = {cache.cache_key(CachedEncoder(each), TASK, "cf") for each in (cut, kinds.fast(kinds.byte_level()))}
    assert len(keys) == 1


def test_what_cannot_be_identified_is_not_cached(folder):
    class Own(Task):
        pass

    own = Own("own", TASK.questions, TASK.shots)
    for tokenizer, task in ((kinds.Plain(), TASK), (kinds.byte_level(), own)):
        CachedEncoder(tokenizer).encode_task(task, "cf")
    dropping = kinds.byte_level()
    dropping.model.dropout = 0.5  # no two encodings agree
    assert cache.cache_key(CachedEncoder(dropping), TASK, "cf") is None
    assert not folder.exists()


def test_a_task_encoded_in_no_time_is_not_worth_a_file(folder, monkeypatch):
    monkeypatch.setattr(cache, "WORTH", 20_000)
    CachedEncoder(kinds.byte_level()).encode_task(TASK, "cf")
    assert not folder.exists()


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_file_is_encoded_afresh_and_mended(folder, seed):
    encoder = CachedEncoder(kinds.byte_level())
    fresh = encoder.encode_task(TASK, "cf")
    (path,) = folder.iterdir()
    whole, draw = path.read_bytes(), np.random.default_rng(seed)
    if seed % 2:
        path.write_bytes(whole[: draw.integers(len(whole))])
    else:
        damaged = bytearray(whole)
        for place in draw.integers(len(whole), size=40):
            damaged[place] ^= 0xFF
        path.write_bytes(damaged)
    assert_same(encoder.encode_task(TASK, "cf"), fresh)
    assert_same(cache.read(path, cache.unpack) or CachedEncoder(kinds.byte_level()).encode_task(TASK, "cf"), fresh)


def test_arrays_that_do_not_fit_together_are_refused(folder):
    encoder = CachedEncoder(kinds.byte_level())
    encoder.encode_task(TASK, "cf")
    (path,) = folder.iterdir()
    arrays = cache.pack_task(Encoder(kinds.byte_level()).encode_task(TASK, "cf"))
    for name, change in {"fresh": 0, "shared": 10**6, "start": 0, "length": 0}.items():
        wrong = arrays[name][:-1] if name == "fresh" else np.full_like(arrays[name], change)
        with path.open("wb") as file:
            np.savez(file, **{**arrays, name: wrong})
        assert cache.read(path, cache.unpack) is None, name


def test_a_folder_that_cannot_be_made_is_no_error(folder):
    folder.parent.mkdir()
    folder.write_text("in the way")
    encoded = CachedEncoder(kinds.byte_level()).encode_task(TASK, "cf")
    assert_same(encoded, Encoder(kinds.byte_level()).encode_task(TASK, "cf"))


def test_a_full_disk_is_no_error_and_leaves_nothing(folder, monkeypatch):
    def savez(file, **arrays):
        file.write(b"half")
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(np, "savez", savez)
    CachedEncoder(kinds.byte_level()).encode_task(TASK, "cf")
    assert list(folder.iterdir()) == []


def test_only_the_newest_files_stay(folder, monkeypatch):
    monkeypatch.setattr(cache, "KEPT", 3)
    encoder = CachedEncoder(kinds.byte_level())
    for i in range(6):
        encoder.encode_task(make_task(f"task{i}", 5), "cf")
    assert {path.name.split("-")[0] for path in folder.iterdir()} == {"task3", "task4", "task5"}


def test_many_may_write_and_read_at_once(folder):
    fresh = Encoder(kinds.byte_level()).encode_task(TASK, "cf")
    path = folder / "boxes-cf-0.npz"

    def once(_):
        cache.save(path, cache.pack_task(fresh))
        found = cache.read(path, cache.unpack)
        assert found is not None
        assert_same(found, fresh)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(once, range(64)))
    assert list(folder.iterdir()) == [path]


def test_an_answer_that_is_refused_is_refused_again():
    task = Task("t", [Question("q7", "x", ("y" * 50, "n"), 0)])
    for _ in range(2):
        with pytest.raises(SetupError, match="the answer alone has"):
            CachedEncoder(kinds.byte_level(), max_length=4).encode_task(task, "cf")


def test_a_plan_is_made_once_and_read_in_every_bit(tokenizer, folder, monkeypatch):
    suite = Suite("two", [TASK, make_task("balls", 9, seed=1)])

    def planned():
        jobs = make_jobs(suite, FORMULATIONS, CachedEncoder(tokenizer))
        for rank in (0, 1):
            assign(jobs, rank, 2)
            for job in jobs:
                for budget in (80, 300):
                    job.plan(True, budget, 2048)
                    yield from job.calls

    first = list(planned())
    assert any(row.is_trunk for row in first)
    assert any(row.trunk >= 0 for row in first)
    # A rank without requests of a job has nothing worth a file.
    monkeypatch.setattr(
        "olmes_monitor.scoring.jobs.pack", lambda requests, *_: pytest.fail("again") if requests else []
    )
    second = list(planned())
    for a, b in zip(second, first, strict=True):
        assert (a.trunk, a.trunk_length, a.is_trunk, a.tokens) == (b.trunk, b.trunk_length, b.is_trunk, b.tokens)
        mine = [a.ids, a.position, a.end, *(getattr(a.reads, field.name) for field in fields(a.reads))]
        right = [b.ids, b.position, b.end, *(getattr(b.reads, field.name) for field in fields(b.reads))]
        for found, truth in zip(mine, right, strict=True):
            assert found.dtype == truth.dtype
            np.testing.assert_array_equal(found, truth)


def test_a_plan_from_disk_needs_no_single_request(tokenizer, folder, monkeypatch):
    suite = Suite("two", [TASK, make_task("balls", 9, seed=1)])
    for _ in range(2):
        jobs = make_jobs(suite, FORMULATIONS, CachedEncoder(tokenizer))
        assign(jobs, 0, 1)
        for job in jobs:
            job.plan(True, 100, 2048)
        monkeypatch.setattr(cache._Stored, "requests", property(lambda self: pytest.fail("a request was made")))


def test_other_cyclic_orders_are_planned_afresh_for_the_key_does_not_know_them(tokenizer, folder):
    suite = Suite("one", [TASK])
    for permutations in ("none", "cyclic"):
        (job,) = make_jobs(suite, ("mcf",), CachedEncoder(tokenizer), permutations)
        assign([job], 0, 1)
        job.plan(True, 100, 2048)
        read = sum(len(call.reads.request) for call in job.calls)
        assert read == len(job.requests)  # one token a label


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_plan_is_made_afresh(tokenizer, folder, seed):
    (job,) = make_jobs(Suite("one", [TASK]), ("cf",), CachedEncoder(tokenizer))
    assign([job], 0, 1)
    job.plan(True, 100, 2048)
    truth = [row.ids.tolist() for row in job.calls]
    (path,) = folder.glob("plan-*")
    data = bytearray(path.read_bytes())
    generator = np.random.default_rng(seed)
    cut = int(generator.integers(len(data)))
    path.write_bytes(bytes(data[:cut]) if seed % 2 else bytes(data[:cut]) + b"x" * 40 + bytes(data[cut + 40 :]))
    job.plan(True, 100, 2048)
    assert [row.ids.tolist() for row in job.calls] == truth
