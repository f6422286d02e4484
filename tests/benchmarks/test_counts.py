"""Nearly every distinct token is forwarded once, on every task and with real tokenizers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from counts import COLUMNS, count_suite, lines, total

sys.path.append(str(Path(__file__).parents[1] / "scoring"))

import tokenizers_by_kind as kinds

from olmes_monitor import load_suite

BUDGET = 2048


def check(counts):
    print("\n".join(lines(counts)))
    for task in dict.fromkeys(each.task for each in counts):
        assert total((each for each in counts if each.task == task), task).ratio <= 1.10, task
    whole = total(counts)
    assert whole.trie <= whole.forwarded <= 1.03 * whole.trie
    # The LM head runs at fewer places than there are answer tokens: labels of a question share one.
    assert whole.heads < whole.forwarded
    return whole


def test_the_quick_suite_with_gpt_neox():
    counts = list(count_suite(kinds.neox(), kinds.quick(), BUDGET))
    assert len(counts) == 20
    whole = check(counts)
    assert whole.requests == 8100
    # Of 24 tokens in the prompts as they stand, one is forwarded (fewer questions share the shots here).
    assert whole.naive > 12 * whole.forwarded


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["neox", "smollm2"])
def test_the_standard_suite(kind):
    whole = check(list(count_suite(getattr(kinds, kind)(), load_suite("standard"), BUDGET)))
    assert whole.naive > 23 * whole.forwarded


def test_the_table_ends_with_the_total():
    counts = list(count_suite(kinds.neox(), load_suite("quick", "csqa,piqa"), 512))
    table = [line.strip("| ").split(" | ") for line in lines(counts)]
    assert table[0] == list(COLUMNS)
    assert [row[:2] for row in table[2:6]] == [["csqa", "cf"], ["csqa", "mcf"], ["piqa", "cf"], ["piqa", "mcf"]]
    assert table[-1][0] == "total"
    assert int(table[-1][-1].replace(",", "")) == sum(each.calls for each in counts)
