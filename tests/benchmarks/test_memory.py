"""Memory above the model follows the row budget, not the number of questions; after an evaluation nothing is held."""

from __future__ import annotations

import gc

import pytest
import torch
from memory import VOCABULARY, make_model, make_scorer, measure

from olmes_monitor import Point


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(autouse=True)
def one_thread():
    """Threads that wait for a core spin; with other tests beside them that is minutes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def logits(measured):
    """Bytes of the logits of the largest forward call, float32."""
    return measured.heads * VOCABULARY * 4


def check(few, many):
    assert many.targets > 3 * few.targets
    # Each answer token leaves one float32 until the end: all that may grow with the suite.
    assert many.peak <= 1.05 * few.peak + 4 * many.targets
    for found in (few, many):
        assert found.left == 0
        # The logits, their float32 rows in one slice, and little else.
        assert logits(found) <= found.peak <= 2.2 * logits(found)


def test_four_times_the_questions_take_no_more_memory(model):
    check(measure(model, 150, 512), measure(model, 600, 512))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_16_thousand_questions_take_no_more_memory_than_one_thousand(model):
    check(measure(model, 1000, 512), measure(model, 16_000, 512))


def test_half_the_budget_takes_half_the_memory(model):
    whole, half = (measure(model, 200, budget) for budget in (512, 256))
    assert half.peak < 0.6 * whole.peak


def test_after_an_evaluation_the_same_tensors_live_as_before(model):
    scorer = make_scorer(model, 60, 256)

    def live():
        gc.collect()
        found = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
        storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in found}
        return len(found), sum(storages.values())

    before = live()
    # The evaluation is not kept: the columns of its table are a (CPU) tensor's memory.
    assert scorer.evaluate(Point(tokens=0)).cost["forwards"] > 3
    assert live() == before
