"""What one evaluation is: where training stood, every choice's log-likelihood, and what follows from them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pyarrow as pa

SCORES_COLUMNS = {
    "task": "task name (dictionary-encoded string)",
    "subject": "MMLU subject, else '' (dictionary-encoded string)",
    "question": "question id (string)",
    "index": "position of the question in its task's list (int32)",
    "choice": "position of the choice in its question (int8)",
    "gold": "whether this choice is the right one (bool)",
    "cf": "ln p(choice text | question), cloze; null if not asked (float64)",
    "mcf": "ln p(label | lettered question), multiple choice; null if not asked (float64)",
    "unconditional": "ln p(choice text | 'Answer:'), asked where the task is normalized by pmi, else null (float64)",
    "tokens": "tokens of the cloze continuation (int32; null if cf was not asked)",
    "chars": "characters of the cloze continuation, the leading space counted (int32)",
    "bytes": "UTF-8 bytes of the cloze continuation, the leading space counted (int32)",
    "mcf_shift<k>": "with permutations='cyclic' only, k from 1: ln p(the label that stood for this choice | lettered "
    "question) with the choices in the order k, …, n−1, 0, …, k−1; null where a question has no more than k (float64)",
}
"""Columns of `Evaluation.scores`: an Arrow table with one row per choice, in the suite's order."""


@dataclass(frozen=True)
class Point:
    """Where training stood."""

    tokens: int
    """Tokens trained on so far, over all ranks."""
    step: int = 0
    """Optimizer steps so far, as the trainer counts them."""
    time: float = 0.0
    """Wall time, seconds since the epoch."""
    checkpoint: str | None = None
    """The checkpoint saved at this step, if there is one."""
    origin: Literal["loop", "scan"] = "loop"
    """Whether the model was asked while it trained, or later, from the checkpoint. Records without it are of the loop."""
    key: str = ""
    """What the checkpoint's content is known by, of a scan."""
    axis: Literal["tokens", "steps"] = "tokens"
    """What `tokens` holds: "steps" where a scan was asked to draw against steps, since the tokens are not known."""

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> Point:
        """Of a record's line. Keys that this version does not know are left out."""
        return cls(**{name: line[name] for name in cls.__dataclass_fields__ if name in line})


@dataclass
class Evaluation:
    """All log-likelihoods of a suite at one point, with what they cost."""

    point: Point
    suite: str
    """Name of the suite."""
    fingerprint: str
    """Fingerprint of the suite: equal fingerprints mean equal questions, prompts and shots."""
    scores: pa.Table | None
    """One row per choice, see SCORES_COLUMNS. None where the evaluation failed."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The logged names and their values; a metric without an honest value is absent."""
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Task → its facts, as measure/reference.py defines them, and how its questions were encoded."""
    problems: dict[str, str] = field(default_factory=dict)
    """Task (or "evaluation") → why its metrics are absent."""
    cost: dict[str, float] = field(default_factory=dict)
    """seconds, requests, tokens (forwarded, padding included), forwards (model calls), ranks."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of what took part."""
    settings: dict[str, Any] = field(default_factory=dict)
    """How the questions were asked: bos, max_length, scoring path, permutations, dtype, tokenizer; how tokens were counted."""
    attempt: int = 1
    """Which start of the training process this is; a resumed run writes 2, 3, …"""
    since: int = 0
    """Tokens at which this attempt took training up: what earlier attempts measured beyond is superseded."""

    @property
    def complete(self) -> bool:
        """Whether every task of the suite has its metrics."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """The evaluation as one JSON object, without the scores (they go to a parquet file)."""
        line = asdict(Evaluation(**{**self.__dict__, "scores": None}))
        del line["scores"]
        return line

    @classmethod
    def from_json(cls, line: dict[str, Any], scores: pa.Table | None = None) -> Evaluation:
        """Inverse of to_json. Keys that this version does not know are left out."""
        known = {name: line[name] for name in cls.__dataclass_fields__ if name in line}
        return cls(**{**known, "point": Point.from_json(line["point"]), "scores": scores})
