"""The page: one file with everything in it, that opens offline and asks no network for anything."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template

from olmes_monitor import __version__
from olmes_monitor.errors import RecordError
from olmes_monitor.report import page_html, page_sections
from olmes_monitor.report.curves import Source
from olmes_monitor.report.page_compare import compare_sources
from olmes_monitor.report.page_data import page_data


def page(sources: Sequence[Source], *, refresh: float | None = None, repeat: str = "") -> str:
    """The page of one run or several, aligned on tokens, as HTML.

    refresh: after how many seconds it loads itself anew, keeping what the reader chose; never if None.
    repeat: the command that makes it, to be shown in it.
    Every text from outside (names of tasks, runs, checkpoints, problems) is escaped, and no script runs but the two
    whose hashes its content policy names.
    """
    from plotly.offline import get_plotlyjs

    data = json.dumps(page_data(sources), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    scripts = {"plotly": get_plotlyjs(), "script": _asset("page.js")}
    pairs = compare_sources(sources)
    made = time.strftime("%Y-%m-%d %H:%M", time.gmtime()) + " UTC"
    return Template(_asset("page.html")).substitute(
        scripts,
        # In a script element of JSON only "<" could end or nest it, and JSON may write it otherwise.
        data=data.replace("<", "\\u003c"),
        hashes=" ".join(_hash(text) for text in scripts.values()),
        style=_asset("page.css"),
        version=html.escape(__version__),
        made=made,
        title=html.escape(page_html.title(sources)),
        refresh=f' data-refresh="{refresh:g}"' if refresh else "",
        eyebrow=page_html.eyebrow(sources, made, refresh),
        verdict=page_html.verdict(sources, pairs),
        notes=page_html.notes(sources),
        norms=page_html.normalizations(sources),
        legend=page_html.legend(sources),
        sections="\n".join(page_sections.sections(sources, pairs, repeat)),
    )


def write_page(
    path: str | os.PathLike[str], sources: Sequence[Source], *, refresh: float | None = None, repeat: str = ""
) -> Path:
    """Writes `page(…)`, whole or not at all: a browser that loads it meanwhile sees the old one or the new one.

    Raises RecordError where it cannot be written.
    """
    target = Path(path)
    text = page(sources, refresh=refresh, repeat=repeat)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RecordError(f"cannot write the page {target}: {error}") from error
    return target


def _asset(name: str) -> str:
    return (resources.files("olmes_monitor.report") / "assets" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """As a content security policy names a script it allows."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
