"""Where a text may be cut so that the token ids of its pieces, joined, are the token ids of the whole: proved, not guessed.

A prompt is mostly text that many prompts share. Cut at seams, each distinct piece is encoded once. The only seams used
lie before a space, after an ASCII character x for which the tokenizer's own description shows that

1. no added token spans x and the space, and none reaches over it by stripping white space;
2. the normalizer does not look across it (Unicode normal forms never join an ASCII character and a space);
3. every stage of the pre-tokenizer treats the two sides as if they stood alone, and some stage separates them, so that
   the model (BPE, Unigram, WordPiece), which works on one pre-token at a time, never sees both.

For a stage that is a regular expression, 3. holds if no alternative can consume x and after it a space: then no match
spans the seam, and no attempt to match reads beyond it with another outcome than at the end of a text. A description
with anything that is not understood here gives no seams, and texts are then encoded whole.
"""

from __future__ import annotations

import json
import re
import string
import unicodedata
from itertools import pairwise
from typing import Any, NamedTuple

VISIBLE = frozenset(string.ascii_letters + string.digits + string.punctuation)
NONE: frozenset[str] = frozenset()

_NORMAL_FORMS = {"NFC", "NFD", "NFKC", "NFKD"}
_ATOM = re.compile(
    r"""(?P<lookahead>\(\?!\\S\))
      | (?P<open>\((?:\?i?:)?)
      | (?P<close>\)(?P<repeated>(?:[?*+]|\{[^}]*\})?)[?+]?)
      | (?P<atom>\[\^?\]?(?:\\[pP]\{\^?\w+\}|\\.|[^\]\\\[])+\]
          | \\[pP]\{\^?\w+\} | \\[sSdwrnt] | \\[^\w\s] | [^\\()\[\]{}?*+^$.])
        (?P<quantifier>(?:[?*+]|\{\d+(?:,\d*)?\})?)[?+]?""",
    re.VERBOSE,
)


class _Stage(NamedTuple):
    """What a stage of a pre-tokenizer does at x followed by a space."""

    safe: frozenset[str]
    """The x for which both sides come out as if they stood alone."""
    splits: bool
    """Whether it always separates the two."""


class _Alternative(NamedTuple):
    """One alternative of a regular expression."""

    atoms: list[tuple[str, str]]
    """Character classes with their quantifiers, in order."""
    plain: bool
    """Whether it has neither a lookahead nor a group."""


class _NotUnderstoodError(Exception):
    """The description holds something that this module proves nothing about."""


def safe_before_space(description: str) -> frozenset[str]:
    """The ASCII characters after which a space is a seam. `description`: tokenizer.json of a `tokenizers.Tokenizer`."""
    spec = json.loads(description)
    try:
        _check_normalizer(spec["normalizer"])
        if spec["model"].get("dropout"):
            return NONE  # no two encodings agree
        stage = _pre_tokenizer(spec["pre_tokenizer"], spec["model"], last=True)
        return (stage.safe if stage.splits else NONE) - _spanned(spec["added_tokens"])
    except (_NotUnderstoodError, KeyError, TypeError, re.error):
        return NONE


def last_seam(text: str, end: int, safe: frozenset[str]) -> int:
    """The last seam of a text before position `end`; 0 where there is none."""
    while (end := text.rfind(" ", 1, end)) > 0:
        if text[end - 1] in safe:
            return end
    return 0


def _check_normalizer(spec: dict[str, Any] | None) -> None:
    if spec is None or spec["type"] in _NORMAL_FORMS:
        return
    if spec["type"] != "Sequence":
        raise _NotUnderstoodError(spec["type"])
    for step in spec["normalizers"]:
        _check_normalizer(step)


def _spanned(added: list[dict[str, Any]]) -> set[str]:
    """The x that some added token joins to the space after it."""
    spanned: set[str] = set()
    for token in added:
        for content in {token["content"], unicodedata.normalize("NFKC", token["content"])}:
            spanned.update(x for x, y in pairwise(content) if y == " ")
            if token["rstrip"]:
                spanned.update(content[-1:])  # it swallows the space after it
            if token["single_word"] and content[:1].isspace():
                raise _NotUnderstoodError("an added token that looks at the character before the seam")
    return spanned


def _pre_tokenizer(spec: dict[str, Any] | None, model: dict[str, Any], last: bool) -> _Stage:
    if spec is None:
        raise _NotUnderstoodError("no pre-tokenizer")
    match spec["type"]:
        case "Sequence":
            parts = spec["pretokenizers"]
            stages = [_pre_tokenizer(part, model, last and i == len(parts) - 1) for i, part in enumerate(parts)]
            safe = VISIBLE.intersection(*(stage.safe for stage in stages))
            return _Stage(safe, any(stage.splits for stage in stages))
        # These two put other characters in the space's place, so no stage after them would see a seam.
        case "ByteLevel" if last:
            # Its own expression has white space only in ` ?` at the start of an alternative, or alone.
            return _Stage(VISIBLE, spec["use_regex"])
        case "Metaspace" if last:
            return _Stage(VISIBLE, spec["split"] or _never_joins(model, spec["replacement"]))
        case "WhitespaceSplit" | "BertPreTokenizer" | "Whitespace":
            return _Stage(VISIBLE, True)
        case "Digits":
            return _Stage(VISIBLE, False)
        case "Punctuation" if spec["behavior"] in ("Isolated", "Contiguous"):
            return _Stage(VISIBLE, False)
        case "Split" if (spec["behavior"], spec["invert"]) in (("Isolated", False), ("Removed", True)):
            return _expression(spec["pattern"]["Regex"])
    raise _NotUnderstoodError(spec["type"])


def _never_joins(model: dict[str, Any], space: str) -> bool:
    """Whether no merge of a BPE model can join a character and a space after it, so that it needs no pre-tokenizer to
    keep them apart. All that merging makes is in the vocabulary, and merges on one side do not depend on the other."""
    if model["type"] != "BPE" or space not in model["vocab"]:
        return False
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return False
    return not any(space in token.lstrip(space) for token in model["vocab"])


def _expression(pattern: str) -> _Stage:
    """A stage that splits at the matches of a regular expression: an alternation of runs of character classes."""
    import regex  # type: ignore[import-untyped]  # of transformers; unlike `re` it knows \\p{...}

    unsafe: set[str] = set()
    splits = False
    for atoms, plain in _alternatives(pattern):
        before: set[str] = set()
        for atom, quantifier in atoms:
            accepts = {x for x in VISIBLE if regex.fullmatch(atom, x)}
            takes_space = regex.fullmatch(atom, " ") is not None
            if takes_space:
                unsafe |= before | (accepts if quantifier not in ("", "?") else set())
            before |= accepts
            # An alternative that matches any space leaves none unmatched: no gap between matches spans a seam.
            splits |= takes_space and plain and len(atoms) == 1 and quantifier in ("", "+")
    return _Stage(VISIBLE - unsafe, splits)


def _alternatives(pattern: str) -> list[_Alternative]:
    """The alternatives of a regular expression.

    A group's inside is taken as if its atoms followed one another; that only adds pairs that could be consumed in turn.
    The lookahead `(?!\\S)` has the same outcome at a space and at the end of a text; it may end an alternative.
    """
    alternatives: list[_Alternative] = []
    atoms: list[tuple[str, str]] = []
    plain, lookahead, depth, position = True, False, 0, 0
    while position < len(pattern):
        if pattern[position] == "|":
            if depth == 0:
                alternatives.append(_Alternative(atoms, plain))
                atoms, plain = [], True
            lookahead = False
            position += 1
            continue
        found = _ATOM.match(pattern, position)
        if found is None or lookahead or (found["repeated"] or "") not in ("", "?"):
            raise _NotUnderstoodError(pattern)
        lookahead = found["lookahead"] is not None
        plain &= found["atom"] is not None
        depth += (found["open"] is not None) - (found["close"] is not None)
        if found["atom"] is not None:
            atoms.append((found["atom"], found["quantifier"]))
        position = found.end()
    if depth:
        raise _NotUnderstoodError(pattern)
    return [*alternatives, _Alternative(atoms, plain)]
