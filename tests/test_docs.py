"""The pages say what is: their links, files, commands, settings and names exist."""

import argparse
import importlib
import re
from inspect import signature
from pathlib import Path

import pytest

from olmes_monitor import cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LONGEST = 200
"""Characters of a line of prose."""
OTHERS = {"--kill-on-bad-exit"}
"""Options of other programs (srun)."""


def pytest_generate_tests(metafunc):
    if "page" in metafunc.fixturenames:
        metafunc.parametrize("page", PAGES, ids=lambda path: path.name)


def prose(text):
    """The text without its code blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)


def code(text):
    """What stands in code blocks, line by line without comments, and between backticks."""
    blocks = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, flags=re.S | re.M))
    lines = [re.sub(r"\s#\s.*|\s+#$", "", line) for line in blocks.splitlines()]
    return [*lines, *re.findall(r"`([^`]+)`", prose(text).replace("\n", " "))]


def anchors(path):
    """The names that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.*)$", prose(path.read_text()), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text())):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path), target


def test_files_and_make_targets_that_are_named_exist(page):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    for text in code(page.read_text()):
        for name in re.findall(r"(?<![\w/.])(?:examples|tests|docs|callbacks|olmes_monitor)/[\w/]+(?:\.\w+)?", text):
            if Path(name).suffix or "." not in name:
                assert (ROOT / name).exists() or (ROOT / "olmes_monitor" / name).exists(), name
        for target in re.findall(r"^make ([\w-]+)", text):
            assert target in targets, target


def test_commands_and_their_options_exist(page):
    (commands,) = (a.choices for a in cli.parser()._actions if isinstance(a, argparse._SubParsersAction))
    for text in code(page.read_text()):
        # A subcommand is a word in small letters; `olmes-monitor` alone, or with … or NAME behind it, names none.
        for command, rest in re.findall(r"(?:olmes-monitor|-m olmes_monitor) ([a-z]+)\b(.*)", text):
            assert command in commands, text
            options = set(re.findall(r"(?<=\s)--?[a-z][\w-]*", rest))
            assert options <= set(commands[command]._option_string_actions), text
    anywhere = {option for command in commands.values() for option in command._option_string_actions}
    for option in re.findall(r"`(--[a-z][\w-]*)", prose(page.read_text())):
        assert option in anywhere | OTHERS, option


def settings_of(owner):
    """Keyword arguments of OLMESCallback, Monitor or Refine, those that reach the scoring included."""
    import olmes_monitor
    from olmes_monitor.scoring.score import Scorer

    names = set(signature(getattr(olmes_monitor, owner)).parameters)
    return names | set(signature(Scorer).parameters) | {"ranks_per_batch"} if "scoring" in names else names


def test_settings_in_calls_exist(page):
    known = {owner: settings_of(owner) for owner in ("OLMESCallback", "Monitor", "Refine")}
    for text in code(page.read_text()):
        for owner, inside in re.findall(r"\b(OLMESCallback|Monitor|Refine)\(((?:[^()]|\([^()]*\))*)\)", text):
            outer = re.sub(r"\([^()]*\)|\"[^\"]*\"", "", inside)
            assert set(re.findall(r"\b(\w+)=", outer)) <= known[owner], text


@pytest.mark.parametrize(
    ("name", "heading", "least"),
    [("README.md", "Settings worth knowing", 20), ("docs/schedules_and_tokens.md", "Schedules", 6)],
)
def test_settings_in_tables_exist(name, heading, least):
    section = (ROOT / name).read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]*) \|", section, flags=re.M)
    names = {found for row in rows for found in re.findall(r"`(\w+)", row)}
    assert len(names) >= least
    assert names <= settings_of("OLMESCallback")


def test_names_that_are_imported_exist(page):
    found = re.findall(r"^from (olmes_monitor[\w.]*) import ([\w, ]+)", "\n".join(code(page.read_text())), flags=re.M)
    for module, names in found:
        for name in names.split(","):
            assert hasattr(importlib.import_module(module), name.strip()), (module, name)


def test_lines_of_prose_are_short(page):
    long = [line[:60] for line in page.read_text().splitlines() if len(line) > LONGEST and not line.startswith("|")]
    assert not long
