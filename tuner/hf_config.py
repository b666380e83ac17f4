"""A model's shape from its Hugging Face ``config.json``, read with transformers' own classes."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.errors import UserError
from tuner.hf_sizes import shape_of
from tuner.model_shape import ModelShape
from tuner.workload import HfModel

_WELL_KNOWN = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "gpt2", "gemma2", "deepseek_v3")
_TEXT_TWINS = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}
"""Text parts without a causal class of their own, and the model with the same weights."""
_HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model", "dim", "emb_dim", "embedding_dim")
_LAYERS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "decoder_layers",
    "num_decoder_layers",
    "layer_types",
    "layers_block_type",
    "hybrid_override_pattern",
)


def hf_model(path: Path, *, named: str) -> HfModel:
    """The model of a ``config.json``.

    Args:
        path: the file.
        named: the file and key of the job that asked for it, for messages.

    Raises:
        UserError: no such file, not JSON, or not a causal language model.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise UserError(
            f"{named} must name a Hugging Face config.json that can be read, got {path}: "
            f"{reason}; paths are relative to the job file"
        ) from error
    try:
        values = json.loads(text)
    except ValueError as error:
        raise UserError(f"{named}: {path} must be JSON, but {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"{named}: {path} must hold a JSON object, got {type(values).__name__}")
    return hf_model_of(values, name=path.parent.name or path.stem, named=f"{named}: {path}")


def hf_model_of(values: Mapping[str, Any], *, name: str, named: str) -> HfModel:
    """The model of the values of a ``config.json``.

    Of a wrapper (vision, audio) the text part is taken, and its configuration is kept.

    Raises:
        UserError: it is not a causal language model, or its sizes contradict each other.
    """
    values = {key: _with_floats(value) for key, value in values.items()}
    try:
        config = causal_config(values)
        shape = shape_of(config)
    except ValueError as error:
        raise UserError(f"{named}: {error}") from error
    own = config.model_type == values["model_type"]
    kept = values if own else _values_of(config)
    return HfModel(name=name, config_text=json.dumps(kept, indent=2) + "\n", shape=shape)


def _values_of(config: Any) -> dict[str, Any]:
    kept: dict[str, Any] = _with_floats(json.loads(config.to_json_string(use_diff=False)))
    return kept


def _with_floats(value: Any) -> Any:
    """Infinity is ``{"__float__": "Infinity"}`` in some files, which not every class reads."""
    if isinstance(value, dict):
        if set(value) == {"__float__"}:
            return float(value["__float__"])
        return {key: _with_floats(item) for key, item in value.items()}
    return [_with_floats(item) for item in value] if isinstance(value, list) else value


def model_shape(values: Mapping[str, Any]) -> ModelShape:
    """The sizes in a ``config.json``; what it leaves out is the model class's default.

    Raises:
        ValueError: the model is not a causal one, or its sizes contradict each other.
    """
    return shape_of(causal_config(values))


def causal_config(values: Mapping[str, Any]) -> Any:
    """The transformers configuration of the language model in a ``config.json``.

    Raises:
        ValueError: what must hold of it, and what was got.
    """
    from transformers import CONFIG_MAPPING  # here: it imports torch, which takes seconds

    family = values.get("model_type")
    if not isinstance(family, str) or family not in CONFIG_MAPPING:
        raise ValueError(_unknown_sentence(family))
    config = _transformers_config(values)
    _refuse_encoder(family, config)
    text = _with_causal_class(config.get_text_config(), config)
    found = text if _is_causal(text) else config
    if not _is_causal(found):
        raise ValueError(_unknown_sentence(family))
    if text is config:
        _refuse_missing(values, config)
    return found


def _transformers_config(values: Mapping[str, Any]) -> Any:
    from transformers import AutoConfig

    # auto_map names code on the Hub, which is never fetched: transformers' own class is meant.
    own = {name: value for name, value in values.items() if name != "auto_map"}
    try:
        return AutoConfig.for_model(**own)
    except Exception as error:  # transformers validates with many exception types of its own
        said = " ".join(str(error).split())
        raise ValueError(f"transformers refuses it: {said}") from error


def _with_causal_class(text: Any, whole: Any) -> Any:
    """The text part, or its twin: of the same sizes, with plain positions."""
    twin = _TEXT_TWINS.get(text.model_type)
    if twin is None:
        return text
    values = text.to_dict() | {"tie_word_embeddings": whole.tie_word_embeddings}
    theta = (values.pop("rope_parameters", None) or {}).get("rope_theta", 10000.0)
    rope = {"rope_type": "default", "rope_theta": theta}
    return _transformers_config(values | {"model_type": twin, "rope_parameters": rope})


def _is_causal(config: Any) -> bool:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    return type(config) in MODEL_FOR_CAUSAL_LM_MAPPING


def _refuse_encoder(family: str, config: Any) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    if config.is_encoder_decoder:
        raise ValueError(
            f"model_type must be a decoder-only language model such as llama, got {family!r}, an "
            "encoder-decoder; for its decoder alone say is_encoder_decoder false and is_decoder "
            "true"
        )
    decodes = getattr(config, "is_decoder", False) or getattr(config, "causal", False)
    if family in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not decodes:
        switch = "causal" if hasattr(config, "causal") else "is_decoder"
        raise ValueError(
            f"model_type must be a causal language model such as llama, got {family!r}, an "
            f"encoder; to train it as a decoder say {switch} true"
        )


def _refuse_missing(values: Mapping[str, Any], config: Any) -> None:
    """A size that a class would silently give its default is refused; wrappers leave many out."""
    mapped = getattr(type(config), "attribute_map", {})
    for names, meaning in ((_HIDDEN, "the width"), (_LAYERS, "the number of layers")):
        own = [name for name in names if hasattr(config, name)]
        known = {*names, *(mapped[name] for name in names if name in mapped)}
        if own and not known & values.keys():
            raise ValueError(
                f"{own[0]} ({meaning}) must be given for {config.model_type!r}, but it is missing"
            )


def _unknown_sentence(family: object) -> str:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names = list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    near = difflib.get_close_matches(str(family), names, n=3, cutoff=0.6)
    shown = ", ".join(dict.fromkeys([*near, *_WELL_KNOWN]))
    return (
        f"model_type must be a causal language model that transformers has, got {family!r}; "
        f"{'near are' if near else 'such are'} {shown} ({len(names)} in all)"
    )
