"""A model's shape from its Hugging Face ``config.json``, read with transformers' own classes."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.hf_sizes import shape_of
from tuner.model_shape import ModelShape

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRead:
    """What transformers makes of a ``config.json``."""

    kept: dict[str, Any]
    """The values of the language model: as given, or its part of a wrapper."""
    shape: ModelShape


def config_read(values: Mapping[str, Any]) -> ConfigRead:
    """The language model of the values of a ``config.json``.

    Of a wrapper (vision, audio) the text part is taken, and its configuration is kept.

    Raises:
        ValueError: the model is not a causal one, or its sizes contradict each other.
    """
    values = {key: _with_floats(value) for key, value in values.items()}
    config = causal_config(values)
    shape = shape_of(config)
    own = config.model_type == values["model_type"]
    return ConfigRead(kept=values if own else _values_of(config), shape=shape)


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
