"""The search for the crossing: few looks, no look twice, no crossing lost to one noisy checkpoint, a full scan's verdict."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from scan_parts import TOKENS, make_scan, save

sys.path.append(str(Path(__file__).parents[1] / "record"))

from synthetic import make_evaluation

from olmes_monitor import load_run
from olmes_monitor.checkpoints import search as module
from olmes_monitor.checkpoints.checkpoint import Checkpoint
from olmes_monitor.checkpoints.search import LOOKS, Lead, lead_of, next_look, search, weigh
from olmes_monitor.record import Recorder


def looks(leads, budget=LOOKS, seen=None, barred=()):
    """The positions a search takes on a curve of leads, in order; those in `barred` cannot be scored."""
    seen, taken, gone = dict(seen or {}), [], set(barred)
    for left in range(budget, 0, -1):
        position = next_look(len(leads), seen, left, gone)
        if position is None:
            break
        assert position not in seen
        assert position not in gone
        taken.append(position)
        seen[position] = leads[position]
    return taken


def curve(n, crossing, slope=0.01, error=0.01):
    return [Lead((i - crossing + 0.5) * slope, error) for i in range(n)]


@pytest.mark.parametrize("crossing", [3, 50, 111, 196])
def test_a_clear_crossing_among_two_hundred_is_bracketed(crossing):
    taken = looks(curve(200, crossing))
    assert len(taken) <= LOOKS
    assert max(i for i in taken if i < crossing) >= crossing - 4
    assert min(i for i in taken if i >= crossing) <= crossing + 4


@pytest.mark.parametrize("lie", [1, 2, 3, 4, 5])
def test_one_noisy_checkpoint_does_not_lose_the_crossing(lie):
    """Whichever look says the clear contrary of the truth, the search comes back."""
    leads = curve(200, 120)
    wrong = looks(leads)[lie]
    leads[wrong] = Lead(-np.sign(leads[wrong].value) * 0.05, 0.01)
    taken = looks(leads)
    assert wrong in taken
    assert max(i for i in taken if i < 120) >= 110
    assert min(i for i in taken if i >= 120) <= 130


def test_small_runs_are_scored_whole_and_none_is_looked_at_twice():
    assert sorted(looks(curve(6, 3))) == list(range(6))
    assert looks(curve(1, 0)) == [0]
    assert looks([]) == []


def test_without_a_crossing_the_looks_are_spread_over_the_run():
    for leads in ([Lead(-0.1, 0.01)] * 200, [Lead(0.1, 0.01)] * 200):
        taken = sorted(looks(leads))
        assert len(taken) == LOOKS
        assert max(np.diff(taken)) <= 30


def test_what_cannot_be_scored_is_passed_over():
    leads = curve(200, 120)
    first = looks(leads)
    taken = looks(leads, barred=first)
    assert not set(taken) & set(first)
    assert min(abs(i - 120) for i in taken) <= 10


def test_what_is_known_already_is_evidence_and_costs_no_look():
    leads = curve(200, 120)
    known = {i: leads[i] for i in range(0, 200, 10)}
    taken = looks(leads, budget=5, seen=known)
    assert all(100 <= i <= 140 for i in taken)


def test_the_weights_are_bayes_rule():
    seen = {1: Lead(-0.02, 0.01), 2: Lead(0.02, 0.01)}

    def says_before(lead):
        z = lead.value / np.hypot(lead.error, module.JITTER)
        return (1 - 2 * module.DOUBT) * NormalDist().cdf(z) + module.DOUBT

    one, two = says_before(seen[1]), says_before(seen[2])
    expected = np.array([one * two, one * two, (1 - one) * two, (1 - one) * (1 - two)])
    np.testing.assert_allclose(weigh(3, seen), expected / expected.sum())


def test_the_lead_is_over_cf_and_over_the_floor():
    evaluation = make_evaluation(1, {"arc_easy": (0.1, 0.2), "csqa": (0.3, 0.6)})
    facts = evaluation.tasks["arc_easy"]
    assert lead_of(evaluation, "arc_easy").value == pytest.approx(facts["mcf"] - facts["floor"])
    assert lead_of(evaluation, "csqa") == (
        evaluation.tasks["csqa"]["gap"],
        evaluation.tasks["csqa"]["stderr_gap"],
    )
    assert lead_of(evaluation).value == pytest.approx(
        min(
            evaluation.metrics["olmes/gap/average"],
            evaluation.metrics["olmes/mcf/average"] - np.mean([t["floor"] for t in evaluation.tasks.values()]),
        )
    )
    assert lead_of(evaluation, "piqa") is None


class Pretended:
    """A scan whose checkpoints are scored by a formula, into a real record."""

    def __init__(self, folder, n, crossing, broken=()):
        self.recorder = Recorder(folder)
        self.crossing, self.broken, self.taken, self.left = crossing, broken, [], []
        self.checkpoints = [Checkpoint(Path(f"step{i}"), "transformers", i, i * TOKENS) for i in range(1, n + 1)]

    def take(self, checkpoint, left):
        self.taken.append(checkpoint.step)
        self.left.append(left)
        good = checkpoint.step not in self.broken
        if good:
            level = 0.5 + (checkpoint.step - self.crossing) * 0.02
            made = make_evaluation(checkpoint.tokens, {"arc_easy": (0.5, np.clip(level, 0, 1))})
            self.recorder.write(replace(made, point=replace(made.point, origin="scan")))
        return type("Outcome", (), {"good": good})

    def known(self):
        if not self.recorder.lines.exists():
            return {}
        leads = {e.point.tokens: lead_of(e, "arc_easy") for e in load_run(self.recorder.folder).evaluations}
        return {i: leads[c.tokens] for i, c in enumerate(self.checkpoints) if c.tokens in leads}


def test_the_search_goes_on_past_checkpoints_that_fail_and_keeps_what_it_scored(tmp_path):
    scan = Pretended(tmp_path, 100, 40, broken=(50, 100))
    search(scan, scan.checkpoints, scan.known, lambda choose: choose())
    assert len(scan.taken) == len(set(scan.taken)) <= LOOKS
    crossover = load_run(tmp_path).crossovers()["arc_easy"]
    assert abs(crossover.tokens / TOKENS - 40) <= 4
    assert len(load_run(tmp_path).evaluations) == len(set(scan.taken) - {50, 100})


def test_no_more_are_said_to_be_left_than_there_are(tmp_path):
    scan = Pretended(tmp_path, 6, 3)
    search(scan, scan.checkpoints, scan.known, lambda choose: choose())
    assert scan.left == [6, 5, 4, 3, 2, 1]


def test_what_a_search_scored_a_later_full_scan_does_not_score_again(tokenizer, suite, tmp_path):
    for step in range(1, 8):
        save(tmp_path, step, tokenizer)
    first = make_scan(tmp_path, suite)
    found = first.find()

    def known():
        first.results.refresh()
        at = {c.tokens: i for i, c in enumerate(found)}
        return {at[tokens]: Lead(0.1, 0.01) for _, tokens in first.results.lines}

    search(first, found, known, lambda choose: choose(), looks=3)
    assert len(first.watcher.outcomes) == 3
    full = make_scan(tmp_path, suite)
    full.once()
    assert sorted(state for _, state in full.watcher.states) == ["known"] * 3 + ["scored"] * 4
    lines = [json.loads(line) for line in (tmp_path / "olmes" / "evaluations.jsonl").read_text().splitlines()]
    assert len(lines) == 7
