"""Attention in pieces: the same numbers as over the whole row, from fewer pairs, and the library's table as it was."""

import numpy as np
import pytest
import torch
from parts import make_llama, make_task
from test_pack import random_requests
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from olmes_monitor import Suite
from olmes_monitor.scoring import pieces
from olmes_monitor.scoring.encode import Encoded
from olmes_monitor.scoring.pack import pack
from olmes_monitor.scoring.path import CHECK_TOKENS
from olmes_monitor.scoring.pieces import cut, in_pieces
from olmes_monitor.scoring.score import Scorer


def visible(row):
    """bool (nodes, nodes): what each node of a row sees of the row, by the definition."""
    return np.array([[j <= i < row.end[j] for j in range(len(row.end))] for i in range(len(row.end))])


def branches(count=8, shots=100, own=55, budget=512):
    """Rows of questions behind shots that they share, and share nothing else."""
    shared = np.zeros(shots, dtype=np.int32)
    asked = [np.concatenate([shared, np.full(own, 1 + i, dtype=np.int32)]) for i in range(count)]
    return pack([Encoded(ids, len(ids) - 1) for ids in asked], budget)


def dense_mask(row):
    trunk = torch.ones(len(row.end), row.trunk_length, dtype=torch.bool)
    return torch.cat([trunk, torch.from_numpy(visible(row))], dim=1)[None, None]


class Layer(torch.nn.Module):
    """What the library's attention functions ask of the module that calls them."""

    num_key_value_groups = 2
    is_causal = True


def states(row, dtype=torch.float64):
    torch.manual_seed(0)
    nodes, keys = len(row.end), row.trunk_length + len(row.end)
    return [torch.randn(1, heads, length, 8, dtype=dtype) for heads, length in ((4, nodes), (2, keys), (2, keys))]


@pytest.fixture
def calls(monkeypatch):
    """Shapes (queries, keys) of every attention that the library really computes."""
    made, whole = [], ALL_ATTENTION_FUNCTIONS["sdpa"]

    def counted(module, query, key, *args, **kwargs):
        made.append((query.shape[2], key.shape[2]))
        return whole(module, query, key, *args, **kwargs)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", counted)
    return made


@pytest.mark.parametrize("seed", range(40))
def test_pieces_cover_the_row_and_have_the_keys_that_their_nodes_see_and_no_others(seed):
    draw = np.random.default_rng(seed)
    for row in pack(random_requests(draw), int(draw.integers(20, 600))):
        found, sees = cut(row), visible(row)
        assert [piece.first for piece in found] == [0, *(piece.last for piece in found[:-1])]
        assert found[-1].last == len(row.end)
        for piece in found:
            seen = np.flatnonzero(sees[piece.first : piece.last].any(axis=0))
            assert piece.keys.tolist() == seen.tolist()


@pytest.mark.parametrize("seed", range(10))
def test_the_result_is_that_of_the_whole_row(seed):
    draw = np.random.default_rng(seed)
    rows = [*pack(random_requests(draw), 400), *branches()]
    assert any(len(cut(row)) > 1 for row in rows)
    for row in rows:
        mask, given = dense_mask(row), states(row)
        truth, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](Layer(), *given, mask)
        with in_pieces(row, mask):
            found, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](Layer(), *given, mask)
        assert found.shape == truth.shape
        torch.testing.assert_close(found, truth, rtol=0, atol=1e-13)


def test_questions_that_share_only_the_shots_cost_three_fifths_of_the_pairs(calls):
    row = branches()[-1]
    with in_pieces(row, mask := dense_mask(row)):
        ALL_ATTENTION_FUNCTIONS["sdpa"](Layer(), *states(row), mask)
    nodes = len(row.end)
    assert len(calls) > 1
    assert sum(queries for queries, _ in calls) == nodes
    assert sum(queries * keys for queries, keys in calls) < 0.6 * nodes * (row.trunk_length + nodes)


@pytest.mark.parametrize("shots", [100, 300, 1000, 1500])
def test_the_checks_short_rows_are_cut_whatever_trunk_they_stand_on(shots):
    """Else an evaluation would attend in pieces that the check at first use has not tried."""
    rows = [row for row in branches(shots=shots, budget=CHECK_TOKENS) if not row.is_trunk]
    assert {row.trunk_length for row in rows} == {shots}
    assert all(len(cut(row)) > 1 for row in rows)


def test_another_mask_and_tensors_of_the_attentions_own_are_left_whole(calls):
    row = branches()[-1]
    nodes, mask, given = len(row.end), dense_mask(row), states(row)
    bias = torch.zeros(1, 4, nodes, row.trunk_length + nodes, dtype=torch.float64)
    with in_pieces(row, mask):
        attend = ALL_ATTENTION_FUNCTIONS["sdpa"]
        attend(Layer(), *given, mask.clone())
        attend(Layer(), *given, None, is_causal=False)
        attend(Layer(), *given, mask, anything=bias)
        assert calls == [(nodes, nodes + row.trunk_length)] * 3
        attend(Layer(), *given, mask, position_ids=torch.arange(nodes)[None])
    assert len(calls) > 4


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_the_librarys_table_is_put_back(own, fails):
    row = branches()[-1]
    library = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def users(*args, **kwargs):
        return library(*args, **kwargs)

    if own:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = users
    try:
        before = dict(ALL_ATTENTION_FUNCTIONS._local_mapping)
        try:
            with in_pieces(row, dense_mask(row)):
                assert ALL_ATTENTION_FUNCTIONS["sdpa"] not in (library, users)
                if fails:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            assert fails
        assert before == ALL_ATTENTION_FUNCTIONS._local_mapping
    finally:
        if own:
            del ALL_ATTENTION_FUNCTIONS["sdpa"]
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is library


def test_the_check_at_first_use_tries_pieces(tokenizer, monkeypatch):
    """Its rows are short; where pieces went wrong with a model, the plain path must be taken."""
    suite = Suite("long", [make_task("boxes", 10)])
    assert Scorer(make_llama(), tokenizer, suite).path.name == "packed"

    def wrong(row):
        return [pieces.Piece(p.first, p.last, np.arange(p.last)[-1:]) for p in cut(row)]

    monkeypatch.setattr(pieces, "cut", wrong)
    found = Scorer(make_llama(), tokenizer, suite).path
    assert found.name == "plain"
    assert "differ" in found.reason
