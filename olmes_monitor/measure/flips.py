"""Why MCF overtook CF: which questions turned, and whether MCF learned the form or the answers. Pure functions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from olmes_monitor.measure.accuracy import UNDEFINED, mean, stderr

Right = NDArray[np.bool_]
"""(questions,)"""

WINDOW = 3
"""Evaluations on either side that vote on what the model could do then: one alone is full of answers that come and go."""

CLEAR = 2.0
"""Standard errors of the gap beyond which one form is clearly ahead."""

KINDS: dict[str, str] = {
    "kept": "MCF right before and after",
    "format": "MCF learned the form: CF already had it right, now MCF has it too",
    "knowledge": "new in MCF alone: neither form had it right before, and CF still has not",
    "shared": "new in both forms: neither had it right before, both have it now",
    "lost": "MCF had it right before and has not now",
    "never": "MCF right neither before nor after",
}
"""What became of a question in MCF; every question is of exactly one kind."""

GAINED = ("format", "knowledge", "shared")


@dataclass(frozen=True, eq=False)
class Flips:
    """What either form had right, by majority of the evaluations before and after, and what follows from that."""

    before: NDArray[np.int64]
    """Evaluations that vote on the state before, their positions."""
    after: NDArray[np.int64]
    """Evaluations that vote on the state after."""
    cf_before: Right
    mcf_before: Right
    cf_after: Right
    mcf_after: Right
    subjects: NDArray[np.object_] | None = None
    """(questions,) MMLU's subjects, over which points are averaged; None elsewhere."""

    @property
    def n(self) -> int:
        """Number of questions."""
        return len(self.cf_before)

    @property
    def kinds(self) -> dict[str, Right]:
        """Kind → which questions are of it. They share no question, and together they are all."""
        gained = self.mcf_after & ~self.mcf_before
        new = gained & ~self.cf_before
        return {
            "kept": self.mcf_before & self.mcf_after,
            "format": gained & self.cf_before,
            "knowledge": new & ~self.cf_after,
            "shared": new & self.cf_after,
            "lost": self.mcf_before & ~self.mcf_after,
            "never": ~self.mcf_before & ~self.mcf_after,
        }

    @property
    def counts(self) -> dict[str, int]:
        """Kind → number of questions. MCF's rise in questions is format + knowledge + shared − lost."""
        return {kind: int(which.sum()) for kind, which in self.kinds.items()}

    @property
    def shares(self) -> dict[str, float]:
        """Kind → share of the questions, averaged as the headline is (over subjects, where there are some).

        mcf_after − mcf_before = format + knowledge + shared − lost, here too.
        """
        which = np.stack(list(self.kinds.values()))
        return dict(zip(self.kinds, mean(which, self.subjects).tolist(), strict=True))

    @property
    def accuracies(self) -> dict[str, float]:
        """cf_before, mcf_before, cf_after, mcf_after: shares right by majority, averaged as the headline is."""
        names = ("cf_before", "mcf_before", "cf_after", "mcf_after")
        return {name: float(mean(getattr(self, name), self.subjects)) for name in names}

    @property
    def flipped(self) -> Right:
        """CF right and MCF wrong before, MCF right and CF wrong after: where the lead changed hands."""
        return self.cf_before & ~self.mcf_before & self.mcf_after & ~self.cf_after

    @property
    def flipped_back(self) -> Right:
        """The opposite: MCF right and CF wrong before, CF right and MCF wrong after."""
        return self.mcf_before & ~self.cf_before & self.cf_after & ~self.mcf_after

    @property
    def format_share(self) -> float | None:
        """Share of the questions MCF gained that CF already had right; None where it gained none."""
        counts = self.counts
        gained = sum(counts[kind] for kind in GAINED)
        return counts["format"] / gained if gained else None

    @property
    def format_open(self) -> float | None:
        """The same share among all questions MCF had wrong before: what gains that do not look at CF would show."""
        wrong = ~self.mcf_before
        return float(self.cf_before[wrong].mean()) if wrong.any() else None


def explain_crossing(
    tokens: ArrayLike,
    cf: ArrayLike,
    mcf: ArrayLike,
    at: float | None,
    *,
    window: int = WINDOW,
    subjects: ArrayLike | None = None,
) -> Flips:
    """What changed between before and after a crossing, question by question.

    tokens: int (evaluations,). cf, mcf: what was answered right, bool or 0/1 floats (evaluations, questions); a NaN takes
    its whole evaluation out. at: tokens of the crossing; None compares the beginning with the end. window: how many
    evaluations vote on either side (`windows` says which). subjects: a label for each question (MMLU).
    Raises ValueError for shapes that do not fit, a window below 1, and fewer than two evaluations with values.
    """
    tokens = np.asarray(tokens)
    cf, mcf = np.asarray(cf, dtype=np.float64), np.asarray(mcf, dtype=np.float64)
    if cf.ndim != 2 or cf.shape != mcf.shape or tokens.shape != cf.shape[:1]:
        raise ValueError(
            f"tokens has shape {tokens.shape}, cf {cf.shape}, mcf {mcf.shape}; cf and mcf are (evaluations, questions)"
        )
    labels = None if subjects is None else np.asarray(subjects)
    gap, error = mean(mcf - cf, labels), stderr(mcf - cf, labels)
    before, after = windows(tokens, gap, error, at, window)
    return Flips(
        before,
        after,
        cf_before=majority(cf[before]),
        mcf_before=majority(mcf[before]),
        cf_after=majority(cf[after]),
        mcf_after=majority(mcf[after]),
        subjects=labels,
    )


def windows(
    tokens: NDArray[np.int64], gap: NDArray[np.float64], error: NDArray[np.float64], at: float | None, size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(before, after): positions of at most `size` evaluations with values on either side of the crossing.

    At the crossing itself the forms are equal and little has turned yet. So before are the last evaluations up to the
    last one at which CF is clearly ahead (gap below −2 standard errors), after the first ones from the first at which
    MCF is (above 2); where a side has none, those next to the crossing. Without a crossing (at=None): the first
    and the last ones. A side never takes more than half of all evaluations.
    gap, error: (evaluations,), NaN where an evaluation has no value.
    Raises ValueError for a size below 1 and where a side has no evaluation.
    """
    if size < 1:
        raise ValueError(f"window must be at least 1 evaluation, not {size}")
    known = np.flatnonzero(np.isfinite(gap))
    size = max(1, min(size, len(known) // 2))
    early, late = (
        (known[:size], known[size:]) if at is None else (known[tokens[known] <= at], known[tokens[known] > at])
    )
    if not len(early) or not len(late):
        raise ValueError("nothing to compare: an evaluation with values is needed before and after the crossing")
    if at is None:
        return early, late[-size:]
    behind = np.flatnonzero(gap[early] < -CLEAR * error[early])
    ahead = np.flatnonzero(gap[late] > CLEAR * error[late])
    end = behind[-1] + 1 if len(behind) else len(early)
    start = ahead[0] if len(ahead) else 0
    return early[max(0, end - size) : end], late[start : start + size]


def in_words(flips: Flips) -> str:
    """One sentence: whether what MCF gained is what CF already had, or more than that would be by chance.

    Compares the share of CF's right answers among MCF's gains with their share among all that MCF had wrong
    (`format_share`, `format_open`); a difference within two standard errors of that share is no sign of either.
    """
    counts, share, opened = flips.counts, flips.format_share, flips.format_open
    if share is None or opened is None:
        return "MCF gained no question"
    gained = sum(counts[kind] for kind in GAINED)
    found = (
        f"of {gained} questions that MCF gained, CF already had {100 * share:.0f} % right (of all that MCF had wrong: "
    )
    found += f"{100 * opened:.0f} %): "
    doubt = CLEAR * math.sqrt(opened * (1 - opened) / gained)
    if share - opened > doubt:
        return found + "MCF learned the form, and with it said what CF knew"
    if opened - share > doubt:
        return found + "MCF learned answers that CF did not have"
    return found + "no more and no less than by chance"


def majority(right: NDArray[np.float64]) -> Right:
    """Which questions were right in more than half of the evaluations, (questions,). right: (evaluations, questions)."""
    return right.mean(axis=0) > 0.5


def usual_answer(answers: ArrayLike, right: Right, gold: ArrayLike) -> NDArray[np.int64]:
    """What was answered in a window, int64 (questions,): the gold choice where the majority was right, else the most
    frequent other answer, the latest of equally frequent ones; −1 where there is none.

    answers: int (evaluations, questions), −1 where a question has no answer. right: (questions,), `majority`.
    """
    answers, gold = np.asarray(answers, dtype=np.int64), np.asarray(gold, dtype=np.int64)
    given = (answers != UNDEFINED) & (answers != gold)
    # Among wrong answers: how often each evaluation's own answer occurs, with a later evaluation winning a tie.
    frequency = (answers[:, None, :] == answers[None, :, :]).sum(axis=1)
    rank = np.where(given, frequency * len(answers) + np.arange(len(answers))[:, None], -1)
    best = rank.argmax(axis=0)
    columns = np.arange(answers.shape[1])
    wrong = np.where(rank[best, columns] >= 0, answers[best, columns], UNDEFINED)
    return np.where(right, gold, wrong)
