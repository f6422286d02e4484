"""What a checkpoint's name tells: the optimizer step and the tokens, as numbers."""

from __future__ import annotations

import re

from olmes_monitor.schedule import parse_tokens

_STEP = re.compile(r"(?:^|[^a-z])(?:checkpoint|global_?step|steps?|iter(?:ation)?)[-_=]?(\d+)(?![\d.]*\d*[a-z])", re.I)
_TOKENS = re.compile(r"(?:^|[^a-z])(?:tokens?|tok)[-_=]?(\d+(?:\.\d+)?[KMBGT]?)(?![a-z0-9])", re.I)
_TOKENS_AFTER = re.compile(r"(?:^|[^a-z0-9.])(\d+(?:\.\d+)?[KMBGT]?)[-_]?(?:tokens?|tok)(?![a-z])", re.I)
_STAGE = re.compile(r"(?:^|[-_/])(stage\d+(?:-ingredient\d+)?)(?=[-_/]|$)", re.I)
_VERSION = re.compile(r"-v\d+$")
_BARE = re.compile(r"(?:(?:ckpt|chkpt|chk|snapshot|save|model|weights|state_dict|state)[-_=.])?(\d+)", re.I)


def step_in(name: str) -> int | None:
    """The optimizer step in a name: checkpoint-200, step=200, global_step200, iter_200, ckpt_200, model_000200, or 200 alone.

    >>> step_in("stage1-step72000-tokens302B"), step_in("epoch=3-step=200-v1.ckpt"), step_in("last.ckpt")
    (72000, 200, None)
    """
    stem = _stem(name)
    found = _STEP.findall(stem)
    if found:
        return int(found[-1])
    # `run2` and `model-7b` hold no step.
    bare = _BARE.fullmatch(stem)
    return None if bare is None else int(bare[1])


def tokens_in(name: str) -> int | None:
    """The tokens in a name: tokens302B, tokens=500, 20B-tokens; K, M, B (G), T are decimal.

    >>> tokens_in("stage1-step72000-tokens302B"), tokens_in("step1000")
    (302000000000, None)
    """
    found = _TOKENS.search(_stem(name)) or _TOKENS_AFTER.search(_stem(name))
    if found is None or not float(re.sub("[^0-9.]", "", found[1])):
        return None if found is None else 0
    return parse_tokens(found[1])


def stage_in(name: str) -> str:
    """The training stage in a revision's name ("stage1", "stage2-ingredient1"); "" if it names none.

    Steps and tokens of OLMo's revisions start again at every stage.
    """
    found = _STAGE.search(name)
    return "" if found is None else found[1].lower()


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key that sorts names by the numbers in them: step9 before step10."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part)


def _stem(name: str) -> str:
    for ending in (".safetensors", ".ckpt", ".pth", ".pt", ".bin"):
        name = name.removesuffix(ending)
    return _VERSION.sub("", name)
