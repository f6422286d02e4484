"""A ready layout of a W&B project for these metrics, through W&B's own library (the extra `workspace`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from olmes_monitor.errors import SetupError
from olmes_monitor.record.run import AVERAGE
from olmes_monitor.record.wandb_sink import TOKENS

NAME = "OLMES: cloze and multiple choice"


def need_library() -> Any:
    """The library's workspaces, and SetupError where it is not installed."""
    try:
        import wandb_workspaces.workspaces as workspaces
    except ImportError as error:
        raise SetupError(
            "a workspace needs W&B's own library: pip install 'olmes_monitor[workspace]' (wandb-workspaces)"
        ) from error
    return workspaces


def make_workspace(entity: str, project: str, tasks: Sequence[str]) -> Any:
    """A wandb_workspaces Workspace, not yet saved: `.save()` puts it on the server and `.url` says where.

    Sections: the average, both curves of each task in one panel, the gaps, what evaluations cost. All are drawn from the
    logged metrics against olmes/tokens, so any number of runs is overlaid.
    Raises SetupError where wandb-workspaces is not installed.
    """
    workspaces = need_library()
    import wandb_workspaces.reports.v2 as panels

    def lines(title: str, *names: str, **settings: Any) -> Any:
        y: list[Any] = [f"olmes/{name}" for name in names]
        return panels.LinePlot(title=title, x=TOKENS, y=y, title_x="tokens", **settings)

    def both(task: str) -> Any:
        return lines(task, f"cf/{task}", f"mcf/{task}", title_y="accuracy")

    several: list[str] = [AVERAGE] if len(tasks) > 1 else []
    overview = [panel for task in several for panel in (both(task), lines("OLMES score", f"score/{task}"))]
    gaps = lines("MCF minus CF, every task", *(f"gap/{task}" for task in [*tasks, *several]), title_y="gap")
    cost = [lines("seconds of an evaluation", "seconds"), lines("share of the wall time", "overhead")]
    sections = {
        "OLMES": [*overview, gaps],
        "CF and MCF": [both(task) for task in tasks],
        "Where MCF overtook CF": [
            lines(task, *(f"crossover/{task}/{end}" for end in ("lo", "tokens", "hi"))) for task in tasks
        ],
        "What it costs": cost,
    }
    return workspaces.Workspace(
        entity=entity,
        project=project,
        name=NAME,
        sections=[
            workspaces.Section(name=name, panels=found, is_open=number < 2)
            for number, (name, found) in enumerate(sections.items())
        ],
        settings=workspaces.WorkspaceSettings(x_axis=TOKENS),
    )
