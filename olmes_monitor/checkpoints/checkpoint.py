"""What a saved checkpoint is, before anything of it is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from olmes_monitor.errors import SetupError

Kind = Literal["transformers", "lightning", "lightning_sharded", "dcp", "peft", "state_dict", "hub"]
"""transformers: a folder with config and weights. lightning: a `.ckpt` file. lightning_sharded: the folder of a Lightning
FSDP or ModelParallel strategy. dcp: a torch.distributed.checkpoint folder. peft: an adapter folder. state_dict: a plain
file of tensors. hub: a revision of a hub repository."""


class CheckpointError(SetupError):
    """One checkpoint that cannot be read or does not fit; the others of a scan are not touched by it."""

    def __init__(self, message: str, *, vanished: bool = False) -> None:
        super().__init__(message)
        self.vanished = vanished
        """Whether its files were deleted while it was looked at (a trainer's rotation)."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was found: where, of what kind, and where training stood."""

    path: Path | str
    """The file or folder; for kind "hub" the repository's name (or the folder that stands in for it)."""
    kind: Kind
    step: int | None
    """Optimizer step; None if nothing tells it."""
    tokens: int | None
    """Tokens trained on; None if nothing tells them."""
    dated_by: str = ""
    """What told `tokens`: "trainer state", "callback state", "loop state", "name", "tokens per step"; "" if nothing did."""
    revision: str | None = None
    """Kind "hub" only."""
    key: str = ""
    """What the content is known by: changes if the checkpoint's files change (names, sizes, headers; not their times)."""
    problem: str | None = None
    """Why it must not be scored (half-written, truncated, no weights); None if it looks whole."""
    may_mend: bool = False
    """Whether `problem` may go away by waiting (a checkpoint being written)."""
    files: tuple[Path, ...] = field(default=(), repr=False)
    """The files that hold weights, in the order they are read."""

    @property
    def name(self) -> str:
        """What a table calls it: the last part of the path, or the revision."""
        return self.revision if self.revision is not None else Path(self.path).name
