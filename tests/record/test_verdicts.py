"""The live verdicts: a function of the record, news told once."""

import pytest
from synthetic import RISE, make_evaluation, write_rise

from olmes_monitor.errors import RecordError
from olmes_monitor.measure import Crossover
from olmes_monitor.record import Point, load_run
from olmes_monitor.record.verdicts import Verdicts, verdict_row, verdict_summary

FINGERPRINT = "0123456789abcdef"
FALL = [(0.9, 0.2)] * 8


def follow(folder, levels, verdicts=None, start=0):
    """The news after each evaluation: (its tokens in B, task, old, new)."""
    verdicts, news = verdicts or Verdicts(folder, FINGERPRINT), []
    for index, level in enumerate(levels, start=start):
        (evaluation,) = write_rise(folder, [level], start=index)
        news += [(index, event.task, event.old, event.new) for event in verdicts.update(evaluation.point)]
    return [event for event in news if event[1] == "arc_easy"]


def test_confirmed_and_reverted_are_told_once_each(tmp_path):
    news = follow(tmp_path, [*RISE, *FALL])
    assert [event[3] for event in news] == ["confirmed", "reverted"]
    assert news[0][2] == "tentative"
    assert 4 < news[0][0] < len(RISE) <= news[1][0]


def test_a_resumed_run_tells_nothing_twice(tmp_path):
    assert [event[3] for event in follow(tmp_path, RISE)] == ["confirmed"]
    resumed = Verdicts(tmp_path, FINGERPRINT)
    resumed.restore((len(RISE) - 1) * 10**9)
    assert follow(tmp_path, [(0.55, 0.85)] * 3, resumed, start=len(RISE)) == []
    forgetful = Verdicts(tmp_path, FINGERPRINT)
    assert [e[3] for e in follow(tmp_path, [(0.55, 0.85)], forgetful, start=len(RISE) + 3)] == ["confirmed"]


def test_what_was_given_up_by_going_back_is_news_again(tmp_path):
    follow(tmp_path, RISE)
    back = Verdicts(tmp_path, FINGERPRINT)
    back.restore(3 * 10**9)  # before the crossing
    again = follow(tmp_path, RISE[4:], back, start=4)
    assert [event[3] for event in again] == ["confirmed"]


def test_live_verdicts_are_those_read_from_the_record_afterwards(tmp_path):
    verdicts = Verdicts(tmp_path, FINGERPRINT)
    follow(tmp_path, RISE, verdicts)
    assert verdicts.crossovers == load_run(tmp_path).crossovers()
    assert len(verdicts.run.evaluations) == len(RISE)


def test_an_evaluation_that_is_not_on_disk_has_no_verdict(tmp_path):
    verdicts = Verdicts(tmp_path, FINGERPRINT)
    with pytest.raises(RecordError):
        verdicts.update(Point(0))
    follow(tmp_path, RISE[:2], verdicts)
    missing = make_evaluation(5 * 10**9, {"arc_easy": (0.5, 0.5)})
    with pytest.raises(RecordError, match="does not have the evaluation at 5000000000 tokens"):
        verdicts.update(missing.point)
    assert verdicts.run is None
    assert verdicts.crossovers == {}


def test_numbers_go_into_the_row_and_the_word_and_what_is_unknown_into_the_summary():
    crossovers = {"boxes": Crossover("confirmed", 500, 400, None), "balls": Crossover("not_reached")}
    assert verdict_row(crossovers) == {"olmes/crossover/boxes/tokens": 500, "olmes/crossover/boxes/lo": 400}
    assert verdict_summary(crossovers) == {
        "olmes/crossover/boxes/state": "confirmed",
        "olmes/crossover/boxes/tokens": 500,
        "olmes/crossover/boxes/lo": 400,
        "olmes/crossover/boxes/hi": None,
        "olmes/crossover/balls/state": "not_reached",
        "olmes/crossover/balls/tokens": None,
        "olmes/crossover/balls/lo": None,
        "olmes/crossover/balls/hi": None,
    }


def test_an_event_says_it_in_words(tmp_path):
    write_rise(tmp_path, RISE)
    verdicts = Verdicts(tmp_path, FINGERPRINT)
    event = next(event for event in verdicts.update(Point(7 * 10**9)) if event.task == "arc_easy")
    assert event.title == "arc_easy: crossover confirmed"
    assert event.text.startswith("after 7B tokens: MCF overtook CF on arc_easy at 3.")
    assert (event.old, event.point.tokens, event.crossover.state) == (None, 7 * 10**9, "confirmed")


def test_an_update_reads_the_new_evaluation_only(tmp_path, monkeypatch):
    """Over a run of 200 evaluations, reading all of them after each would be 20,000 reads."""
    from olmes_monitor.record import run as module

    reads = []
    monkeypatch.setattr(
        module, "read_table", lambda path, read=module.read_table: reads.append(path.name) or read(path)
    )
    verdicts = Verdicts(tmp_path, FINGERPRINT)
    follow(tmp_path, RISE, verdicts)
    assert len(reads) == len(set(reads)) == len(RISE)
    assert verdicts.crossovers == load_run(tmp_path).crossovers()
    assert verdicts.run.correct("arc_easy").cf.shape == (len(RISE), 200)
