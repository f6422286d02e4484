import sys

import numpy as np
import pytest
from synthetic import make_evaluation

from olmes_monitor.errors import SetupError
from olmes_monitor.record import Recorder, load_run
from olmes_monitor.report.plot import plot_run


def record(folder, tasks, points=6):
    recorder = Recorder(folder)
    for number in range(points):
        shares = dict.fromkeys(tasks, (0.3 + 0.04 * number, 0.1 + 0.12 * number))
        recorder.write(make_evaluation(number * 10**9, shares, n=40))
    return load_run(folder)


def charts(figure):
    return [axes for axes in figure.axes if axes.get_visible()]


@pytest.fixture
def run(tmp_path):
    return record(tmp_path / "run", ["arc_easy", "csqa"])


def test_a_png_is_a_png(run, tmp_path):
    from matplotlib.image import imread

    plot_run(run).savefig(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    pixels = imread(tmp_path / "curves.png")
    assert pixels.shape[1] > 600
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 10


def test_each_chart_holds_both_curves_the_floor_and_the_crossing(run):
    shown = charts(plot_run(run))
    assert [axes.get_title(loc="left") for axes in shown] == ["arc_easy", "csqa", "average"]
    lines = {line.get_label(): line for line in shown[0].get_lines()}
    frame = run.frame().query("task == 'arc_easy'")
    np.testing.assert_allclose(lines["CF (cloze)"].get_ydata(), 100 * frame["cf"])
    np.testing.assert_allclose(lines["MCF (multiple choice)"].get_ydata(), 100 * frame["mcf"])
    np.testing.assert_allclose(lines["floor"].get_ydata(), 100 * frame["floor"].iloc[0])
    crossing = run.crossovers()["arc_easy"].tokens
    assert any(list(line.get_xdata()) == [crossing] * 2 for line in shown[0].get_lines())


def test_the_heading_names_the_suite_and_its_fingerprint(run):
    text = " ".join(text.get_text() for text in plot_run(run).texts)
    assert "quick" in text
    assert run.fingerprint[:12] in text


def test_the_curves_differ_without_colour(run):
    cf, mcf = charts(plot_run(run))[0].get_lines()[:2]
    assert cf.get_marker() != mcf.get_marker()
    assert cf.get_linestyle() != mcf.get_linestyle()


def test_tasks_can_be_chosen_and_unknown_ones_are_named(run):
    assert [axes.get_title(loc="left") for axes in charts(plot_run(run, ["average"]))] == ["average"]
    with pytest.raises(SetupError, match="no task piqa"):
        plot_run(run, ["piqa"])


def test_one_task_one_evaluation_and_none_at_all_can_be_drawn(tmp_path):
    for name, tasks, points in (("one", ["arc_easy"], 1), ("none", [], 0)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "evaluations.jsonl").write_text("")
        plot_run(record(folder, tasks, points)).savefig(folder / "curves.png")
        assert (folder / "curves.png").stat().st_size > 1000


def test_pyplot_is_left_alone(run):
    before = sys.modules.pop("matplotlib.pyplot", None)
    plot_run(run)
    assert "matplotlib.pyplot" not in sys.modules
    if before is not None:
        sys.modules["matplotlib.pyplot"] = before


def test_the_interval_is_shaded_and_a_tentative_crossing_is_dotted(tmp_path, run):
    from olmes_monitor.measure import Crossover
    from olmes_monitor.report.curves import read_run
    from olmes_monitor.report.plot import plot_sources

    source = read_run(run, "", others=False)
    found = Crossover("tentative", 2 * 10**9, 10**9, None, 500)
    source.curves["csqa"].crossovers["olmes"] = found
    chart = charts(plot_sources([source], ["csqa"]))[0]
    (span,) = [patch for patch in chart.patches if patch.get_zorder() == 0]
    assert (span.get_x(), span.get_x() + span.get_width()) == (10**9, 5 * 10**9), (
        "an open end reaches the last evaluation"
    )
    (line,) = [line for line in chart.get_lines() if line.get_zorder() == 2]
    assert line.get_linestyle() == "--"
    assert "2B [≥ 1B], tentative" in " ".join(text.get_text() for text in chart.texts)


def test_print_gets_truetype_fonts_and_the_width_it_asked_for(run, tmp_path):
    run.plot(tmp_path / "curves.pdf", width=6.75)
    data = (tmp_path / "curves.pdf").read_bytes()
    assert b"/FontFile2" in data, "TrueType"
    assert b"/Type3" not in data
    assert run.plot(tmp_path / "curves.svg", ["csqa"], width=3.3).get_figwidth() == 3.3
    assert (tmp_path / "curves.svg").read_text().count("<svg") == 1


def test_no_text_is_cut_or_overlaps_at_a_papers_widths(run):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    for width in (3.3, 6.75, None):
        figure = plot_run(run, width=width)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        boxes = [text.get_window_extent(canvas.get_renderer()) for text in figure.texts]
        for axes in charts(figure):
            title = axes.get_title(loc="left")
            boxes += [axes._left_title.get_window_extent(), axes.texts[0].get_window_extent()]
            assert title
        legend = figure.legends[0].get_window_extent()
        assert max(box.x1 for box in [*boxes, legend]) <= figure.bbox.x1
        titles = boxes[len(figure.texts) :: 2]
        assert min(box.y0 for box in [legend]) >= max(box.y1 for box in titles)


def test_several_runs_share_a_chart_each_in_its_colour(run, tmp_path):
    from olmes_monitor.report.curves import read_run
    from olmes_monitor.report.plot import plot_sources

    one, two = read_run(run, "one", others=False), read_run(run, "two", others=False)
    figure = plot_sources([one, two], ["csqa"])
    curves = [line for line in charts(figure)[0].get_lines() if len(line.get_xdata()) == 6]
    assert len({line.get_color() for line in curves}) == 2
    assert len(curves) == 4
    assert [text.get_text() for text in figure.legends[0].get_texts()][-2:] == ["one", "two"]


def test_a_picture_that_cannot_be_written_is_a_record_error(run, tmp_path):
    from olmes_monitor.errors import RecordError

    for name in ("nowhere/curves.png", "curves.nonsense"):
        with pytest.raises(RecordError, match="cannot write the picture"):
            run.plot(tmp_path / name)
