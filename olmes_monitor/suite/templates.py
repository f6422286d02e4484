"""How a question becomes a prompt, byte for byte as OLMES prints it.

A template holds two format strings, one per formulation. The defaults are OLMES's usual form, so an own task needs no
template at all; the exceptions of the ten OLMES tasks are spelled out in `olmes.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from string import Formatter

from olmes_monitor.errors import SetupError
from olmes_monitor.suite.question import LABELS, Formulation, Question

BLANK = "_"
"""Where a choice goes in the stem of a fill-in question."""

SHOT_SEPARATOR = "\n\n"


@dataclass(frozen=True, slots=True)
class Template:
    """Renders questions. Every continuation starts with one space, so no context may end in white space.

    Raises SetupError for an unknown or missing placeholder and for a prompt that ends in white space.
    """

    cf: str = "Question: {stem}\nAnswer:"
    """The cloze prompt; knows {stem}, {passage}, {subject}."""
    mcf: str = "Question: {stem}\n{options}\nAnswer:"
    """The multiple-choice prompt; knows {options} too: one line ` A. text` per choice."""
    preamble: str = ""
    """Stands once, before the shots, in both formulations; knows {subject}."""
    blank: str = ""
    """Set for fill-in questions: what stands for the stem's `_` in MCF. In CF each choice fills the blank, so every
    choice has its own context, and the rest of the sentence is the continuation they share."""
    strip_options: bool = False
    """Strip white space around the choices in MCF lines (HellaSwag; OLMES leaves it everywhere else)."""
    unconditional: str = "Answer:"
    """The context of the unconditional requests that the pmi normalization needs."""

    def __post_init__(self) -> None:
        _check_fields("cf", self.cf, {"stem"}, {"stem", "passage", "subject"})
        _check_fields("mcf", self.mcf, {"stem", "options"}, {"stem", "options", "passage", "subject"})
        _check_fields("preamble", self.preamble, set(), {"subject"})
        for name, text in (("cf", self.cf), ("mcf", self.mcf), ("unconditional", self.unconditional)):
            if text != text.rstrip():
                raise SetupError(
                    f"Template.{name} ends in white space: {text[-12:]!r}; drop it, continuations start with a space"
                )

    @property
    def takes_passage(self) -> bool:
        """Whether the prompts have a place for Question.passage."""
        return "{passage}" in self.cf

    def options(self, choices: Iterable[str]) -> str:
        """The lettered lines of the MCF prompt."""
        texts = (choice.strip() for choice in choices) if self.strip_options else choices
        return "\n".join(f" {label}. {text}" for label, text in zip(LABELS, texts, strict=False))

    def context(self, question: Question, formulation: Formulation, choice: int) -> str:
        """The question's own prompt, without shots, as `choice` sees it (only fill-in questions differ by choice)."""
        if formulation == "mcf":
            stem = question.stem.replace(BLANK, self.blank) if self.blank else question.stem
            text = self.mcf.format(
                stem=stem,
                options=self.options(question.choices),
                passage=question.passage,
                subject=spaced(question.subject),
            )
        else:
            stem = question.stem
            if self.blank:
                stem = stem.partition(BLANK)[0] + question.choices[choice]
            text = self.cf.format(stem=stem, passage=question.passage, subject=spaced(question.subject))
        # HellaSwag's stems may end in a space, and its cloze prompt ends with the stem.
        return text.rstrip()

    def continuation(self, question: Question, formulation: Formulation, choice: int) -> str:
        """What is scored for `choice`: its label in MCF, its text in CF, the shared ending of a fill-in question."""
        if formulation == "mcf":
            return f" {LABELS[choice]}"
        if self.blank:
            return f" {question.stem.partition(BLANK)[2].strip()}"
        return f" {question.choices[choice]}"

    def shot(self, question: Question, formulation: Formulation) -> str:
        """The question with its right answer written out."""
        gold = question.gold
        return self.context(question, formulation, gold) + self.continuation(question, formulation, gold)

    def prefix(self, shots: Iterable[Question], formulation: Formulation, subject: str = "") -> str:
        """All that stands before the question: the preamble, then the shots, two newlines after each."""
        preamble = self.preamble.format(subject=spaced(subject))
        return preamble + "".join(self.shot(shot, formulation) + SHOT_SEPARATOR for shot in shots)


def spaced(subject: str) -> str:
    """A subject's name as prompts print it: `high_school_physics` → `high school physics`."""
    return subject.replace("_", " ")


def _check_fields(name: str, text: str, needed: set[str], known: set[str]) -> None:
    try:
        parsed = list(Formatter().parse(text))
    except ValueError as error:
        raise SetupError(f"Template.{name} is no format string ({error}); write {{{{ for a brace of its own") from None
    found = {field for _, field, _, _ in parsed if field is not None}
    if unknown := sorted(found - known):
        placeholders = ", ".join(f"{{{field}}}" for field in sorted(known))
        raise SetupError(
            f"Template.{name} has the unknown placeholder {{{unknown[0]}}}; it knows {placeholders} "
            "(write {{ for a brace of its own)"
        )
    if missing := sorted(needed - found):
        raise SetupError(f"Template.{name} lacks the placeholder {{{missing[0]}}}: {text!r}")
