"""The search's benchmark in small: at most 15 of 200 checkpoints scored, and what a full scan would say."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))

from search import CHECKPOINTS, KINDS, LOOKS, trial


def check(runs):
    trials = {kind.name: [trial(kind, seed) for seed in range(runs)] for kind in KINDS}
    for name, found in trials.items():
        print(name, f"{np.mean([agrees for agrees, *_ in found]):.1%}", max(looks for _, looks, *_ in found))
    agreed = [agrees for found in trials.values() for agrees, *_ in found]
    assert max(looks for found in trials.values() for _, looks, *_ in found) <= LOOKS == 15
    assert CHECKPOINTS == 200
    assert np.mean(agreed) >= 0.95
    # No kind of run is bought with another.
    assert min(np.mean([agrees for agrees, *_ in found]) for found in trials.values()) >= 0.9
    crossed = [full.tokens is not None for name, found in trials.items() if name != "never" for *_, full in found]
    assert np.mean(crossed) > 0.9  # the simulated runs do cross


def test_a_search_says_what_a_full_scan_says():
    check(runs=8)


@pytest.mark.slow
def test_a_search_says_what_a_full_scan_says_in_many_runs():
    check(runs=40)
