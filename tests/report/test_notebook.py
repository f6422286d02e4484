"""In a notebook a run is its verdict and its chart."""

from xml.etree import ElementTree

from olmes_monitor.record import load_run
from olmes_monitor.record.run import Run


def test_a_run_shows_its_verdict_and_its_chart(runs):
    text = load_run(runs / "early")._repr_html_()
    assert "MCF overtook CF on average at" in text
    svg = text[text.index("<svg") : text.index("</svg>") + len("</svg>")]
    drawn = ElementTree.fromstring(svg.replace("xlink:href", "href"))
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}path"))) > 50
    assert "<?xml" not in text
    assert "<script" not in text


def test_a_run_without_evaluations_says_so(tmp_path):
    assert "0 evaluations" in Run(tmp_path, [])._repr_html_()
