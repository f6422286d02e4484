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
