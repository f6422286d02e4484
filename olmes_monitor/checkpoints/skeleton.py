"""One model and one plan for a whole scan: the next checkpoint's weights are read while this one is scored, then swapped in."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from olmes_monitor.checkpoints import load
from olmes_monitor.checkpoints.checkpoint import Checkpoint
from olmes_monitor.checkpoints.hub import as_folder
from olmes_monitor.errors import OLMESError, SetupError
from olmes_monitor.record.evaluation import Evaluation, Point
from olmes_monitor.scoring.parallel import Failure, Ranks
from olmes_monitor.scoring.score import Progress, Scorer

if TYPE_CHECKING:
    from olmes_monitor.suite import Suite

logger = logging.getLogger("olmes_monitor")

VOLATILE = ("_name_or_path", "transformers_version")
"""What two configs of one architecture may differ in."""
DEFINING = ("config.json", "adapter_config.json", "*.py")
TOKENIZER = (
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.tiktoken",
    "*.model",
)


class ChangedError(OLMESError):
    """A checkpoint's files changed while it was read; waiting may mend it."""


@dataclass(frozen=True)
class Loading:
    """How checkpoints become models: the settings of `open_model` that hold for a whole scan."""

    device: torch.device
    dtype: str = "auto"
    config: str | None = None
    model_factory: str | Callable[[], nn.Module] | None = None
    base: str | None = None
    tokenizer: str | None = None
    allow_pickle: bool = False
    trust_remote_code: bool = False
    device_map: str | None = None
    """transformers' own, for a model beyond one device; of folders in its format and hub repositories."""


class Skeleton:
    """Scores checkpoints one after another in one model with one plan.

    A checkpoint goes into the model that is there if its config, tokenizer and dtype are those the model was made with,
    and into a new one otherwise: equal shapes do not make equal models (a RoPE base may change in mid-training).
    """

    def __init__(self, suite: Suite, loading: Loading, ranks: Ranks | None = None, **scoring: Any) -> None:
        """`ranks`: the job's, where all of them score each checkpoint together. `scoring`: settings of Scorer."""
        self.suite, self.loading, self.scoring = suite, loading, scoring
        self.ranks = ranks or Ranks()
        self.opened = 0
        """Models made so far; each costs encoding and planning."""
        self.swapped = 0
        """Checkpoints whose weights went into a model that was there."""
        self.scorer: Scorer | None = None
        self._model: nn.Module | None = None
        self._key = ""
        self._dtypes: set[torch.dtype] | None = None
        self._reading: tuple[Checkpoint, Reading] | None = None

    def ahead(self, checkpoint: Checkpoint) -> None:
        """Begin to read a checkpoint that will be scored next. What goes wrong shows when its turn comes."""
        with contextlib.suppress(OSError, OLMESError):
            here = checkpoint if checkpoint.kind != "hub" else as_folder(checkpoint, download=False)
            # What is not on this machine yet most likely fits; whether it does is seen once it is here.
            if self._model is not None and (here is None or skeleton_key(here, self.loading) == self._key):
                self._reading = checkpoint, Reading(checkpoint, self.loading.allow_pickle)

    def put(self, checkpoint: Checkpoint, stamp: tuple | None = None) -> None:
        """Make the model this checkpoint's. A collective of the job's ranks.

        stamp: of the files as they were found, see `stamp_of`. Raises OLMESError where the checkpoint cannot be loaded
        (on all ranks where one cannot), ChangedError if its files are not what was found.
        """
        error: Exception | None = None
        fresh = False
        try:
            fresh = self._swap_or_open(checkpoint)
            if stamp is not None and stamp_of(checkpoint) != stamp:
                raise ChangedError(f"{checkpoint.path} changed while it was read")
        except Exception as failure:
            error = failure
        if self.ranks.size > 1:
            self.ranks.agree(None if error is None else Failure(f"loading {checkpoint.name}", error))
        elif error is not None:
            raise error
        if fresh or self.scorer is None:
            self._plan(checkpoint)

    def evaluate(self, point: Point, progress: Progress | None = None) -> Evaluation:
        """Score the model as `put` left it."""
        assert self.scorer is not None
        return self.scorer.evaluate(point, progress)

    def _swap_or_open(self, checkpoint: Checkpoint) -> bool:
        """Whether a new model was made."""
        reading, self._reading = self._reading, None
        if checkpoint.kind == "hub":
            if reading is not None:
                reading[1].wait()  # it downloads
            key = skeleton_key(as_folder(checkpoint) or checkpoint, self.loading)
        else:
            key = skeleton_key(checkpoint, self.loading)
        if self._model is not None and key == self._key:
            if reading is None or reading[0] != checkpoint:
                state = load.read_state(checkpoint, allow_pickle=self.loading.allow_pickle)
            else:
                state = reading[1].result()
            if self.loading.dtype != "auto" or self._dtypes in (None, dtypes_of(state)):
                load.load_state(self._model, state, checkpoint)
                self.swapped += 1
                return False
            self._dtypes = dtypes_of(state)  # what this one is saved in; the next like it goes into its model
            del state
        else:
            self._dtypes = None
        # The old model goes first: two may not fit. Until the new one is planned, nothing can be scored.
        self._model = self.scorer = None
        self._open(checkpoint)
        self._key = key
        return True

    def _open(self, checkpoint: Checkpoint) -> None:
        how = self.loading
        self._model = (
            _open_spread(checkpoint, how)
            if how.device_map is not None
            else load.open_model(
                checkpoint,
                config=how.config,
                model_factory=how.model_factory,
                base=how.base,
                dtype=how.dtype,
                device=how.device,
                allow_pickle=how.allow_pickle,
                trust_remote_code=how.trust_remote_code,
            )
        )
        if self._dtypes is None and checkpoint.kind != "peft":  # of which only the adapter is saved, not the base
            self._dtypes = {p.dtype for p in self._model.parameters() if p.is_floating_point()}
        self.opened += 1

    def _plan(self, checkpoint: Checkpoint) -> None:
        assert self._model is not None
        tokenizer = load.find_tokenizer(checkpoint, self.loading.tokenizer, self.loading.trust_remote_code)
        self.scorer = Scorer(self._model, tokenizer, self.suite, **self.scoring)


class Reading:
    """A checkpoint's tensors, read in a thread."""

    def __init__(self, checkpoint: Checkpoint, allow_pickle: bool) -> None:
        self._state: dict[str, Tensor] | None = None
        self._error: Exception | None = None

        def read() -> None:
            try:
                self._state = load.read_state(checkpoint, allow_pickle=allow_pickle)
            except Exception as error:
                self._error = error

        # A daemon: an interrupted scan does not wait for a large file.
        self._thread = threading.Thread(target=read, daemon=True, name=f"reading {checkpoint.name}")
        self._thread.start()

    def wait(self) -> None:
        """Until it is read, or has failed."""
        self._thread.join()

    def result(self) -> dict[str, Tensor]:
        """What was read; waits for it. Raises what reading raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        assert self._state is not None
        return self._state


def _open_spread(checkpoint: Checkpoint, how: Loading) -> nn.Module:
    """A model that transformers lays over several devices. Its weights are put in once more, whole or not at all, by what
    puts in the next checkpoint's: transformers alone would draw missing ones at random."""
    from transformers import AutoModelForCausalLM

    folder = (as_folder(checkpoint) or checkpoint) if checkpoint.kind == "hub" else checkpoint
    if folder.kind != "transformers":
        raise SetupError(
            f"--device-map is for folders in transformers' format; {checkpoint.name} is of kind {folder.kind}"
        )
    dtype = "auto" if how.dtype == "auto" else getattr(torch, how.dtype)
    model = AutoModelForCausalLM.from_pretrained(
        folder.path, device_map=how.device_map, dtype=dtype, trust_remote_code=how.trust_remote_code
    )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise SetupError(f"{checkpoint.name} does not fit these devices: weights left on disk or CPU cannot be swapped")
    load.load_state(model, load.read_state(checkpoint, allow_pickle=how.allow_pickle), checkpoint)
    return model.eval()


def skeleton_key(checkpoint: Checkpoint, loading: Loading) -> str:
    """Equal for checkpoints whose weights may go into one model: kind, config and tokenizer, as far as they lie beside
    the weights; where no config does, the folder that the checkpoint lies in (one run's)."""
    path = Path(checkpoint.path)
    folder = path if path.is_dir() else None
    digest = hashlib.sha256(checkpoint.kind.encode())
    if loading.config is None and loading.model_factory is None:
        defining = _files(folder, DEFINING)
        digest.update(b"" if defining else str(path.parent).encode())
        for file in defining:
            digest.update(file.name.encode() + _content(file))
    if loading.tokenizer is None:
        for file in _files(folder, TOKENIZER):
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def stamp_of(checkpoint: Checkpoint) -> tuple:
    """Sizes and times of the files that hold weights; None for one that is gone."""
    return tuple(_stat(path) for path in checkpoint.files)


def dtypes_of(state: dict[str, Tensor]) -> set[torch.dtype]:
    """The floating dtypes in which tensors were saved."""
    return {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}


def _files(folder: Path | None, kinds: tuple[str, ...]) -> list[Path]:
    return [] if folder is None else sorted(path for kind in kinds for path in folder.glob(kind) if path.is_file())


def _content(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix != ".json":
        return data
    try:
        config = json.loads(data)
    except ValueError:
        return data
    if isinstance(config, dict):
        config = {name: value for name, value in config.items() if name not in VOLATILE}
    return json.dumps(config, sort_keys=True).encode()


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
