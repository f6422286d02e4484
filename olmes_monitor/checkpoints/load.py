"""Loading a checkpoint: every weight of the model from it, or an error and no score."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from olmes_monitor.checkpoints import build
from olmes_monitor.checkpoints.checkpoint import Checkpoint, CheckpointError
from olmes_monitor.checkpoints.complete import weight_files
from olmes_monitor.checkpoints.hub import as_folder
from olmes_monitor.checkpoints.kinds import describe, kind_of
from olmes_monitor.checkpoints.match import Slot, fill, misfits, slots_of, splits, strip_prefix
from olmes_monitor.checkpoints.sharded import read_shards
from olmes_monitor.checkpoints.weights import read_tensors, reading
from olmes_monitor.errors import SetupError

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
_AS_SAVED = "_olmes_monitor_as_saved"
_ROTARY = r"rotary_emb\.inv_freq"  # computed, though old versions saved it
_TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "*.tiktoken")


def open_model(
    checkpoint: Checkpoint,
    *,
    config: str | Path | None = None,
    model_factory: str | Callable[[], nn.Module] | None = None,
    base: str | None = None,
    dtype: str = "auto",
    device: torch.device,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
) -> nn.Module:
    """The checkpoint's model with its weights, on `device`, in eval mode; `load_state` puts others' weights into it.

    config: a folder with config.json, that file or a hub id, where the checkpoint has none. model_factory: makes the model
    instead, "package.module:function" or a function without arguments. base: the model under an adapter, where
    adapter_config.json does not say or says wrong. dtype: "auto" is as saved. allow_pickle: read files that could run code.

    Raises CheckpointError for whatever keeps this checkpoint from being loaded whole, SetupError for a wrong argument.
    """
    if dtype not in DTYPES:
        raise SetupError(f"there is no dtype {dtype!r}; it is one of {', '.join(DTYPES)}")
    checkpoint = as_folder(checkpoint) or checkpoint if checkpoint.kind == "hub" else checkpoint
    state = read_state(checkpoint, allow_pickle=allow_pickle)
    try:
        if checkpoint.kind == "peft":
            under = _open_base(checkpoint, base, dtype, allow_pickle, trust_remote_code)
            model = build.build_adapted(checkpoint, under)
        elif model_factory is not None:
            model = build.make(model_factory)
            model = model if dtype == "auto" else model.to(getattr(torch, dtype))
        else:
            found = build.find_config(checkpoint, config, allow_pickle, trust_remote_code)
            model = build.build(found, state, dtype, checkpoint.path, trust_remote_code)
    except CheckpointError as error:
        if Path(checkpoint.path).exists():
            raise
        raise CheckpointError(f"{checkpoint.path} vanished while it was read", vanished=True) from error
    # An adapter's own weights keep peft's dtype: float32 above a bfloat16 base is how it trains.
    object.__setattr__(model, _AS_SAVED, dtype == "auto" and checkpoint.kind != "peft")
    load_state(model, state, checkpoint)
    return model.to(device).eval()


def read_state(checkpoint: Checkpoint, *, allow_pickle: bool = False) -> dict[str, Tensor]:
    """The checkpoint's tensors on the CPU, in memory of their own, by the names they were saved under; no optimizer's.

    One process reads all shards, whatever ranks wrote them, and no collective is called: a thread may do it ahead.
    Raises CheckpointError, `vanished` if files were deleted meanwhile.
    """
    if checkpoint.kind == "hub":
        checkpoint = as_folder(checkpoint) or checkpoint
    path = Path(checkpoint.path)
    if checkpoint.kind in ("dcp", "lightning_sharded"):
        return read_shards(path, allow_pickle)
    with reading(path):
        files = weight_files(path) if path.is_dir() else (path,)
        if not files:
            raise CheckpointError(f"{path} holds no weights")
    state: dict[str, Tensor] = {}
    for file in files:
        state.update(read_tensors(file, allow_pickle))
    return state


def load_state(model: nn.Module, state: dict[str, Tensor], checkpoint: Checkpoint) -> None:
    """Put `state` into a model of `open_model` in place, all of it or, if anything does not fit, nothing of it.

    Prefixes are stripped until names match. Every parameter and persistent buffer must be saved, in its shape, but for the
    other names of a tied one; every saved tensor must have its place. Raises CheckpointError with the missing, unexpected
    and wrongly shaped names.
    """
    place = f"{checkpoint.path}" + (f" at {checkpoint.revision}" if checkpoint.revision else "")
    slots = _adapter_slots(model, state, place) if hasattr(model, "peft_config") else slots_of(model)
    named = _without_ignored(model, strip_prefix(state, slots, place), slots)
    wrong = misfits(named, slots)
    # Numbers of another type would be converted in silence.
    if wrong is not None and _knows_other_names(model) and all(tensor.is_floating_point() for tensor in named.values()):
        made, differs = build.remake(model, named, build.saved_dtype(state), place)
        if differs is None:
            named, slots = _values(made), slots_of(model)
            wrong = misfits(named, slots)
    if wrong is not None:
        raise CheckpointError(f"{place} does not fit the model: {wrong}")
    fill(model, slots, named, getattr(model, _AS_SAVED, False))


def find_tokenizer(checkpoint: Checkpoint, name: str | None, trust_remote_code: bool = False) -> Any:
    """The tokenizer called `name` (a folder or hub id), else the checkpoint's own, its folder's, or its parent folder's.

    An adapter without one takes its base model's. Raises CheckpointError if there is none. (That its ids fit the embedding
    is checked where requests are encoded.)
    """
    from transformers import AutoTokenizer

    places = [name] if name is not None else [str(folder) for folder in _tokenizer_folders(checkpoint)]
    if not places:
        raise CheckpointError(
            f"{checkpoint.path} has no tokenizer, nor has the folder above; name one with --tokenizer"
        )
    try:
        return AutoTokenizer.from_pretrained(places[0], trust_remote_code=trust_remote_code)
    except Exception as error:
        cause = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        mend = (
            "its code is run only with --trust-remote-code" if "trust_remote_code" in str(error) else "see --tokenizer"
        )
        raise CheckpointError(f"{places[0]} has no usable tokenizer: {cause}; {mend}") from error


def _open_base(
    checkpoint: Checkpoint, base: str | None, dtype: str, allow_pickle: bool, trust_remote_code: bool
) -> nn.Module:
    name, revision = build.adapter_base(checkpoint, base)
    path = Path(name)
    kind = kind_of(path) if path.is_dir() else "hub"
    if kind is None or (path.is_absolute() and not path.is_dir()):
        raise CheckpointError(
            f"{checkpoint.path} is an adapter of {name}, where no model is; name its base with --base"
        )
    found = describe(path, kind) if kind != "hub" else Checkpoint(name, "hub", None, None, revision=revision)
    try:
        return open_model(
            found,
            dtype=dtype,
            device=torch.device("cpu"),
            allow_pickle=allow_pickle,
            trust_remote_code=trust_remote_code,
        )
    except CheckpointError as error:
        raise CheckpointError(f"the base of {checkpoint.path}: {error}; another can be named with --base") from error


def _adapter_slots(model: nn.Module, state: dict[str, Tensor], place: str) -> list[Slot]:
    """What an adapter's file must hold, by the names peft saves it under; the tensors are the model's own.

    Raises CheckpointError for a kind of adapter whose file holds something else than the model's tensors.
    """
    from peft import get_peft_model_state_dict

    saved: dict[str, Tensor] = {}
    # peft saves embeddings that were resized or adapted with it; whether it did, only the file tells.
    for embeddings in (False, True):
        saved = get_peft_model_state_dict(model, save_embedding_layers=embeddings)
        if len(saved) >= len(state):
            break
    own = {value.data_ptr() for value in model.state_dict().values()}
    if any(value.data_ptr() not in own for value in saved.values()):
        raise CheckpointError(
            f"{place} is an adapter of a kind that a scan cannot swap in; merge it into its model first"
        )
    return [Slot(tensor, (name,)) for name, tensor in saved.items()]


def _without_ignored(model: nn.Module, named: dict[str, Tensor], slots: list[Slot]) -> dict[str, Tensor]:
    """Without what the architecture declares to be of no consequence: masks and tables that old versions saved.

    Such a pattern ("attn.bias") may fit a weight's name too ("c_attn.bias"); the model's own names are never left out.
    """
    patterns = [*(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ())]
    if any(name.endswith("rotary_emb.inv_freq") for name, _ in model.named_buffers()):
        patterns.append(_ROTARY)
    own = {rest for slot in slots for name in slot.names for _, rest in splits(name)}
    return {
        name: tensor
        for name, tensor in named.items()
        if name in own or not any(re.search(pattern, name) for pattern in patterns)
    }


def _knows_other_names(model: nn.Module) -> bool:
    """Whether transformers loads this model: names on disk may differ from those in memory."""
    from transformers import PreTrainedModel

    return isinstance(model, PreTrainedModel)


def _values(model: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def _tokenizer_folders(checkpoint: Checkpoint) -> list[Path]:
    checkpoint = as_folder(checkpoint) or checkpoint if checkpoint.kind == "hub" else checkpoint
    path = Path(checkpoint.path).absolute()
    folders = [path, path.parent] if path.is_dir() else [path.parent, path.parent.parent]
    if checkpoint.kind == "peft":
        folders.append(Path(build.adapter_base(checkpoint, None)[0]))
    return [folder for folder in folders if any(any(folder.glob(kind)) for kind in _TOKENIZER_FILES)]
