"""Revisions of a hub repository as checkpoints: on the hub, in its cache on this machine, or in a folder laid out like it."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import replace
from pathlib import Path

from olmes_monitor.checkpoints.checkpoint import Checkpoint, CheckpointError
from olmes_monitor.checkpoints.kinds import describe, is_hub_folder, kind_of
from olmes_monitor.checkpoints.names import stage_in
from olmes_monitor.errors import SetupError

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SMALL_FILES = ["*.json", "*.model", "*.txt", "*.tiktoken", "*.py"]


def find_revisions(place: str | Path, pattern: str | None) -> dict[str, str]:
    """{revision: commit} of a repository's branches and tags that match `pattern` (shell style: stage1-step*).

    Raises SetupError if there is no such repository, no pattern, nothing that matches, or if it matches several stages of
    one training, whose steps and tokens each begin at 0 again.
    """
    if pattern is None:
        absent = "" if Path(place).exists() else f"there is no folder {place}; if it is a repository on the hub: "
        raise SetupError(f"{absent}{place} has many revisions, say which with --revisions 'step*'")
    found = {name: commit for name, commit in _all_revisions(place).items() if fnmatch.fnmatchcase(name, pattern)}
    if not found:
        raise SetupError(f"no revision of {place} matches {pattern!r}")
    stages = sorted({stage_in(name) for name in found})
    if len(stages) > 1:
        named = ", ".join(stage or "none" for stage in stages)
        raise SetupError(f"{pattern!r} matches several stages ({named}), each with tokens of its own; name one of them")
    return found


def as_folder(checkpoint: Checkpoint, download: bool = True) -> Checkpoint | None:
    """The folder on this machine that holds a revision; downloaded first if need be, or None without `download`.

    Raises CheckpointError if it cannot be had.
    """
    place = Path(checkpoint.path)
    if is_hub_folder(place):
        folder: Path | None = place / "snapshots" / _commit(place, checkpoint.revision or "")
    else:
        folder = _download(str(checkpoint.path), checkpoint.revision or "main", download)
    if folder is None:
        return None
    if not folder.is_dir():
        raise CheckpointError(f"{checkpoint.path} has no files of revision {checkpoint.revision}", vanished=True)
    kind = kind_of(folder)
    if kind is None:
        raise CheckpointError(
            f"revision {checkpoint.revision} of {checkpoint.path} holds no weights this package reads"
        )
    return replace(describe(folder, kind), step=checkpoint.step, tokens=checkpoint.tokens, key=checkpoint.key)


def _all_revisions(place: str | Path) -> dict[str, str]:
    if is_hub_folder(Path(place)):
        return _refs(Path(place))
    import huggingface_hub
    from huggingface_hub.constants import HF_HUB_CACHE

    cached = Path(HF_HUB_CACHE) / f"models--{str(place).replace('/', '--')}"
    try:
        refs = huggingface_hub.HfApi().list_repo_refs(str(place))
        return {ref.name: ref.target_commit for ref in (*refs.branches, *refs.tags)}
    except Exception as error:  # no network, offline mode, no such repository: the library has a class for each
        if is_hub_folder(cached):
            return _refs(cached)
        cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SetupError(f"{place} is no folder, and its revisions cannot be listed on the hub: {cause}") from error


def _refs(place: Path) -> dict[str, str]:
    root = place / "refs"
    names = [path.relative_to(root).as_posix() for path in sorted(root.rglob("*")) if path.is_file()]
    return {name: _commit(place, name) for name in names}


def _commit(place: Path, revision: str) -> str:
    try:
        return (place / "refs" / revision).read_text().strip()
    except OSError as error:
        raise CheckpointError(f"{place} has no revision {revision}", vanished=True) from error


def _download(repository: str, revision: str, allowed: bool) -> Path | None:
    """The snapshot's folder: safetensors if it has them, else torch's .bin."""
    import huggingface_hub

    def fetch(*weights: str) -> Path:
        wanted = [*_SMALL_FILES, *weights]
        return Path(
            huggingface_hub.snapshot_download(
                repository, revision=revision, allow_patterns=wanted, local_files_only=not allowed
            )
        )

    try:
        folder = fetch("*.safetensors")
        return folder if any(folder.glob("*.safetensors")) else fetch("*.bin")
    except Exception as error:
        if not allowed:
            return None
        cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"revision {revision} of {repository} cannot be downloaded: {cause}") from error
