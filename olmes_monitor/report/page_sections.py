"""The page below its curves: order, comparison, table, why, MMLU, bias, cost, how it was measured. All text is escaped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from olmes_monitor.measure.domains import domains_of
from olmes_monitor.measure.flips import explain_crossing, in_words
from olmes_monitor.record.run import AVERAGE
from olmes_monitor.report.curves import OWN, Source
from olmes_monitor.report.page_compare import Pair
from olmes_monitor.report.page_compare import section as compared
from olmes_monitor.report.page_data import DOMAIN_NAMES
from olmes_monitor.report.page_html import BETTER, evaluations_of, table
from olmes_monitor.report.words import format_tokens
from olmes_monitor.suite.olmes import OLMES
from olmes_monitor.suite.suites import SUITES, suite_count


def sections(sources: Sequence[Source], pairs: Sequence[Pair], repeat: str) -> Iterable[str]:
    """Everything below the curves."""
    yield (
        '<h2 id="order">In which order the tasks crossed</h2><p>Each task’s crossing with its interval; hollow while '
        'tentative, a triangle where there is none.</p><div class="card"><div class="plot tall" id="emergence"></div></div>'
    )
    yield compared(pairs)
    yield '<h2 id="latest">The latest evaluation</h2>' + "".join(table(source) for source in sources)
    yield (
        f'<p class="foot">{BETTER} the better form, which is the OLMES score: OLMES takes, task by task, the better of CF '
        "and MCF. Where it changes from CF to MCF, a part of the step is a change of instrument and not of the model. "
        "Values in percent, ± 1 standard error; the gap is MCF minus CF on the same questions.</p>"
    )
    yield _why(sources)
    runs = [source for source in sources if source.run is not None]
    if any(source.subjects for source in sources):
        yield _mmlu(sources)
    if bias := [(i, task) for i, s in enumerate(sources) if s.run for task in s.curves if task != AVERAGE]:
        yield _bias(sources, bias)
    if runs:
        yield _cost(runs)
    yield _measured(sources, repeat)


def _why(sources: Sequence[Source]) -> str:
    """What turned around every crossing, in words; the questions themselves are for `olmes-monitor explain`."""
    lines = []
    for source in sources:
        for task, curve in source.curves.items():
            found = curve.crossovers.get(OWN)
            if source.run is None or task == AVERAGE or found is None or found.tokens is None:
                continue
            right = source.run.correct(task)
            if right.cf is None or right.mcf is None:
                continue
            subjects = right.subjects if len(set(right.subjects.tolist())) > 1 else None
            flips = explain_crossing(right.tokens, right.cf, right.mcf, found.tokens, subjects=subjects)
            whose = f"{source.name}, {task}" if len(sources) > 1 else task
            lines.append(f"<dt>{escape(whose)}</dt><dd>{escape(in_words(flips))}</dd>")
    if not lines:
        return ""
    return (
        '<h2 id="why">What turned at the crossings</h2><p>Whether MCF learned the form, reaching what CF had right before, or '
        "answers that neither form had. <code>olmes-monitor explain RUN TASK</code> shows the questions.</p>"
        f"<dl>{''.join(lines)}</dl>"
    )


def _mmlu(sources: Sequence[Source]) -> str:
    source = next(source for source in sources if source.subjects)
    names = next(iter(source.subjects.values()))
    domains = dict.fromkeys(DOMAIN_NAMES.get(d, d) for d in domains_of(names) or [""])
    ordered = [name for name in (*DOMAIN_NAMES.values(), "") if name in domains]
    plots = "".join(
        f'<div class="card"><h3>{escape(name or "subjects")}</h3><div class="plot tall" role="img" '
        f'data-domain="{escape(name)}" aria-label="CF and MCF of each subject"></div></div>'
        for name in ordered
    )
    return (
        f'<h2 id="subjects-of">By domain and subject</h2><p>MMLU’s domains over training, and its {len(names)} subjects at '
        f"the latest evaluation{' of ' + escape(source.name) if len(sources) > 1 else ''}, the largest lead of MCF on top: "
        'circle CF, square MCF. A subject has few questions: read the pattern, not a row.</p><div class="grid" id="domains">'
        f'</div><div class="panels" id="subjects">{plots}</div>'
    )


def _bias(sources: Sequence[Source], entries: Sequence[tuple[int, str]]) -> str:
    def label(run: int, task: str) -> str:
        return f"{sources[run].name}: {task}" if len(sources) > 1 else task

    options = "".join(
        f'<option value="{escape(json.dumps([run, task]))}">{escape(label(run, task))}</option>'
        for run, task in entries
    )
    plots = (
        ("bias-labels", "Which label MCF answers, %", "Bands: its answers. Dotted: where the right ones lie."),
        ("bias-mass", "Label mass", "How sure the model is that a label comes at all."),
        ("bias-length", "Length bias, Kendall’s τ", "0 is free of bias; above 0 CF leans to the longer choice."),
    )
    cards = "".join(
        f'<div class="card"><h3>{name}</h3><p>{words}</p>'
        f'<div class="plot" id="{id}" role="img" aria-label="{name}"></div></div>'
        for id, name, words in plots
    )
    return (
        '<h2 id="bias">What answers lean on beside knowledge</h2><p>A model that cannot read lettered choices yet says one '
        "label whatever is asked; one that can spreads its answers as the right ones are.</p>"
        f'<div class="controls" style="position:static;border:0;margin-top:0"><label>task <select id="bias-task">{options}'
        f'</select></label></div><div class="panels">{cards}</div>'
    )


def _cost(runs: Sequence[Source]) -> str:
    lines = []
    for source in runs:
        evaluations = source.run.evaluations if source.run else []
        costs = [e.cost for e in evaluations if "seconds" in e.cost]
        if not costs:
            continue
        shares = [v for e in evaluations if (v := e.cost.get("overhead", e.metrics.get("olmes/overhead")))]
        seconds = sum(cost["seconds"] for cost in costs)
        words = f"{len(costs)} evaluations took {_duration(seconds)}, {_duration(seconds / len(costs))} each"
        if shares:
            words += f", {100 * float(np.mean(shares)):.2g} % of the wall time between them"
        if tokens := costs[-1].get("tokens"):
            words += f"; one forwards {format_tokens(tokens)} tokens in {costs[-1].get('forwards', 0):,.0f} calls"
            words += f" on {costs[-1].get('ranks', 1):,.0f} rank{'s' if costs[-1].get('ranks', 1) != 1 else ''}"
        lines.append(escape(f"{source.name}: {words}." if len(runs) > 1 else f"{words}."))
    if not lines:
        return ""
    plots = "".join(
        f'<div class="card"><h3>{name}</h3><div class="plot" id="{id}" role="img" aria-label="{name}"></div></div>'
        for id, name in (("cost-seconds", "Seconds an evaluation"), ("cost-overhead", "Share of the wall time, %"))
    )
    return f'<h2 id="cost">What it cost</h2><p>{"<br>".join(lines)}</p><div class="panels">{plots}</div>'


def _measured(sources: Sequence[Source], repeat: str) -> str:
    """How it was measured and how to do it again."""
    parts = ['<h2 id="how">How it was measured, and how to repeat it</h2>']
    for source in sources:
        if source.run is None or not source.run.evaluations:
            rows: dict[str, Any] = {"run": source.name, "source": "a table of accuracies"}
        else:
            last = source.run.evaluations[-1]
            rows = {
                "run": source.name,
                "suite": f"{last.suite}, {sum(c.n or 0 for c in source.curves.values()):,} questions",
                "fingerprint": last.fingerprint,
                "points": f"{evaluations_of(source)} evaluations, {len(source.run.superseded)} superseded",
                "settings": _pairs(last.settings),
                "versions": _pairs(last.versions),
            }
            rows["normalization"] = _pairs({t: c.normalization for t, c in source.curves.items() if c.normalization})
        cells = "".join(
            f"<dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd>" for name, value in rows.items() if value
        )
        parts.append(f"<dl>{cells}</dl><br>")
    if repeat:
        parts.append(f"<p>This page:</p><pre>{escape(repeat)}</pre>")
    if any(source.run for source in sources):
        again = next((line for line in map(_eval_line, sources) if line), "")
        if again:
            parts.append(
                "<p>The same questions of another checkpoint; equal fingerprints mean equal questions, prompts and shots:</p>"
                f"<pre>{escape(again)}</pre>"
            )
    parts.append(
        "<details><summary>What the numbers are</summary><p>CF is the share of questions whose right answer’s text has the "
        "highest normalized log-likelihood; MCF the share whose right label does. The floor is the higher of chance and of "
        "always answering the best single label. A crossing is where MCF leads CF and its floor and keeps the lead. The "
        "error of the gap is paired, question by question, where the questions are known.</p></details>"
    )
    return "".join(parts)


def _eval_line(source: Source) -> str:
    """The command that asks a saved model the same questions; empty where no official suite asks so many."""
    suite = source.run.suite if source.run else ""
    counts = {task: curve.n or 0 for task, curve in source.curves.items() if task != AVERAGE}
    if suite not in SUITES or not counts or set(counts) - set(OLMES):
        return ""
    line = f"olmes-monitor eval MODEL --suite {suite}"
    if len(counts) < len(OLMES):
        line += f" --tasks {','.join(counts)}"
    for limit in (None, max(counts.values())):
        if all(suite_count(suite, task, limit) == count for task, count in counts.items()):
            return line if limit is None else f"{line} --limit {limit}"
    return ""


def _pairs(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
