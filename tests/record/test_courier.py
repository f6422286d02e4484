"""A tracker that hangs costs a few seconds, once; what it should get reaches it in order when it answers again."""

import logging
import pickle
import threading
import time

from fake_wandb import FakeRun

from olmes_monitor.record.courier import Courier
from olmes_monitor.record.loggers import log_everywhere
from olmes_monitor.record.wandb_sink import WandbSink


class Hanging(FakeRun):
    """Blocks in log() until it is let go."""

    def __init__(self):
        super().__init__()
        self.go, self.threads = threading.Event(), set()

    def log(self, row):
        self.threads.add(threading.current_thread().name)
        assert self.go.wait(20)
        super().log(row)


def rows(count):
    return [{"olmes/tokens": i * 1000, "olmes/cf/boxes": 0.5} for i in range(count)]


def test_a_run_that_hangs_costs_its_patience_once_and_loses_nothing(caplog):
    run = Hanging()
    sink = WandbSink(lambda: run, courier=Courier("W&B", patience=0.5))
    started = time.monotonic()
    with caplog.at_level(logging.WARNING, "olmes_monitor"):
        for row in rows(20):
            log_everywhere([sink], row)
        sink.alert("title", "words")
    assert 0.5 <= time.monotonic() - started < 2, "twenty rows, one wait"
    assert run.rows == []
    assert caplog.text.count("W&B has not answered for 0.5 seconds; training goes on") == 1
    run.go.set()
    assert sink._courier.drain(10)
    assert run.rows == rows(20)
    assert run.alerts == [("title", "words")]
    # Caught up, it is waited for again: the row is there when the call returns.
    log_everywhere([sink], row)
    assert len(run.rows) == 21


def test_at_the_end_the_wait_is_bounded_too(caplog):
    courier = Courier("W&B", patience=0.1)
    forever = threading.Event()
    courier.call(lambda: forever.wait(20), "a row")
    started = time.monotonic()
    with caplog.at_level(logging.WARNING, "olmes_monitor"):
        assert not courier.drain(0.3)
    assert time.monotonic() - started < 2
    assert "has not answered after 0.3 seconds more; the local record has everything" in caplog.text
    forever.set()


def test_in_ordinary_times_everything_has_happened_when_the_call_returns():
    run = FakeRun()
    sink = WandbSink(lambda: run)
    for count, row in enumerate(rows(50), start=1):
        sink(row)
        assert len(run.rows) == count


def test_an_error_is_a_warning_in_time_and_late_and_the_next_call_is_made(caplog):
    go, got = threading.Event(), []

    def refuse():
        raise ConnectionError("down")

    courier = Courier("W&B", patience=0.2)
    with caplog.at_level(logging.WARNING, "olmes_monitor"):
        courier.call(refuse, "row 1")
        courier.call(lambda: go.wait(20), "row 2")
        courier.call(refuse, "row 3")
        courier.call(lambda: got.append(4), "row 4")
        go.set()
        assert courier.drain(10)
    assert got == [4]
    for row in ("row 1", "row 3"):
        assert f"W&B refused {row} (ConnectionError: down); the local record has it" in caplog.text


def test_a_sink_can_be_pickled_before_training_as_spawning_trainers_do():
    copy = pickle.loads(pickle.dumps(WandbSink(artifact=True)))
    copy({"olmes/tokens": 0})
    assert copy._artifact


def test_callables_and_other_trackers_are_called_on_the_training_thread():
    seen = []
    log_everywhere([lambda row: seen.append(threading.current_thread())], rows(1)[0])
    assert seen == [threading.main_thread()]
