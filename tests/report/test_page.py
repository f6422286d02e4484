"""The page's own text: the verdict first, the tables, what is escaped, what it holds and what it does not."""

import html
import json
import re
from copy import copy
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from made_runs import NASTY

from olmes_monitor.errors import RecordError
from olmes_monitor.measure import Crossover
from olmes_monitor.measure.flips import in_words
from olmes_monitor.record import load_run
from olmes_monitor.record.compare import compare_crossovers, comparison_line
from olmes_monitor.record.explain import explain
from olmes_monitor.report import page_html
from olmes_monitor.report.curves import Source, read_run
from olmes_monitor.report.page import page, write_page
from olmes_monitor.report.words import format_tokens
from olmes_monitor.suite.olmes import OLMES


@pytest.fixture(scope="module")
def run(runs):
    return load_run(runs / "early")


@pytest.fixture(scope="module")
def source(run):
    return read_run(run, "early & <i>bold</i>")


@pytest.fixture(scope="module")
def text(source):
    return page([source], repeat="olmes-monitor report runs/early")


class Reader(HTMLParser):
    """Elements, and what is readable of the page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.at = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.at.append(tag)

    def handle_endtag(self, tag):
        if tag in self.at:
            while self.at.pop() != tag:
                pass

    def handle_data(self, data):
        if not {"script", "style"} & set(self.at):
            self.words.append(data)


def data_of(text):
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)[1])


def test_the_verdict_stands_before_everything_else(text, run):
    found = run.crossovers()["average"]
    words = " ".join("".join(Reader(text).words).split())
    verdict = f"MCF overtook CF at {format_tokens(found.tokens)} tokens [{format_tokens(found.lo)}, "
    assert verdict + f"{format_tokens(found.hi)}]: step {found.step:,}" in words
    assert words.index("MCF overtook CF") < words.index("Both curves of every task")


def test_the_table_shows_the_latest_values_with_the_better_form_marked(text, run):
    row = re.search(r'<tr><th scope="row">csqa</th>(.*?)</tr>', text)[1]
    cells = [html.unescape(re.sub("<[^>]*>", "", cell)) for cell in re.findall("<td[^>]*>(.*?)</td>", row)]
    facts = run.evaluations[-1].tasks["csqa"]
    assert facts["mcf"] > facts["cf"]
    assert cells[:3] == [
        "114",
        f"{100 * facts['cf']:.1f} ± {100 * facts['stderr_cf']:.1f}",
        f"† {100 * facts['mcf']:.1f} ± {100 * facts['stderr_mcf']:.1f}",
    ]
    assert cells[-1].startswith(run.crossovers()["csqa"].state)


def test_no_text_from_outside_becomes_markup_and_only_the_named_scripts_run(text):
    import base64
    import hashlib

    reader = Reader(text)
    scripts = [attrs for tag, attrs in reader.tags if tag == "script"]
    assert scripts == [{"id": "data", "type": "application/json"}, {}, {}]
    assert not [tag for tag, _ in reader.tags if tag in ("i", "img", "iframe", "link", "object")]
    assert NASTY in "".join(reader.words)
    policy = next(attrs["content"] for tag, attrs in reader.tags if attrs.get("http-equiv"))
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    bodies = re.findall(r"<script>(.*?)</script>", text, re.S)
    allowed = [f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'" for body in bodies]
    assert policy.split("script-src ")[1].split(";")[0].split() == allowed


def test_it_holds_curves_and_no_answers_and_stays_small(text, source):
    data = data_of(text)
    assert data["tasks"] == list(source.curves)
    without = len(text) - len(re.search(r"<script>(.*?)</script>", text, re.S)[1])  # plotly's own 4.8 MB
    assert without < 300_000
    assert "mmlu-0" not in text, "a question's id"
    lengths = {len(curve["mcf"]) for curve in data["runs"][0]["tasks"].values()}
    assert lengths == {18}


def test_it_says_what_turned_at_every_crossing_as_explain_does(text, run):
    words = " ".join("".join(Reader(text).words).split())
    for task, crossover in run.crossovers().items():
        if task in run.tasks:
            said = in_words(explain(run, task).flips)
            assert (said in words.split("What turned at the crossings")[1]) == (crossover.tokens is not None)


def test_the_legend_names_saved_checkpoints_only_where_there_are_some(text, run, source):
    assert any(evaluation.point.checkpoint for evaluation in run.evaluations)
    assert "a checkpoint was saved" in text
    without = copy(run)
    without.evaluations = [replace(e, point=replace(e.point, checkpoint=None)) for e in run.evaluations]
    assert "a checkpoint was saved" not in page([replace(source, run=without)])


def test_it_says_how_it_was_measured_and_how_to_repeat_it(text, run):
    words = " ".join("".join(Reader(text).words).split())
    for part in (run.fingerprint, "suite monitor", "dtype bfloat16", "torch 2.13.0", "olmes-monitor report runs/early"):
        assert part in words
    assert "18 evaluations took 3.3 min, 11.0 s each, 0.4 % of the wall time" in words


@pytest.mark.parametrize(
    ("suite", "counts", "command"),
    [
        ("quick", {"arc_easy": 60, "csqa": 60}, "--suite quick --tasks arc_easy,csqa --limit 60"),
        ("quick", dict.fromkeys(OLMES, 100), "--suite quick"),
        ("monitor", {"openbookqa": 500, "boolq": 1000}, "--suite monitor --tasks openbookqa,boolq"),
        ("monitor", {"openbookqa": 500, "boolq": 600}, "--suite monitor --tasks openbookqa,boolq --limit 600"),
        ("quick", {"arc_easy": 60, "csqa": 70}, None),
        ("quick", {"arc_easy": 60, "boxes": 60}, None),
        ("mine", {"arc_easy": 60}, None),
    ],
)
def test_the_command_that_asks_another_checkpoint_asks_the_same_questions(run, source, suite, counts, command):
    asked = copy(run)
    asked.evaluations = [replace(evaluation, suite=suite) for evaluation in run.evaluations]
    curves = {task: replace(source.curves["csqa"], n=n, crossovers={}) for task, n in counts.items()}
    said = re.search(r"olmes-monitor eval MODEL ([^<]*)</pre>", page([Source("x", curves, run=asked)]))
    assert (said and said[1]) == command


def test_two_runs_over_the_same_questions_are_compared_by_their_paired_interval(runs):
    early, late = (read_run(load_run(runs / name), name, others=False) for name in ("early", "late"))
    words = " ".join("".join(Reader(page([early, late])).words).split())
    found = compare_crossovers(early.run, late.run)
    assert found["average"].lo > 0
    for comparison in found.values():
        assert comparison_line(comparison, "early", "late") in words
    assert words.index("late crossed") < words.index("Both curves of every task")


def test_runs_over_unknown_questions_are_compared_only_where_their_intervals_are_apart(runs):
    early, late = (read_run(load_run(runs / name), name, others=False) for name in ("early", "late"))
    assert late.curves["average"].crossovers["olmes"].lo is not None
    words = page_html.verdict([early, late])
    assert re.search(r"<h1>early crossed [\d.]+B tokens before late</h1>", words)
    early.curves["average"].crossovers["olmes"] = Crossover("confirmed", 10**11, 10**10, 9 * 10**11, 5)
    assert "which first is not clear" in page_html.verdict([early, late])


@pytest.mark.parametrize(
    ("crossover", "words"),
    [
        (Crossover("not_reached"), "Not yet on average: MCF has not overtaken CF"),
        (Crossover("from_start"), "MCF is ahead of CF on average from the first evaluation on"),
        (Crossover("tentative", 5 * 10**9, None, 7 * 10**9), "MCF overtook CF at 5B tokens [≤ 7B]"),
        (Crossover("tentative", 5 * 10**9, 4 * 10**9, None), "MCF overtook CF at 5B tokens [≥ 4B]"),
        (Crossover("confirmed", 5 * 10**9), "MCF overtook CF at 5B tokens"),
        (None, "No verdict: CF and MCF were not both asked"),
    ],
)
def test_every_state_has_its_words(source, crossover, words):
    curve = source.curves["average"]
    one = type(curve)(**{**curve.__dict__, "crossovers": {} if crossover is None else {"olmes": crossover}})
    heading = page_html.verdict([Source("x", {"average": one})])
    assert re.sub("<[^>]*>", "", heading.splitlines()[0]).startswith(words)


def test_a_page_is_written_whole_or_not_at_all(source, tmp_path, monkeypatch):
    path = write_page(tmp_path / "report.html", [source])
    before = path.read_text()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(RecordError, match=r"cannot write the page .*disk full"):
        write_page(path, [source])
    assert path.read_text() == before
    assert [item.name for item in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(RecordError, match="cannot write the page"):
        write_page(tmp_path / "nowhere" / "report.html", [source])
