import numpy as np

from olmes_monitor.scoring.encode import Encoded
from olmes_monitor.scoring.plan import plan, share_rows


def encoded(ids, start):
    return Encoded(np.array(ids, dtype=np.int32), start)


def test_requests_whose_inputs_are_equal_or_prefixes_share_a_row():
    requests = [
        encoded([1, 2, 3, 10], 3),  # labels of one question: equal inputs
        encoded([1, 2, 3, 11], 3),
        encoded([1, 2, 3, 4, 5], 3),  # the input 1 2 3 4 has 1 2 3 as a prefix
        encoded([9, 9], 1),
        encoded([1, 2, 30, 4], 2),  # 1 2 30 shares only a prefix, not a row
        encoded([1, 2, 258, 4], 2),  # 258 = 0x0102: its bytes must not pass for the tokens 1 and 2
    ]
    row_of, rows = share_rows(requests)
    assert row_of[0] == row_of[1] == row_of[2]
    assert len(rows) == 4
    assert rows[row_of[0]].tolist() == [1, 2, 3, 4]
    for request, row in zip(requests, row_of, strict=True):
        assert rows[row][: len(request.ids) - 1].tolist() == request.ids[:-1].tolist()


def test_every_target_is_read_at_the_position_before_it():
    draw = np.random.default_rng(0)
    requests = [encoded(draw.integers(0, 5, size=n), int(draw.integers(1, n))) for n in draw.integers(2, 40, size=200)]
    found: list[list[int]] = [[] for _ in requests]
    for batch in plan(requests, 128, 64):
        assert (np.diff(batch.reads.read) >= 0).all()
        pairs = set(zip(batch.reads.row.tolist(), batch.reads.position.tolist(), strict=True))
        assert len(pairs) == len(batch.reads.row), "a position is read twice"
        for read, target, request in zip(batch.reads.read, batch.reads.target, batch.reads.request, strict=True):
            row, position = batch.reads.row[read], batch.reads.position[read]
            index = requests[request].start + len(found[request])
            assert batch.ids[row, : position + 1].tolist() == requests[request].ids[: position + 1].tolist()
            assert position == index - 1
            found[request].append(int(target))
    for request, targets in zip(requests, found, strict=True):
        assert targets == request.ids[request.start :].tolist()


def test_batches_keep_to_the_budget_longest_first_and_to_few_lengths():
    draw = np.random.default_rng(1)
    requests = [encoded(draw.integers(0, 99, size=n), 1) for n in draw.integers(2, 400, size=300)]
    batches = plan(requests, 1024, 2048)
    assert all(batch.tokens <= 1024 for batch in batches)
    lengths = [batch.ids.shape[1] for batch in batches]
    assert lengths == sorted(lengths, reverse=True)
    assert all(length % 16 == 0 for length in lengths)


def test_padding_never_goes_beyond_the_models_last_position():
    batches = plan([encoded(range(100), 1)], 4096, 99)
    assert batches[0].ids.shape == (1, 99)


def test_a_row_longer_than_the_budget_goes_alone():
    requests = [encoded(range(100), 1), encoded(range(1, 100), 1)]
    assert [batch.ids.shape[0] for batch in plan(requests, 10, 2048)] == [1, 1]


def test_the_plan_is_deterministic():
    draw = np.random.default_rng(2)
    requests = [encoded(draw.integers(0, 9, size=n), 1) for n in draw.integers(2, 50, size=100)]
    first, second = plan(requests, 256, 64), plan(requests, 256, 64)
    for a, b in zip(first, second, strict=True):
        assert np.array_equal(a.ids, b.ids)
        assert all(np.array_equal(getattr(a.reads, n), getattr(b.reads, n)) for n in ("read", "target", "request"))


def test_no_requests_no_batches():
    assert plan([], 256, 64) == []
