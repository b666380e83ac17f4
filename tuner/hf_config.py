"""A model's shape from its Hugging Face ``config.json``, read with transformers' own classes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.errors import UserError
from tuner.model_shape import ModelShape, ParamCounts
from tuner.workload import HfModel

FAMILIES = ("gpt2", "llama", "mistral", "qwen2", "qwen3")
"""Causal language models whose parameters are counted here, exactly."""


def hf_model(path: Path, *, named: str) -> HfModel:
    """The model of a ``config.json``.

    Args:
        path: the file.
        named: the file and key of the job that asked for it, for messages.

    Raises:
        UserError: no such file, not JSON, or not a model that is known here.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise UserError(
            f"{named} must name a Hugging Face config.json that can be read, got {path}: "
            f"{error.strerror}; paths are relative to the job file"
        ) from error
    try:
        values = json.loads(text)
    except ValueError as error:
        raise UserError(f"{named}: {path} must be JSON, but {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"{named}: {path} must hold a JSON object, got {type(values).__name__}")
    try:
        shape = model_shape(values)
    except ValueError as error:
        raise UserError(f"{named}: {path}: {error}") from error
    return HfModel(name=path.parent.name or path.stem, config_text=text, shape=shape)


def model_shape(values: Mapping[str, Any]) -> ModelShape:
    """The sizes in a ``config.json``; what it leaves out is the model class's default.

    Raises:
        ValueError: the model is not known, or its sizes contradict each other.
    """
    family = values.get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"model_type must be one of {', '.join(FAMILIES)}, got {family!r}")
    config = _transformers_config(values)
    heads, hidden = config.num_attention_heads, config.hidden_size
    head_dim = getattr(config, "head_dim", None)
    if head_dim is None:
        if hidden % heads:
            raise ValueError(
                f"num_attention_heads ({heads}) must divide hidden_size ({hidden}); "
                "or give head_dim"
            )
        head_dim = hidden // heads
    ffn = 4 * hidden if family == "gpt2" and not config.n_inner else _ffn(config, str(family))
    sizes: dict[str, Any] = {
        "num_layers": config.num_hidden_layers,
        "hidden": hidden,
        "num_heads": heads,
        "num_kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": head_dim,
        "ffn": ffn,
        "vocab": config.vocab_size,
        "max_positions": config.max_position_embeddings,
    }
    return ModelShape(
        family=str(family),
        gated_mlp=family != "gpt2",
        tied_embeddings=bool(config.tie_word_embeddings),
        params=_param_counts(config, str(family), sizes),
        **sizes,
    )


def _ffn(config: Any, family: str) -> int:
    return int(config.n_inner if family == "gpt2" else config.intermediate_size)


def _transformers_config(values: Mapping[str, Any]) -> Any:
    from transformers import AutoConfig  # here: it imports torch, which takes seconds

    try:
        return AutoConfig.for_model(**values)
    except Exception as error:  # transformers validates with many exception types of its own
        said = " ".join(str(error).split())
        raise ValueError(f"transformers refuses it: {said}") from error


def _param_counts(config: Any, family: str, sizes: Mapping[str, int]) -> ParamCounts:
    """Weights and biases, as transformers builds the model; tied weights are counted once."""
    hidden, ffn, vocab = sizes["hidden"], sizes["ffn"], sizes["vocab"]
    q = sizes["num_heads"] * sizes["head_dim"]
    kv = sizes["num_kv_heads"] * sizes["head_dim"]
    if family == "gpt2":
        layer = 4 * hidden * hidden + 2 * hidden * ffn + 9 * hidden + ffn
        embedding = (vocab + sizes["max_positions"]) * hidden
        final_norm = 2 * hidden
    else:
        layer = 2 * hidden * q + 2 * hidden * kv + 3 * hidden * ffn + 2 * hidden
        layer += _num_optional_params(config, family, sizes)
        embedding = vocab * hidden
        final_norm = hidden
    return ParamCounts(
        embedding=embedding,
        head=0 if config.tie_word_embeddings else vocab * hidden,
        layers=(layer,) * sizes["num_layers"],
        other=final_norm,
    )


def _num_optional_params(config: Any, family: str, sizes: Mapping[str, int]) -> int:
    """Of one layer: biases and query / key norms, where the family or the file asks for them."""
    q = sizes["num_heads"] * sizes["head_dim"]
    kv = sizes["num_kv_heads"] * sizes["head_dim"]
    extra = 0
    if family == "qwen2":
        extra += q + 2 * kv
    elif getattr(config, "attention_bias", False):
        extra += q + 2 * kv + sizes["hidden"]
    if getattr(config, "mlp_bias", False):
        extra += 2 * sizes["ffn"] + sizes["hidden"]
    if family == "qwen3":
        extra += 2 * sizes["head_dim"]
    return extra
