"""Memory above the model follows the row budget, not the number of questions; after an evaluation nothing is held."""

from __future__ import annotations

import gc

import pytest
import torch
from memory import VOCABULARY, make_model, make_scorer, measure

from olmes_monitor import Point
from olmes_monitor.scoring import path
from olmes_monitor.scoring.head import SLICE_ELEMENTS, WHOLE_ELEMENTS


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
        # The logits of one slice, float32, and little else.
        assert logits(found) <= found.peak <= 1.2 * logits(found)


def test_four_times_the_questions_take_no_more_memory(model):
    check(measure(model, 150, 512), measure(model, 600, 512))


def test_a_call_that_reads_many_places_takes_no_more_memory_than_a_slice(model):
    """Cloze answers in a large row: the logits of the whole call would be a multiple. A larger vocabulary changes nothing."""
    double = make_model(2 * VOCABULARY)
    for large, vocabulary in ((model, VOCABULARY), (double, 2 * VOCABULARY)):
        found = measure(large, 150, 4096, "cf")
        assert found.heads * vocabulary > 3 * SLICE_ELEMENTS
        assert found.left == 0
        assert found.peak <= 1.2 * 4 * SLICE_ELEMENTS


def test_where_the_head_cannot_be_sliced_a_call_reads_few_places(model, monkeypatch):
    monkeypatch.setattr(path, "choose_head", lambda *_: "as if it could not")
    found = measure(model, 150, 4096, "cf")
    assert found.heads * VOCABULARY <= WHOLE_ELEMENTS
    assert found.peak <= 1.1 * 4 * (WHOLE_ELEMENTS + SLICE_ELEMENTS)


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
        # By type: what compilers keep of other tests' models has the shape of a tensor and no memory.
        found = [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]
        storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in found}
        return len(found), sum(storages.values())

    before = live()
    # The evaluation is not kept: the columns of its table are a (CPU) tensor's memory.
    assert scorer.evaluate(Point(tokens=0)).cost["forwards"] > 3
    assert live() == before
