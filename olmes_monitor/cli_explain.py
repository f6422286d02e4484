"""`olmes-monitor explain`: why MCF overtook CF on one task of a run, with the questions that turned."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from olmes_monitor.errors import DataError, SetupError
from olmes_monitor.measure.flips import GAINED, KINDS, in_words
from olmes_monitor.report.words import crossover_line, format_tokens
from olmes_monitor.suite.question import LABELS, Question

if TYPE_CHECKING:
    from rich.table import Table

    from olmes_monitor.record.explain import Explanation, Side

ABSENT = "–"
LONGEST = 300
"""Characters of a stem that an example shows; `olmes-monitor show` has the whole prompt."""


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation; 0. Raises RecordError where the run has none, SetupError for a negative --examples."""
    from olmes_monitor.record import load_run
    from olmes_monitor.record.explain import explain

    if arguments.examples < 0:
        raise SetupError(f"--examples must be 0 or more, not {arguments.examples}")
    explanation = explain(load_run(arguments.run_folder, arguments.fingerprint), arguments.task)
    if arguments.json:
        print(json.dumps(as_json(explanation), ensure_ascii=False, indent=1))
    elif arguments.csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(as_rows(explanation))
    else:
        _print(explanation, arguments.examples)
    return 0


def as_json(explanation: Explanation) -> dict[str, Any]:
    """The explanation as one JSON object; accuracies and shares are fractions of 1, questions one object each."""
    flips, crossover = explanation.flips, explanation.crossover
    header, *rows = as_rows(explanation)
    return {
        "task": explanation.task,
        "suite": explanation.suite,
        "n": flips.n,
        "crossover": {name: getattr(crossover, name) for name in ("state", "tokens", "lo", "hi", "step")},
        "words": in_words(flips),
        "before": _side_json(explanation.before),
        "after": _side_json(explanation.after),
        "majority": flips.accuracies,
        "counts": flips.counts,
        "shares": flips.shares,
        "flipped": int(flips.flipped.sum()),
        "flipped_back": int(flips.flipped_back.sum()),
        "format_share": flips.format_share,
        "format_open": flips.format_open,
        "questions": [dict(zip(header, row, strict=True)) for row in rows],
    }


def as_rows(explanation: Explanation) -> list[list[Any]]:
    """A header and one row a question; answers and gold are positions from 0, an absent answer is null."""
    flips, kinds = explanation.flips, explanation.kinds
    answers = [
        side[form]
        for side in (vars(explanation.before), vars(explanation.after))
        for form in ("cf_answer", "mcf_answer")
    ]
    header = ["question", "subject", "gold", "cf_before", "mcf_before", "cf_after", "mcf_after", "kind", "flipped"]
    rows = [
        [
            str(explanation.ids[i]),
            str(explanation.subjects[i]),
            int(explanation.gold[i]),
            *(int(answer[i]) if answer[i] >= 0 else None for answer in answers),
            str(kinds[i]),
            bool(flips.flipped[i]),
        ]
        for i in range(flips.n)
    ]
    return [header, *rows]


def cached_texts(explanation: Explanation) -> tuple[dict[str, Question], str | None]:
    """(question id → question, None) from the local cache, or ({}, why there are none). Fetches nothing."""
    from olmes_monitor.suite import cache
    from olmes_monitor.suite.olmes import OLMES

    folder = cache.cache_root() / cache.NAME
    if explanation.task not in OLMES:
        return {}, f"{explanation.task} is a task of your own, whose texts the record does not hold"
    if not folder.is_dir():
        return {}, "the questions are not in the local cache; olmes-monitor data fetches them"
    try:
        texts = {question.id: question for question in cache.read_questions(folder, explanation.task, "questions")}
    except DataError as error:
        return {}, str(error)
    asked = zip(explanation.ids.tolist(), explanation.gold.tolist(), explanation.sizes.tolist(), strict=True)
    if any(id not in texts or (texts[id].gold, len(texts[id].choices)) != (gold, n) for id, gold, n in asked):
        return {}, f"the run's {explanation.task} is not the official one (other ids or answers)"
    return texts, None


def _side_json(side: Side) -> dict[str, Any]:
    facts = {name: getattr(side, name) for name in ("cf", "mcf", "label_mass", "label_bias")}
    return {"tokens": side.tokens.tolist(), **facts}


def _print(explanation: Explanation, examples: int) -> None:
    from rich.console import Console

    # Off a terminal rich assumes 80 columns and would cut the table; a file has no width.
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    crossed = explanation.crossover.tokens is not None
    say = console.print
    say(crossover_line(explanation.task, explanation.crossover), markup=False)
    what = "around the crossing" if crossed else "no crossing: the run's beginning and its end"
    say(f"compared, {what}; a question counts as right where most of a side's evaluations have it right")
    say(_sides_table(explanation))
    say(_kinds_table(explanation))
    say(in_words(explanation.flips), markup=False)
    flips = explanation.flips
    say(
        f"the lead changed hands on {flips.flipped.sum()} questions (CF right and MCF wrong before, the reverse after), "
        f"and back on {flips.flipped_back.sum()}"
    )
    if examples:
        say()
        say("\n".join(example_lines(explanation, examples)), markup=False)


def _sides_table(explanation: Explanation) -> Table:
    """Accuracy and labels before and after."""
    from rich import box
    from rich.table import Table

    before, after = explanation.before, explanation.after
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("")
    for title, side in (("before", before), ("after", after)):
        table.add_column(f"{title}: {', '.join(format_tokens(int(at)) for at in side.tokens)}", justify="right")
    pairs = {
        "CF, mean of these evaluations": [f"{100 * side.cf:.1f}" for side in (before, after)],
        "MCF": [f"{100 * side.mcf:.1f}" for side in (before, after)],
        "label mass": [f"{side.label_mass:.3g}" for side in (before, after)],
        "label bias (0: as the gold choices; always one label: near 1)": [
            f"{side.label_bias['total_variation']:.3f}" for side in (before, after)
        ],
        f"answers {_letters(before)} in percent (gold: {_shares(before, 'gold')})": [
            _shares(side, "predicted") for side in (before, after)
        ],
    }
    for name, cells in pairs.items():
        table.add_row(name, *cells)
    return table


def _letters(side: Side) -> str:
    return "/".join(LABELS[: len(side.label_bias["gold"])])


def _shares(side: Side, which: str) -> str:
    counts = side.label_bias[which]
    return "/".join(f"{100 * count / max(sum(counts), 1):.0f}" for count in counts)


def _kinds_table(explanation: Explanation) -> Table:
    """MCF's rise and its parts, in questions and in points."""
    from rich import box
    from rich.table import Table

    flips = explanation.flips
    counts, shares, accuracy = flips.counts, flips.shares, flips.accuracies
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_footer=True)
    questions = int(flips.mcf_after.sum()) - int(flips.mcf_before.sum())
    points = accuracy["mcf_after"] - accuracy["mcf_before"]
    table.add_column("MCF's rise", "together")
    table.add_column("questions", _signed(f"{questions:+d}"), justify="right")
    table.add_column("points", _signed(f"{100 * points:+.1f}"), justify="right")
    table.add_column("", f"of {flips.n} questions" + (", points over subjects" if flips.subjects is not None else ""))
    for kind in (*GAINED, "lost"):
        count, share = (-counts[kind], -shares[kind]) if kind == "lost" else (counts[kind], shares[kind])
        # `or 0`: minus nothing is nothing.
        table.add_row(kind, _signed(f"{count or 0:+d}"), _signed(f"{100 * (share or 0):+.1f}"), KINDS[kind])
    return table


def _signed(text: str) -> str:
    return text.replace("-", "−")


def example_lines(explanation: Explanation, examples: int) -> list[str]:
    """At most `examples` questions of each sort, in the suite's order, with their texts where the cache has them."""
    texts, missing = cached_texts(explanation)
    kinds = explanation.flips.kinds
    sorts = {"the lead changed hands": explanation.flips.flipped, **{kind: kinds[kind] for kind in (*GAINED, "lost")}}
    lines = [f"examples by id only: {missing}"] if missing else []
    for name, which in sorts.items():
        chosen = which.nonzero()[0][:examples].tolist()
        count = int(which.sum())
        shown = f", the first {len(chosen)}" if 0 < len(chosen) < count else ""
        lines.append(f"── {name}: {count} question{'s' if count != 1 else ''}{shown}")
        for i in chosen:
            lines += _example(explanation, i, texts)
    return lines


def _example(explanation: Explanation, i: int, texts: Mapping[str, Question]) -> list[str]:
    id, gold = str(explanation.ids[i]), int(explanation.gold[i])
    before, after = explanation.before, explanation.after
    answers = [
        f"{title}: CF {_letter(side.cf_answer[i])}, MCF {_letter(side.mcf_answer[i])}"
        for title, side in (("before", before), ("after", after))
    ]
    lines = [f"{id}   gold {_letter(gold)}   {'   '.join(answers)}"]
    question = texts.get(id)
    if question is not None:
        stem = " ".join(question.stem.split())
        lines.append(f"    {stem if len(stem) <= LONGEST else stem[:LONGEST] + ' …'}")
        lines += [f"    {LABELS[j]}. {' '.join(choice.split())}" for j, choice in enumerate(question.choices)]
    return lines


def _letter(answer: int) -> str:
    return LABELS[answer] if answer >= 0 else ABSENT
