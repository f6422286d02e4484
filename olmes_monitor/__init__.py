"""Ask a language model the same OLMES questions while it trains, and see where multiple choice overtakes cloze.

Importing this package is cheap: torch, transformers and lightning load when a name that needs them is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name → the module that defines it. Everything else in the package is private.
_HOME = {
    "OLMESCallback": "olmes_monitor.callbacks",
    "Monitor": "olmes_monitor.monitor",
    "Schedule": "olmes_monitor.schedule",
    "Refine": "olmes_monitor.refine",
    "score": "olmes_monitor.scoring.score",
    "load_suite": "olmes_monitor.suite",
    "Suite": "olmes_monitor.suite",
    "Task": "olmes_monitor.suite",
    "Question": "olmes_monitor.suite",
    "load_run": "olmes_monitor.record",
    "Run": "olmes_monitor.record",
    "Evaluation": "olmes_monitor.record",
    "Point": "olmes_monitor.record",
    "find_crossover": "olmes_monitor.measure",
    "compare_crossovers": "olmes_monitor.record.compare",
    "Crossover": "olmes_monitor.measure",
    "OLMESError": "olmes_monitor.errors",
}

__all__ = [
    "Crossover",
    "Evaluation",
    "Monitor",
    "OLMESCallback",
    "OLMESError",
    "Point",
    "Question",
    "Refine",
    "Run",
    "Schedule",
    "Suite",
    "Task",
    "__version__",
    "compare_crossovers",
    "find_crossover",
    "load_run",
    "load_suite",
    "score",
]

if TYPE_CHECKING:
    from olmes_monitor.callbacks import OLMESCallback
    from olmes_monitor.errors import OLMESError
    from olmes_monitor.measure import Crossover, find_crossover
    from olmes_monitor.monitor import Monitor
    from olmes_monitor.record import Evaluation, Point, Run, load_run
    from olmes_monitor.record.compare import compare_crossovers
    from olmes_monitor.refine import Refine
    from olmes_monitor.schedule import Schedule
    from olmes_monitor.scoring.score import score
    from olmes_monitor.suite import Question, Suite, Task, load_suite


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
