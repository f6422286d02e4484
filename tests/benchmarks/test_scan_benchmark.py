"""The scan's benchmark in small: nothing is planned or encoded twice, and it costs little beside bare evaluations."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from scan import measure


def test_after_the_first_checkpoint_nothing_is_planned_or_encoded_and_each_forward_is_a_bare_ones():
    found = measure(checkpoints=4, questions=6, repeats=1)
    assert (found.opened, found.plans, found.encodings) == (1, 0, 0)
    assert found.forwards == found.bare_forwards


@pytest.mark.slow
def test_twenty_checkpoints_cost_at_most_a_fifth_more_than_bare_evaluations():
    """In processor seconds, and in wall seconds beside its own evaluations: other processes disturb a comparison in turn."""
    found = measure(20, questions=40, repeats=2, hidden_size=128, intermediate_size=256, num_hidden_layers=4)
    assert found.processor <= 1.2
    assert found.around <= 1.2
