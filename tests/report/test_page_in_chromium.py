"""The page in a real browser: it loads clean, shows what it should, and its controls work."""

import json
import shutil

import numpy as np
import pytest
from made_runs import NASTY

from olmes_monitor.record import load_run
from olmes_monitor.report.curves import read_run
from olmes_monitor.report.page import write_page

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[dev]'")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on this machine: the page is not tried in a browser"
)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        yield driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture(scope="module")
def pages(runs, tmp_path_factory):
    """one.html of the run "early", named nastily, and two.html of both."""
    folder = tmp_path_factory.mktemp("pages")
    early, late = (read_run(load_run(runs / name), name) for name in ("early", "late"))
    write_page(folder / "two.html", [early, late])
    early.name = '</script><img src="http://example.invalid/x" onerror="window.hacked = 1">'
    write_page(folder / "one.html", [early], repeat="olmes-monitor report '<b>'")
    return folder


class Opened:
    """A loaded page and all it said and asked for."""

    def __init__(self, browser, path, size=(1280, 900), scheme="light"):
        viewport = {"width": size[0], "height": size[1]}
        self.page = browser.new_context(viewport=viewport, color_scheme=scheme).new_page()
        self.said, self.asked = [], []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append("dialog"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.url = f"file://{path}"
        self.page.goto(self.url)
        self.page.wait_for_selector("body[data-ready]")

    def curve(self, task, name):
        """(x, y) of a chart's line as plotly holds it."""
        code = """([task, name]) => {
            const card = [...document.querySelectorAll("#tasks .card")].find((c) => c.dataset.task === task);
            const line = card.querySelector(".plot").data.find((t) => t.name === name);
            return line ? [line.x, line.y] : null; }"""
        return self.page.evaluate(code, [task, name])

    def shown(self):
        return self.page.eval_on_selector_all("#tasks .card:not([hidden])", "cards => cards.map(c => c.dataset.task)")


@pytest.fixture(scope="module")
def loaded(browser, pages):
    return Opened(browser, pages / "one.html")


@pytest.fixture
def one(loaded):
    """The page of one run with nothing chosen; loaded once, since parsing plotly takes longer than what is tested."""
    loaded.page.evaluate("location.hash = ''; document.querySelector('#bias-task').selectedIndex = 0")
    loaded.page.evaluate("dispatchEvent(new Event('hashchange'))")
    return loaded


def test_it_loads_without_a_word_or_a_request_and_no_text_becomes_code(one):
    assert one.said == []
    assert one.asked == [one.url]
    assert one.page.evaluate("window.hacked") is None
    assert NASTY in one.shown()
    assert one.page.locator("img").count() == 0
    assert NASTY in one.page.locator("table").inner_text()


@pytest.mark.parametrize(("size", "scheme"), [((1280, 900), "light"), ((390, 844), "light"), ((1280, 900), "dark")])
def test_every_chart_is_drawn_and_nothing_sticks_out(browser, pages, size, scheme):
    opened = Opened(browser, pages / "two.html", size, scheme)
    assert opened.said == []
    assert opened.shown() == ["arc_easy", "csqa", "mmlu", "piqa", NASTY, "average"]
    empty = "plots => plots.filter(p => !p.querySelector('svg .scatterlayer .trace')).map(p => p.id)"
    assert opened.page.eval_on_selector_all(".plot", empty) == []
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= size[0]
    opened.page.context.close()


def test_the_colours_follow_the_readers_scheme_and_both_forms_are_seen(browser, pages):
    import io

    from matplotlib.image import imread

    for scheme, paper, cf, mcf in (("light", "f6f7f8", "0072b2", "d55e00"), ("dark", "101216", "56b4e9", "f5903d")):
        opened = Opened(browser, pages / "one.html", (1280, 1200), scheme)
        pixels = (imread(io.BytesIO(opened.page.screenshot()))[..., :3] * 255).round().astype(int)
        found = {f"{colour:06x}" for colour in np.unique(pixels @ [65536, 256, 1]).tolist()}
        assert {paper, cf, mcf} <= found
        opened.page.context.close()


def test_the_verdict_comes_first_and_hovering_shows_values(one):
    heading = one.page.locator("h1").inner_text()
    assert heading.startswith("MCF overtook CF at ")
    assert "step" in heading
    chart = one.page.locator("#tasks .card").first.locator(".plot")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    one.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    one.page.wait_for_selector(".hoverlayer text")
    text = " ".join(one.page.locator(".hoverlayer").all_text_contents())
    for part in ("CF", "MCF", "gap", "±", "step"):
        assert part in text


def test_the_normalization_changes_cf_and_its_crossing_but_not_mcf(one, runs):
    source = read_run(load_run(runs / "early"), "early")
    cf, mcf = one.curve("csqa", "CF"), one.curve("csqa", "MCF")
    assert cf[1] == pytest.approx((100 * source.curves["csqa"].cf["olmes"]).tolist(), abs=0.01)
    one.page.select_option("#norm", "token")
    assert one.curve("csqa", "CF")[1] == pytest.approx((100 * source.curves["csqa"].cf["token"]).tolist(), abs=0.01)
    assert one.curve("csqa", "CF")[1] != cf[1]
    assert one.curve("csqa", "MCF") == mcf
    assert one.said == []


def test_error_rate_log_tokens_and_bands(one):
    accuracy = one.curve("csqa", "MCF")
    one.page.click("[data-group=y][data-value=error]")
    assert one.curve("csqa", "MCF")[1] == pytest.approx([100 - y for y in accuracy[1]])
    one.page.click("[data-group=x][data-value=log]")
    kind = "document.querySelector('#tasks .plot').layout.xaxis.type"
    assert one.page.evaluate(kind) == "log"
    assert one.curve("csqa", "MCF")[0] == accuracy[0][1:], "0 tokens has no place on a logarithmic axis"
    traces = "document.querySelector('#tasks .plot').data.length"
    before = one.page.evaluate(traces)
    one.page.click("#bands")
    assert one.page.evaluate(traces) == before - 2
    assert one.said == []


def test_tasks_are_chosen_and_the_address_remembers_it(one):
    one.page.click("#chips button[data-task=csqa]")
    assert "csqa" not in one.shown()
    one.page.click("[data-group=y][data-value=error]")
    one.page.reload()
    one.page.wait_for_selector("body[data-ready]")
    assert "csqa" not in one.shown()
    assert one.page.get_attribute("[data-group=y][data-value=error]", "aria-pressed") == "true"
    one.page.click(".card[data-task=arc_easy] .solo")
    assert one.shown() == ["arc_easy"]
    one.page.wait_for_timeout(200)
    drawn = one.page.locator(".card[data-task=arc_easy] svg.main-svg").first
    assert drawn.bounding_box()["width"] > 1000, "enlarged, it takes the page's width"
    one.page.click("#all")
    assert len(one.shown()) == 6


def test_it_works_by_keyboard_alone_and_shows_where_one_is(one):
    one.page.focus("#norm")
    for _ in range(2):
        one.page.keyboard.press("Tab")
    assert one.page.evaluate("document.activeElement.dataset.value") == "log"
    one.page.keyboard.press("Space")
    assert one.page.get_attribute("[data-value=log]", "aria-pressed") == "true"
    outline = (
        "getComputedStyle(document.activeElement).outlineStyle + getComputedStyle(document.activeElement).outlineWidth"
    )
    assert one.page.evaluate(outline) == "solid3px"
    unnamed = """els => els.filter(e => !(e.innerText || e.getAttribute('aria-label') || e.labels?.length)).length"""
    assert one.page.eval_on_selector_all("button, select, a, summary", unnamed) == 0


def test_the_order_of_crossing_is_that_of_the_verdicts(one, runs):
    verdicts = load_run(runs / "early").verdicts().dropna(subset="tokens").sort_values("tokens")
    verdicts = verdicts[~verdicts["task"].str.startswith("mmlu_")]  # domains have charts of their own
    chart = one.page.evaluate("(({x, y}) => [x, y])(document.getElementById('emergence').data[0])")
    ticks = one.page.evaluate("document.getElementById('emergence').layout.yaxis.ticktext")
    drawn = sorted(zip(*chart, strict=True), key=lambda row: -row[1])[: len(verdicts)]
    assert [at for at, _ in drawn] == verdicts["tokens"].tolist()
    names = [ticks[place].replace("&lt;", "<").replace("&gt;", ">") for _, place in drawn]
    assert names == verdicts["task"].tolist()


def test_the_bias_panel_shows_the_chosen_task(one):
    before = one.page.evaluate("document.getElementById('bias-labels').data.map(t => t.y)")
    one.page.select_option("#bias-task", json.dumps([0, "piqa"]))
    after = one.page.evaluate("document.getElementById('bias-labels').data.map(t => t.y)")
    assert (len(before), len(after)) == (4, 2), "four labels, then piqa's two"
    assert [sum(column) for column in zip(*after, strict=True)] == pytest.approx([100] * 18, abs=0.1)


def test_on_paper_it_is_light_and_without_controls(browser, pages):
    opened = Opened(browser, pages / "one.html", scheme="dark")
    assert opened.page.pdf(format="A4").startswith(b"%PDF-")
    opened.page.emulate_media(media="print", color_scheme="dark")
    assert opened.page.locator(".controls").first.is_hidden()
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert opened.said == []
    opened.page.context.close()


def test_a_watched_page_loads_itself_anew_and_keeps_what_was_chosen(browser, runs, tmp_path):
    source = read_run(load_run(runs / "early"), "before")
    path = write_page(tmp_path / "live.html", [source], refresh=0.5)
    opened = Opened(browser, path)
    opened.page.click("[data-group=y][data-value=error]")
    source.name = "after"
    write_page(path, [source], refresh=0.5)
    opened.page.wait_for_selector(".eyebrow >> text=after", timeout=60_000)
    opened.page.wait_for_selector("body[data-ready]")
    assert opened.page.get_attribute("[data-group=y][data-value=error]", "aria-pressed") == "true"
    assert opened.said == []
    opened.page.context.close()


def test_young_failed_and_half_asked_runs_load_without_a_word(browser, tmp_path):
    """One evaluation at 0 tokens; a failed one after it; a run that was only asked in CF; a table without verdicts."""
    from made_runs import make_run
    from synthetic import failed_evaluation, rows, table

    from olmes_monitor.measure import summarize
    from olmes_monitor.record import Evaluation, Point, Recorder
    from olmes_monitor.report.curves_file import read_curves

    young, cloze = tmp_path / "young", tmp_path / "cloze"
    make_run(young, ("arc_easy", "mmlu"), n=60, points=1)
    Recorder(young).write(failed_evaluation(10**9))
    for tokens in (10**9, 2 * 10**9):
        scores = table(rows("arc_easy", [0, 1], cf=[[-1.0, -2.0], [-1.0, -2.0]]))
        facts, metrics, problems = summarize(scores, {"arc_easy": "char"})
        Recorder(cloze).write(Evaluation(Point(tokens), "mine", "f" * 16, scores, metrics, facts, problems))
    csv = tmp_path / "few.csv"
    csv.write_text("tokens,task,cf,mcf\n0,a,0.31,0.22\n5,a,0.3,0.4\n")
    sources = {name: [read_run(load_run(tmp_path / name), name)] for name in ("young", "cloze")}
    sources |= {"few": read_curves(csv), "all": [*sources["young"], *sources["cloze"], *read_curves(csv)]}
    for name, shown in sources.items():
        opened = Opened(browser, write_page(tmp_path / f"{name}.html", shown))
        for value in ("log", "error"):
            opened.page.click(f"[data-value={value}]")
        assert opened.said == [], name
        assert len(opened.shown()) == len({task for source in shown for task in source.curves})
        opened.page.context.close()
