"""The page's words and tables. They are there without a script, on paper and for a screen reader; all text is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from olmes_monitor.record.run import AVERAGE
from olmes_monitor.report.curves import OWN, Curve, Source
from olmes_monitor.report.page_compare import Pair, heading
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
        parts.append(f"{evaluations_of(source)} evaluations")
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
    ]  # fmt: skip
    if any(evaluation.point.checkpoint for source in sources if source.run for evaluation in source.run.evaluations):
        items.append(('<path d="M17 1 l5 9 h-10 z" fill="currentColor"/>', "a checkpoint was saved"))
    rows = [f"<li><svg aria-hidden='true' viewBox='0 0 34 12'>{mark}</svg>{text}</li>" for mark, text in items]
    if many:
        rows += [
            f'<li data-run="{i}" style="color:var(--run)"><svg aria-hidden="true" viewBox="0 0 34 12">'
            f'<rect width="34" height="12" rx="3" fill="currentColor"/></svg><span>{escape(source.name)}</span></li>'
            for i, source in enumerate(sources)
        ]
    return f'<ul class="legend">{"".join(rows)}</ul>'


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


def evaluations_of(source: Source) -> int:
    if source.run is not None:
        return len(source.run.evaluations)
    return max((len(curve.tokens) for curve in source.curves.values()), default=0)
