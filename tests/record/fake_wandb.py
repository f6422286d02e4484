"""A W&B run as far as WandbSink uses one, for what needs a server (forked, shared, resumed online) or must misbehave."""

from __future__ import annotations

from typing import Any


class FakeRun:
    """Keeps what it gets. As W&B does, it knows no `step=` and forgets metric rules between runs."""

    disabled = False

    def __init__(self, id: str = "fake", **facts: Any) -> None:
        self.id = id
        self.offline = False
        self.resumed = False
        self.starting_step = 0
        self.project, self.entity, self.group, self.url, self.dir = (
            "p",
            "e",
            "g",
            "https://example.invalid/run",
            "files",
        )
        self.config = _Config()
        self.summary: dict[str, Any] = {}
        self.rules: dict[str, str | None] = {}
        self.rows: list[dict[str, Any]] = []
        self.alerts: list[tuple[str, str]] = []
        self.finished = False
        vars(self).update(facts)

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.rules[name] = step_metric

    def log(self, row: dict[str, Any]) -> None:
        for name in row:
            assert name in self.rules or "/chart/" in name, f"{name} is logged before its axis is known"
        self.rows.append(row)

    def alert(self, title: str, text: str) -> None:
        self.alerts.append((title, text))

    def finish(self) -> None:
        self.finished = True

    def __enter__(self) -> FakeRun:
        return self

    def __exit__(self, *_: Any) -> None:
        self.finish()


class _Config(dict):
    def update(self, values: dict[str, Any], allow_val_change: bool = False) -> None:
        assert allow_val_change, "a resumed run refuses a changed value otherwise"
        super().update(values)
