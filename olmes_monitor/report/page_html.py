"""The page's words and tables. They are there without a script, on paper and for a screen reader; all text is escaped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from olmes_monitor.measure.domains import domains_of
from olmes_monitor.record.run import AVERAGE
from olmes_monitor.report.curves import OWN, Curve, Source
from olmes_monitor.report.page_compare import Pair, heading
from olmes_monitor.report.page_compare import section as compared
from olmes_monitor.report.page_data import DOMAIN_NAMES
from olmes_monitor.report.words import crossover_line, format_tokens, interval_words

if TYPE_CHECKING:
    from olmes_monitor.measure.crossover import Crossover

BETTER, ABSENT = "†", "–"

STATE_WORDS = {
    "confirmed": "confirmed",
    "tentative": "tentative",
    "not_reached": "not yet",
    "from_start": "ahead from the start",
    "reverted": "was ahead, no longer",
    "undecided": "undecided",
}


def title(sources: Sequence[Source]) -> str:
    """Of the browser's tab."""
    return f"{', '.join(source.name for source in sources)}: CF and MCF"


def eyebrow(sources: Sequence[Source], made: str, refresh: float | None) -> str:
    """Whose page this is, above the verdict."""
    parts = [f"<b>{escape(', '.join(source.name for source in sources))}</b>"]
    for source in sources[:1]:
        if source.run is not None and source.run.suite:
            parts.append(f"suite {escape(source.run.suite)}")
        parts.append(f"{_evaluations(source)} evaluations")
        if last := _last(source):
            parts.append(f"up to {format_tokens(last)} tokens")
    if len(sources) > 1:
        parts[1:] = [f"{len(sources)} runs, aligned on tokens"]
    if refresh:
        parts.append(f'<span class="live">live: written {made}, looks for a newer one every {refresh:g} s</span>')
    return " · ".join(parts)


def verdict(sources: Sequence[Source], pairs: Sequence[Pair] = ()) -> str:
    """The verdict, first of all: of the average, or of the only task; one line a run where there are several."""
    if len(sources) == 1:
        return f"<h1>{_headline(sources[0])}</h1>\n<p class='lead'>{_lead(sources[0])}</p>"
    lines = "".join(
        f'<li data-run="{number}"><strong>{escape(source.name)}</strong>: {_headline(source)}. {_lead(source)}</li>'
        for number, source in enumerate(sources)
    )
    return f"<h1>{heading(sources, pairs)}</h1>\n<ul class='verdicts lead'>{lines}</ul>"


def _headline(source: Source) -> str:
    """ "MCF overtook CF at 412.3B tokens [398B, 431B]: step 98,300"."""
    found = source.headline
    if found is None:
        return "No verdict: CF and MCF were not both asked, or of an unknown number of questions"
    task, crossover = found
    if crossover.tokens is None:
        return escape(crossover_line("average" if task == AVERAGE else task, crossover)[:1].upper()) + escape(
            crossover_line("average" if task == AVERAGE else task, crossover)[1:]
        )
    step = f": step {crossover.step:,}" if crossover.step is not None else ""
    return f"MCF overtook CF at {format_tokens(crossover.tokens)} tokens{_between(crossover)}{step}"


def _between(crossover: Crossover) -> str:
    words = interval_words(crossover)
    return f" <span class='between'>[{words}]</span>" if words else ""


def _lead(source: Source) -> str:
    """What the headline is of, how sure it is, and which tasks crossed first, last and not yet."""
    found = source.headline
    if found is None:
        return ""
    task, crossover = found
    tasks = {name: c.crossovers[OWN] for name, c in source.curves.items() if name != AVERAGE and OWN in c.crossovers}
    parts = [f"On the average of {len(tasks)} tasks" if task == AVERAGE else f"On {escape(task)}"]
    if crossover.tokens is not None:
        parts[0] += f", <strong>{_sureness(crossover)}</strong>"
    if task == AVERAGE:
        crossed = sorted((c.tokens, name) for name, c in tasks.items() if c.tokens is not None)
        rest = [name for name, c in tasks.items() if c.tokens is None]
        if crossed:
            first = f"first {escape(crossed[0][1])} at {format_tokens(crossed[0][0])}"
            last = f", last {escape(crossed[-1][1])} at {format_tokens(crossed[-1][0])}" if len(crossed) > 1 else ""
            parts.append(f"{len(crossed)} of {len(tasks)} tasks have crossed: {first}{last}")
        else:
            parts.append("No task has crossed")
        if crossed and rest:
            parts.append(f"Not crossed: {escape(', '.join(rest))}")
    return ". ".join(parts) + "."


def _sureness(crossover: Crossover) -> str:
    confirmed = crossover.confirmed
    if crossover.state == "confirmed":
        return "confirmed" + (f" at {format_tokens(confirmed)} tokens" if confirmed else "")
    return "tentative: from there on MCF is ahead, but not yet by enough evaluations to be sure"


def notes(sources: Sequence[Source]) -> str:
    """What a reader must know before believing the curves."""
    shared = [note for note in sources[0].notes if all(note in source.notes for source in sources)] if sources else []
    found = shared + [f"{source.name}: {note}" for source in sources for note in source.notes if note not in shared]
    prints = {source.run.fingerprint for source in sources if source.run is not None}
    if len(prints) > 1:
        found.append("The runs were asked different questions (their suites' fingerprints differ): compare with care.")
    for source in sources:
        if source.run is not None and source.run.evaluations:
            for task, problem in source.run.evaluations[-1].problems.items():
                found.append(f"{source.name}, latest evaluation: {task} has no value: {problem}")
    return "".join(f'<p class="note">{escape(note)}</p>' for note in dict.fromkeys(found))


def normalizations(sources: Sequence[Source]) -> str:
    """The options of the choice of normalization."""
    kinds = dict.fromkeys(kind for s in sources for curve in s.curves.values() for kind in curve.cf)
    known = {OWN: "as OLMES does, task by task", "none": "bare (none)", "token": "by token", "char": "by character"}
    known |= {"byte": "by byte", "pmi": "by pmi", "bayes": "bayes", "anpmi": "anpmi"}
    if all(source.run is None for source in sources):
        known[OWN] = "as in the table"
    return "".join(f'<option value="{escape(kind)}">{escape(known.get(kind, kind))}</option>' for kind in kinds)


def legend(sources: Sequence[Source]) -> str:
    """What each line and mark is; colours stand for forms, or for runs where there are several."""
    many = len(sources) > 1
    cf, mcf = ("currentColor", "currentColor") if many else ("var(--cf)", "var(--mcf)")
    items = [
        (f'<line x1="0" y1="6" x2="34" y2="6" stroke="{cf}" stroke-width="2.2" stroke-dasharray="6 4"/>'
         f'<circle cx="17" cy="6" r="3.4" fill="{cf}"/>', "CF, cloze"),
        (f'<line x1="0" y1="6" x2="34" y2="6" stroke="{mcf}" stroke-width="2.2"/>'
         f'<rect x="13.6" y="2.6" width="6.8" height="6.8" fill="{mcf}"/>', "MCF, multiple choice"),
        ('<rect x="0" y="0" width="34" height="12" fill="currentColor" opacity=".16"/>', "± 1 standard error"),
        ('<line x1="0" y1="6" x2="34" y2="6" stroke="var(--floor)" stroke-width="2" stroke-dasharray="2 3"/>',
         "floor: what knows nothing can score"),
        ('<rect x="9" y="0" width="16" height="12" fill="currentColor" opacity=".2"/>'
         '<line x1="17" y1="-1" x2="17" y2="13" stroke="currentColor" stroke-width="1.6"/>',
         "crossing and its 95 % interval; dotted while tentative"),
        ('<path d="M17 1 l5 9 h-10 z" fill="currentColor"/>', "a checkpoint was saved"),
    ]  # fmt: skip
    rows = [f"<li><svg aria-hidden='true' viewBox='0 0 34 12'>{mark}</svg>{text}</li>" for mark, text in items]
    if many:
        rows += [
            f'<li data-run="{i}" style="color:var(--run)"><svg aria-hidden="true" viewBox="0 0 34 12">'
            f'<rect width="34" height="12" rx="3" fill="currentColor"/></svg><span>{escape(source.name)}</span></li>'
            for i, source in enumerate(sources)
        ]
    return f'<ul class="legend">{"".join(rows)}</ul>'


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
    runs = [source for source in sources if source.run is not None]
    if any(source.subjects for source in sources):
        yield _mmlu(sources)
    if bias := [(i, task) for i, s in enumerate(sources) if s.run for task in s.curves if task != AVERAGE]:
        yield _bias(sources, bias)
    if runs:
        yield _cost(runs)
    yield _measured(sources, repeat)


def table(source: Source) -> str:
    """The latest values of every task, the better form marked, and its verdict."""
    head = "".join(
        f'<th scope="col">{name}</th>'
        for name in ("task", "questions", "CF", "MCF", "gap", "crossing, tokens", "interval", "step", "verdict")
    )
    body = "".join(_row(task, curve) for task, curve in source.rows.items())
    last = _last(source)
    name = escape(source.name) + (f" at {format_tokens(last)} tokens" if last else "")
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{name}"><table><caption>{name}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(task: str, curve: Curve) -> str:
    cf, mcf = _latest(curve.cf[OWN]), _latest(curve.mcf)
    gap = None if cf is None or mcf is None else mcf - cf
    better = None if gap is None else "mcf" if gap > 0 else "cf"
    cells = [f"{curve.n:,}" if curve.n else ""]
    for name, value, errors in (("cf", cf, curve.cf_error[OWN]), ("mcf", mcf, curve.mcf_error)):
        cells.append((f"{BETTER} " if name == better else "") + _percent(value, _latest(errors)))
    words = _percent(gap, _latest(curve.gap_error[OWN]), "+").replace("-", "−")
    cells.append(f'<span class="{"up" if better == "mcf" else "down"}">{words}</span>')
    found = curve.crossovers.get(OWN)
    cells += _verdict_cells(found)
    row = "".join(f"<td>{cell}</td>" for cell in cells[:-1]) + f'<td class="words">{cells[-1]}</td>'
    return f'<tr{" class=average" if task == AVERAGE else ""}><th scope="row">{escape(task)}</th>{row}</tr>'


def _verdict_cells(found: Crossover | None) -> list[str]:
    if found is None:
        return [ABSENT, ABSENT, ABSENT, "no verdict"]
    interval = interval_words(found) or ABSENT
    at = ABSENT if found.tokens is None else format_tokens(found.tokens)
    step = ABSENT if found.step is None else f"{found.step:,}"
    confirmed = found.confirmed
    late = f" at {format_tokens(confirmed)}" if confirmed and found.state == "confirmed" else ""
    return [at, interval, step, escape(STATE_WORDS.get(found.state, found.state)) + late]


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
                "points": f"{_evaluations(source)} evaluations, {len(source.run.superseded)} superseded",
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
        source = next(source for source in sources if source.run)
        suite = source.run.suite if source.run else ""
        parts.append(
            "<p>The same questions of another checkpoint; equal fingerprints mean equal questions, prompts and shots:</p>"
            f"<pre>{escape(f'olmes-monitor eval MODEL --suite {suite}')}</pre>"
        )
    parts.append(
        "<details><summary>What the numbers are</summary><p>CF is the share of questions whose right answer’s text has the "
        "highest normalized log-likelihood; MCF the share whose right label does. The floor is the higher of chance and of "
        "always answering the best single label. A crossing is where MCF leads CF and its floor and keeps the lead. The "
        "error of the gap is paired, question by question, where the questions are known.</p></details>"
    )
    return "".join(parts)


def _pairs(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _percent(value: float | None, error: float | None, sign: str = "") -> str:
    if value is None:
        return ABSENT
    return f"{100 * value:{sign}.1f}" + (f" <small>± {100 * error:.1f}</small>" if error is not None else "")


def _latest(values: Any) -> float | None:
    known = np.asarray(values)[np.isfinite(values)]
    return float(known[-1]) if len(known) else None


def _last(source: Source) -> int | None:
    ends = [int(curve.tokens[-1]) for curve in source.curves.values() if len(curve.tokens)]
    return max(ends) if ends else None


def _evaluations(source: Source) -> int:
    if source.run is not None:
        return len(source.run.evaluations)
    return max((len(curve.tokens) for curve in source.curves.values()), default=0)
