"""The packed plan: each distinct token once, every target read behind its own prompt and nothing else."""

import numpy as np
import pytest

from olmes_monitor.scoring.encode import Encoded
from olmes_monitor.scoring.pack import MIN_TRUNK, pack, trie_nodes


def random_requests(draw):
    """Questions with a few choices behind shared shots, over so few token ids that prefixes coincide."""
    shots, requests = draw.integers(0, 3, size=draw.integers(0, 200)), []
    for _ in range(draw.integers(1, 12)):
        stem = draw.integers(0, 4, size=draw.integers(1, 60))
        for _ in range(draw.integers(1, 5)):
            answer = draw.integers(0, 4, size=draw.integers(1, 9))
            ids = np.concatenate([shots, stem, answer]).astype(np.int32)
            # Now and then a continuation that begins far up, in the trunk or before it.
            early = draw.integers(0, 80) if draw.random() < 0.1 else 0
            requests.append(Encoded(ids, max(1, len(ids) - len(answer) - early)))
    return requests


def brute_force_nodes(requests):
    inputs = {tuple(request.ids[:-1].tolist()) for request in requests}
    return len({ids[:n] for ids in inputs for n in range(1, len(ids) + 1)})


def visible(rows, row, node):
    """The tokens a node sees, trunk first: what the mask, the trunk and the positions together amount to."""
    before = []
    if row.trunk >= 0:
        trunk = rows[row.trunk]
        assert trunk.is_trunk
        assert trunk.trunk_length + trunk.tokens == row.trunk_length
        before = visible(rows, trunk, trunk.tokens - 1)
    own = [j for j in range(node + 1) if row.end[j] > node]
    assert row.position[own].tolist() == list(range(row.trunk_length, row.trunk_length + len(own)))
    return before + row.ids[0, own].tolist()


@pytest.mark.parametrize("seed", range(100))
def test_each_target_is_read_once_behind_exactly_its_own_prompt(seed):
    draw = np.random.default_rng(seed)
    requests, budget = random_requests(draw), int(draw.integers(5, 400))
    rows = pack(requests, budget)
    assert trie_nodes(requests) == brute_force_nodes(requests)
    assert sum(row.tokens for row in rows) >= trie_nodes(requests)
    found = [{} for _ in requests]
    for i, row in enumerate(rows):
        assert row.trunk < i
        reads = row.reads
        for read, target, request in zip(reads.read, reads.target, reads.request, strict=True):
            seen = visible(rows, row, reads.position[read])
            assert seen == requests[request].ids[: len(seen)].tolist()
            assert len(seen) not in found[request]
            found[request][len(seen)] = int(target)
    for request, targets in zip(requests, found, strict=True):
        assert targets == {i: int(request.ids[i]) for i in range(request.start, len(request.ids))}


def questions(count, shots, stem, seed=0):
    draw = np.random.default_rng(seed)
    prefix = draw.integers(0, 1000, size=shots)
    requests = []
    for _ in range(count):
        body = draw.integers(0, 1000, size=stem)
        for _ in range(4):
            ids = np.concatenate([prefix, body, draw.integers(0, 1000, size=5)]).astype(np.int32)
            requests.append(Encoded(ids, len(ids) - 5))
    return requests


def test_the_shots_are_forwarded_once_and_the_rest_fits_the_budget():
    requests = questions(200, shots=500, stem=40)
    rows = pack(requests, 512)
    assert [row.is_trunk for row in rows].count(True) == 1
    assert rows[0].is_trunk
    assert rows[0].tokens >= 500
    assert all(row.tokens <= 512 for row in rows if not row.is_trunk)
    assert sum(row.tokens for row in rows) <= 1.03 * trie_nodes(requests)


def test_each_subject_has_its_own_trunk():
    requests = [request for subject in range(6) for request in questions(30, 300, 30, seed=subject)]
    rows = pack(requests, 512)
    assert [row.is_trunk for row in rows].count(True) == 6
    assert sum(row.tokens for row in rows) <= 1.03 * trie_nodes(requests)


def test_a_short_shared_prefix_is_repeated_and_makes_no_trunk():
    rows = pack(questions(50, MIN_TRUNK - 1, 40), 256)
    assert not any(row.is_trunk for row in rows)


def test_what_fits_one_row_is_one_row():
    requests = questions(3, 100, 20)
    (row,) = pack(requests, 2048)
    assert row.tokens == trie_nodes(requests)


def test_rows_are_cut_between_questions_where_that_is_cheap():
    """Cut inside a question, its stem of 100 tokens would stand in two rows."""
    requests = questions(40, 0, 100)
    rows = pack(requests, 500)
    assert sum(row.tokens for row in rows) == trie_nodes(requests)


def test_labels_are_read_at_one_place():
    ids = np.arange(100, dtype=np.int32)
    requests = [Encoded(np.append(ids, 200 + label).astype(np.int32), 100) for label in range(4)]
    (row,) = pack(requests, 512)
    assert row.tokens == 100
    assert row.reads.position.tolist() == [99]
    assert sorted(row.reads.target.tolist()) == [200, 201, 202, 203]


def test_the_plan_does_not_depend_on_the_order_of_the_requests():
    requests = questions(30, 200, 30)
    order = np.random.default_rng(5).permutation(len(requests))
    first, second = pack(requests, 300), pack([requests[i] for i in order], 300)
    assert [row.ids.tolist() for row in first] == [row.ids.tolist() for row in second]


def test_no_requests_no_rows():
    assert pack([], 256) == []
    assert trie_nodes([]) == 0
