"""``workload.model`` of a job file: whatever a user has, as the one kind of model we know."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.errors import UserError
from tuner.hf_file import hf_model, hf_model_of
from tuner.megatron_arguments import is_megatron_file
from tuner.megatron_model import megatron_model
from tuner.model_presets import preset_model, preset_named
from tuner.units import MOST_COUNT, MOST_LAYERS
from tuner.user_files import UnreadableError, text_of
from tuner.workload import FactoryModel, HfModel, Model

_REQUIRED = ("hidden", "layers", "heads", "vocab")
_SIZES = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "experts": "num_local_experts",
    "experts_per_token": "num_experts_per_tok",
}
_KEYS = (*_SIZES, "tied_embeddings")
_DEFAULT_MAX_POSITIONS = 131072
"""Rotary positions have no parameters: a length that no job reaches does no harm."""


def given_model(value: Any) -> str | dict[str, Any]:
    """The value of ``workload.model`` in a job file, unread.

    Raises:
        ValueError: it is neither a word nor a mapping.
    """
    if isinstance(value, (str, dict)) and value:
        return value
    raise ValueError(
        "it must be a path, a preset name, Megatron-LM arguments, package.module:factory or a "
        f"mapping of sizes, got {value!r}"
    )


def job_model(
    model: str | Mapping[str, Any], *, path: Path, vocab_size: int | None = None
) -> Model:
    """The model that ``workload.model`` names.

    Args:
        model: a path, a preset, ``package.module:factory``, Megatron-LM arguments, or sizes.
        path: of the job file; model paths are relative to its folder.
        vocab_size: ``workload.vocab_size``, which only a factory has.

    Raises:
        UserError: what must hold, what was got and what to do.
    """
    named = f"{path}: workload.model"
    if isinstance(model, str) and _is_factory(model):
        return _factory(model, vocab_size, path)
    if vocab_size is not None:
        raise UserError(
            f"{path}: workload.vocab_size must not be given with a config.json, a preset, a "
            f"script or sizes, which have their own; got {vocab_size}; remove it"
        )
    if not isinstance(model, str):
        return sized_model(model, named=named)
    if "--num-layers" in model:
        return megatron_model(model, name="megatron", named=named)
    return _named_model(model, model_file(model, path), named)


def sized_model(sizes: Mapping[str, Any], *, named: str) -> HfModel:
    """The Llama, or with experts the Mixtral, of these sizes; a ``model_type`` makes it a config.

    Raises:
        UserError: a size is missing, unknown or no whole number, or two contradict each other.
    """
    if "model_type" in sizes:
        return hf_model_of(sizes, name=str(sizes["model_type"]), named=named)
    for key in sizes:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(_KEYS)}"
            raise UserError(f"{named}.{key} is not a key; {hint}")
    missing = [key for key in _REQUIRED if key not in sizes]
    if missing:
        raise UserError(f"{named}.{missing[0]} is missing; {', '.join(_REQUIRED)} must be given")
    for key in _SIZES:
        _check_whole(sizes, key, named)
    _check_experts(sizes, named)
    tied = sizes.get("tied_embeddings", False)
    if not isinstance(tied, bool):
        raise UserError(f"{named}.tied_embeddings must be true or false, got {tied!r}")
    values = {name: sizes[key] for key, name in _SIZES.items() if key in sizes}
    family = "mixtral" if "experts" in sizes else "llama"
    defaults = {
        "num_key_value_heads": sizes["heads"],
        "intermediate_size": _llama_ffn(sizes["hidden"]),
        "max_position_embeddings": _DEFAULT_MAX_POSITIONS,
    }
    config = {"model_type": family, "tie_word_embeddings": tied, **defaults, **values}
    if family == "mixtral":
        config["sliding_window"] = None
    return hf_model_of(config, name=family, named=named)


def _llama_ffn(hidden: int) -> int:
    """Two thirds of four times the width, to a multiple of 256 (arXiv 2302.13971)."""
    return -(-8 * hidden // 3 // 256) * 256


def _check_whole(sizes: Mapping[str, Any], key: str, named: str) -> None:
    value = sizes.get(key, 1)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"{named}.{key} must be a whole number of at least 1, got {value!r}")
    most = MOST_LAYERS if key == "layers" else MOST_COUNT
    if value > most:
        raise UserError(f"{named}.{key} must be at most {most}, got {value}")


def _check_experts(sizes: Mapping[str, Any], named: str) -> None:
    experts, visited = sizes.get("experts"), sizes.get("experts_per_token")
    if (experts is None) != (visited is None):
        raise UserError(
            f"{named} must have both experts and experts_per_token or neither, "
            f"got experts {experts} and experts_per_token {visited}"
        )
    if experts is not None and visited is not None and visited > experts:
        raise UserError(
            f"{named}.experts_per_token must be at most experts ({experts}), got {visited}"
        )


def _is_factory(model: str) -> bool:
    return ":" in model and not model.endswith(".json") and "--" not in model and "/" not in model


def _factory(model: str, vocab_size: int | None, path: Path) -> FactoryModel:
    module, _, factory = model.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), factory]):
        raise UserError(
            f"{path}: workload.model must be package.module:factory or a path to config.json, "
            f"got {model!r}"
        )
    if vocab_size is None:
        raise UserError(
            f"{path}: workload.vocab_size must be given with a model factory "
            f"({model}): token ids are drawn below it"
        )
    return FactoryModel(factory=model, vocab=vocab_size)


def model_file(model: str | Mapping[str, Any], path: Path) -> Path | None:
    """The file that ``workload.model`` names, whether it is there or not; None where it names none.

    Args:
        model: as for ``job_model``.
        path: of the job file.
    """
    if not isinstance(model, str) or _is_factory(model) or "--num-layers" in model:
        return None
    file = path.parent / model
    if file.is_dir():
        file /= "config.json"
    is_path = file.is_file() or model.endswith((".json", ".sh", ".args", ".txt"))
    if not is_path and ("/" not in model or preset_named(model) is not None):
        return None
    return file


def _named_model(model: str, file: Path | None, named: str) -> HfModel:
    if file is None:
        return preset_model(model, named=named)
    if is_megatron_file(file):
        try:
            text = text_of(file)
        except UnreadableError as error:
            raise UserError(
                f"{named} must name a Megatron-LM script that can be read, got {file}: {error}; "
                "paths are relative to the job file"
            ) from error
        return megatron_model(text, name=file.stem, named=f"{named}: {file}")
    return hf_model(file, named=named)
