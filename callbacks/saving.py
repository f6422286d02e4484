"""At which evaluations the trainer is asked for a checkpoint."""

from __future__ import annotations

from typing import Any, Literal

from olmes_monitor.errors import SetupError
from olmes_monitor.record.evaluation import Evaluation
from olmes_monitor.record.run import AVERAGE, average_facts

SaveAt = bool | Literal["best", "crossover"]
"""True: each. "best": those whose average score is the best so far. "crossover": where MCF overtakes CF on average."""


class SavePolicy:
    """Decides from the evaluations alone, so that all ranks decide the same."""

    def __init__(self, at: SaveAt) -> None:
        if at not in (True, False, "best", "crossover"):
            raise SetupError(f'save_checkpoint takes True, False, "best" or "crossover"; got {at!r}')
        self.at = at
        self.best: float | None = None
        """The best average score so far."""
        self.above = False
        """Whether MCF was above CF, and above what knows nothing, at the evaluation before."""

    def wants(self, evaluation: Evaluation) -> bool:
        """Take an evaluation in, and say whether its point is to be saved. (At 0 tokens there is nothing to keep.)"""
        facts = average_facts(evaluation)
        score, was_above = evaluation.metrics.get(f"olmes/score/{AVERAGE}"), self.above
        best = score is not None and (self.best is None or score > self.best)
        if best:
            self.best = score
        if "gap" in facts:
            self.above = facts["gap"] > 0 and facts["mcf"] > facts.get("floor", 0.0)
        wanted = {True: True, False: False, "best": best, "crossover": self.above and not was_above}[self.at]
        return wanted and evaluation.point.tokens > 0

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint; JSON can hold it."""
        return {"best": self.best, "above": self.above}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of state_dict."""
        self.best, self.above = state.get("best"), bool(state.get("above", False))
