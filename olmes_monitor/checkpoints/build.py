"""The model that a checkpoint's weights go into, made from its config, its base model or a function of the user's."""

from __future__ import annotations

import copy
import importlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from olmes_monitor.checkpoints.checkpoint import Checkpoint, CheckpointError
from olmes_monitor.checkpoints.match import slots_of, strip_prefix
from olmes_monitor.checkpoints.weights import load_torch, reading
from olmes_monitor.errors import SetupError

NEEDS_CONFIG = (
    "nothing beside it says what model it is; give its config.json or the folder of it with --config, or a function that "
    "makes the model with --model-factory package.module:function"
)
_HYPER_PARAMETERS = (
    "config",
    "model_config",
    "model_name_or_path",
    "pretrained_model_name_or_path",
    "model_name",
    "config_name",
)
"""Names under which LightningModules keep a config, or the folder or hub id of one."""


def find_config(
    checkpoint: Checkpoint, config: str | Path | None, allow_pickle: bool = False, trust_remote_code: bool = False
) -> Any:
    """A transformers config: `config`, else the checkpoint's, its hyper_parameters', or that of a folder above.

    Raises CheckpointError if there is none that can be read.
    """
    path = Path(checkpoint.path)
    if config is not None:
        return _config(config, trust_remote_code)
    if (path / "config.json").is_file():
        return _config(path, trust_remote_code)
    for found in _from_hyper_parameters(checkpoint, allow_pickle):
        return _config(found, trust_remote_code)
    for folder in list(path.absolute().parents)[:2]:
        if (folder / "config.json").is_file():
            return _config(folder, trust_remote_code)
    raise CheckpointError(f"{path}: {NEEDS_CONFIG}")


def build(
    config: Any, state: dict[str, Tensor], dtype: str, place: Path | str, trust_remote_code: bool = False
) -> nn.Module:
    """A transformers causal language model of a config, on the CPU, made the way from_pretrained makes it.

    Its weights are not to be trusted until `load_state` has filled it: `state` only saves drawing them at random.
    """
    from transformers import AutoModelForCausalLM

    if getattr(config, "quantization_config", None) is not None:
        raise CheckpointError(f"{place} is quantized, which a scan does not load; score it with `olmes-monitor eval`")
    with _one_line(place), torch.device("meta"):
        outline = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    named = strip_prefix(state, slots_of(outline), place)
    made, _ = remake(outline, named, saved_dtype(state) if dtype == "auto" else getattr(torch, dtype), place)
    # Tied weights that were saved with different values come untied; the next checkpoint may lack one of the two.
    made.tie_weights()  # type: ignore[operator]
    return made


def remake(model: nn.Module, state: dict[str, Tensor], dtype: torch.dtype, place: Any) -> tuple[nn.Module, str | None]:
    """(a model like `model` with the state in it, what did not fit in words), through transformers' own loading.

    It knows how names and shapes on disk differ from those in memory (experts of a mixture saved one by one, names of old
    versions), which is data of each architecture. Raises CheckpointError if that cannot be undone.
    """
    with _quiet(), _one_line(place, "does not fit the model"):
        made, info = type(model).from_pretrained(  # type: ignore[attr-defined]
            None,
            config=copy.deepcopy(model.config),
            state_dict=dict(state),
            dtype=dtype,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    parts = []
    for kind in ("missing", "unexpected", "mismatched"):
        names = sorted(str(name) for name in info[f"{kind}_keys"])
        if names:
            parts.append(f"{len(names)} {kind}, first {names[0]}")
    parts += [str(message) for message in info.get("error_msgs") or ()]
    return made, "; ".join(parts) or None


def saved_dtype(state: dict[str, Tensor]) -> torch.dtype:
    """The floating dtype that most of the saved numbers have."""
    counts: Counter[torch.dtype] = Counter()
    for tensor in state.values():
        if tensor.is_floating_point():
            counts[tensor.dtype] += tensor.numel()
    return counts.most_common(1)[0][0] if counts else torch.float32


def make(factory: str | Callable[[], nn.Module]) -> nn.Module:
    """The module of --model-factory package.module:function, called without arguments.

    Raises SetupError if there is no such function or it makes no module. The working directory may hold the package.
    """
    if isinstance(factory, str):
        module_name, _, name = factory.partition(":")
        if not module_name or not name:
            raise SetupError(f"--model-factory takes package.module:function; got {factory!r}")
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            factory = getattr(importlib.import_module(module_name), name)
        except (ImportError, AttributeError) as error:
            raise SetupError(f"there is no {factory}: {error}") from error
    made = factory()  # type: ignore[operator]
    if not isinstance(made, nn.Module):
        raise SetupError(f"the model factory made a {type(made).__name__}, and not a torch module")
    return made


def adapter_base(checkpoint: Checkpoint, base: str | None) -> tuple[str, str]:
    """(base model, its revision) of an adapter: `base`, else what its adapter_config.json says. Raises CheckpointError."""
    path = Path(checkpoint.path)
    with reading(path):
        said = json.loads((path / "adapter_config.json").read_text())
        name, revision = said.get("base_model_name_or_path"), said.get("revision")
    if base is not None:
        return base, "main"
    if not name:
        raise CheckpointError(f"{path} is an adapter and does not say of which model; name it with --base")
    return str(name), str(revision or "main")


def build_adapted(checkpoint: Checkpoint, base_model: nn.Module) -> nn.Module:
    """The base model with the adapter's modules in it, whose weights are still to be filled. Raises CheckpointError."""
    try:
        import peft
    except ImportError as error:
        raise CheckpointError(
            f"{checkpoint.path} is an adapter, for which peft is needed: pip install 'olmes_monitor[peft]'"
        ) from error
    with _one_line(checkpoint.path):
        settings = peft.PeftConfig.from_pretrained(str(checkpoint.path))
        if settings.is_prompt_learning:
            # Its answers are longer than what was asked, so positions would be taken for others.
            raise CheckpointError(
                f"{checkpoint.path} is a learned prompt ({settings.peft_type.value}), which is not scored"
            )
        return peft.PeftModel(base_model, settings)


def _from_hyper_parameters(checkpoint: Checkpoint, allow_pickle: bool) -> Iterator[Any]:
    path = Path(checkpoint.path)
    if checkpoint.kind == "lightning_sharded":
        path = path / "meta.pt"
    elif checkpoint.kind != "lightning":
        return
    with reading(path):
        loaded = load_torch(path, allow_pickle)
    given = loaded.get("hyper_parameters") if isinstance(loaded, Mapping) else None
    for name in _HYPER_PARAMETERS:
        value = given.get(name) if isinstance(given, Mapping) else None
        if isinstance(value, str) or (isinstance(value, Mapping) and "model_type" in value):
            yield value


def _config(source: Any, trust_remote_code: bool) -> Any:
    from transformers import AutoConfig

    with _one_line(source if isinstance(source, str | Path) else "the config in hyper_parameters"):
        if isinstance(source, Mapping):
            return AutoConfig.for_model(**source)
        return AutoConfig.from_pretrained(str(source), trust_remote_code=trust_remote_code)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' progress bars and its table of what did not fit, which is told in the error."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


@contextmanager
def _one_line(place: Any, problem: str = "makes no causal language model") -> Iterator[None]:
    """Whatever a library raises as a CheckpointError of one line."""
    try:
        yield
    except SetupError:
        raise
    except Exception as error:
        cause = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        mend = "; its code is run only with --trust-remote-code" if "trust_remote_code" in str(error) else ""
        raise CheckpointError(f"{place} {problem}: {cause}{mend}") from error
