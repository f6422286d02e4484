"""`olmes-monitor show`: the exact prompts of a question, with every space visible, and as tokens."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from olmes_monitor.errors import SetupError

if TYPE_CHECKING:
    from olmes_monitor.scoring.tokens import TextEncoder
    from olmes_monitor.suite import Formulation, Question, Request, Task

RULE = "────"
SPACE, NEWLINE, BOUNDARY = "·", "⏎", "|"


def run(arguments: argparse.Namespace) -> int:
    """Print both formulations; 0. Raises SetupError for an unknown task or question and an unusable tokenizer."""
    from olmes_monitor.suite import FORMULATIONS, cache
    from olmes_monitor.suite.suites import check_task_name, load_task

    check_task_name(arguments.task)
    task = load_task(cache.ensure(), arguments.task)
    question = task.questions[0] if arguments.id is None else _find(task, arguments.id)
    if arguments.tokenizer is None:
        write = str if arguments.plain else visible
        print("\n\n".join(prompts(task, question, formulation, write) for formulation in FORMULATIONS))
        return 0
    from olmes_monitor.cli_eval import load_tokenizer

    tokenizer = load_tokenizer(arguments.tokenizer)
    print("\n\n".join(tokens(task, question, formulation, tokenizer) for formulation in FORMULATIONS))
    return 0


def visible(text: str) -> str:
    """A text with its spaces and line ends visible; lines stay lines."""
    return text.replace(" ", SPACE).replace("\n", f"{NEWLINE}\n")


def prompts(task: Task, question: Question, formulation: Formulation, write: Any) -> str:
    """One formulation as text: each distinct context once, its continuations under it, the right one marked."""
    lines = [_title(task, question, formulation)]
    context = None
    for number, request in enumerate(task.requests(question, formulation)):
        if request.context != context:
            context = request.context
            lines += [write(context), RULE]
        lines.append(f"{_mark(question, number)} {write(request.continuation)}")
    return "\n".join(lines)


def tokens(task: Task, question: Question, formulation: Formulation, tokenizer: Any) -> str:
    """One formulation as the tokens a model is given: boundaries in the text, the ids under each line."""
    from dataclasses import replace

    from olmes_monitor.scoring.encode import Encoder
    from olmes_monitor.scoring.tokens import TextEncoder

    encoded = Encoder(tokenizer).encode_task(replace(task, questions=[question]), formulation)
    texts = TextEncoder(tokenizer)
    lines = [_title(task, question, formulation)]
    context = None
    requests = task.requests(question, formulation)
    for number, (request, ids) in enumerate(zip(requests, [*encoded.requests, *encoded.unconditional], strict=True)):
        pieces = _pieces(texts, request, ids.ids.tolist())
        if request.context != context:
            context = request.context
            lines += [*_by_line(pieces[: ids.start]), RULE]
        answer = pieces[ids.start :]
        ids_text = " ".join(str(id) for id, _ in answer)
        lines.append(f"{_mark(question, number)} {BOUNDARY.join(visible(text) for _, text in answer)}   {ids_text}")
    if encoded.spanning:
        lines.append(f"{encoded.spanning} requests have a token that spans context and continuation; it is scored")
    return "\n".join(lines)


def _pieces(texts: TextEncoder, request: Request, ids: list[int]) -> list[tuple[int, str]]:
    """Ids with the text each stands for. What is in front of the text (BOS) stands for none; a prompt that was
    shortened for its length has lost pieces on the left."""
    pieces = texts.pieces(request.context + request.continuation)
    added = len(ids) - len(pieces)
    if added >= 0 and [id for id, _ in pieces] == ids[added:]:
        return [*((id, "[]") for id in ids[:added]), *pieces]
    kept = next(
        n for n in range(len(ids), -1, -1) if [id for id, _ in pieces[len(pieces) - n :]] == ids[len(ids) - n :]
    )
    return [*((id, "[]") for id in ids[: len(ids) - kept]), *pieces[len(pieces) - kept :]]


def _by_line(pieces: list[tuple[int, str]]) -> list[str]:
    """Tokens as lines that end where the text's lines end, the ids under each."""
    lines: list[str] = []
    row: list[tuple[int, str]] = []
    for i, (id, text) in enumerate(pieces):
        row.append((id, text))
        if "\n" in text or i == len(pieces) - 1:
            lines.append(BOUNDARY.join(text.replace(" ", SPACE).replace("\n", NEWLINE) for _, text in row))
            lines.append("     " + " ".join(str(id) for id, _ in row))
            row = []
    return lines


def _title(task: Task, question: Question, formulation: Formulation) -> str:
    return f"{RULE} {task.name}  {question.id}  {formulation}"


def _mark(question: Question, number: int) -> str:
    return "gold" if number % len(question.choices) == question.gold else "    "


def _find(task: Task, id: str) -> Question:
    for question in task.questions:
        if question.id == id:
            return question
    import difflib

    near = difflib.get_close_matches(id, [question.id for question in task.questions], n=3, cutoff=0.5)
    examples = near or [question.id for question in task.questions[:3]]
    raise SetupError(f"{task.name} has no question {id!r}; ids look like {', '.join(examples)}")
