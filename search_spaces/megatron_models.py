"""Which models Megatron-Core's GPT can be shaped into; no knob helps one that it cannot."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from search_spaces.rule import Rule, Setting
from tuner.model_shape import ModelShape
from tuner.plan import Backend
from tuner.plan_arrays import BoolArray, PlanArrays
from tuner.workload import HfModel

FAMILIES = (
    "gpt2",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
)
"""Hugging Face model types whose loss Megatron was seen to reproduce from the same weights."""
_LLAMA3_ROPE = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""What Megatron's ``--use-rope-scaling`` has built in; only the factor is an option."""
_ELSEWHERE = "train this model with another backend"

Wrong = Callable[[ModelShape, Mapping[str, Any], int], str | None]
"""What is wrong with a model for Megatron (shape, config.json, sequence length), or None."""


@functools.lru_cache(maxsize=8)
def _config(text: str) -> Mapping[str, Any]:
    values: Mapping[str, Any] = json.loads(text)
    return values


def _family(shape: ModelShape, _: Mapping[str, Any], _seq_len: int) -> str | None:
    if shape.family in FAMILIES and shape.latent_attention is None:
        return None
    return f"the model must be one of {', '.join(FAMILIES)} for megatron, got {shape.family}"


def _activation(shape: ModelShape, config: Mapping[str, Any], _: int) -> str | None:
    gpt2 = shape.family == "gpt2"
    key = "activation_function" if gpt2 else "hidden_act"
    known = ("gelu_new", "gelu", "gelu_pytorch_tanh") if gpt2 else ("silu", "swish")
    got = config.get(key, known[0])
    if got in known:
        return None
    return f"config.json: {key} must be one of {', '.join(known)} for megatron, got {got}"


def _biases(shape: ModelShape, config: Mapping[str, Any], _: int) -> str | None:
    has = {key: config.get(key, False) for key in ("attention_bias", "mlp_bias")}
    if shape.family == "qwen2_moe" and not config.get("qkv_bias", True):
        return "config.json: qkv_bias must be true for megatron with qwen2_moe, got false"
    if shape.family in ("gpt2", "qwen2", "qwen2_moe"):  # their classes do not read these keys
        return None
    wrong = [key for key, value in has.items() if value]
    if not wrong:
        return None
    return f"config.json: {' and '.join(wrong)} must be false for megatron, got true"


def _rope(_shape: ModelShape, config: Mapping[str, Any], _: int) -> str | None:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    built_in = all(rope.get(key) == value for key, value in _LLAMA3_ROPE.items())
    if kind == "default" or (kind == "llama3" and built_in and "factor" in rope):
        return None
    return (
        "rotary positions must be unscaled, or scaled as llama3 with "
        f"{_said(_LLAMA3_ROPE)} for megatron, got {_said(rope)}"
    )


def _said(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())


def _window(shape: ModelShape, _: Mapping[str, Any], seq_len: int) -> str | None:
    windowed = shape.num_windowed_layers
    if not windowed or shape.sliding_window >= seq_len or windowed == shape.num_layers:
        return None
    return (
        f"the sequence must be within the sliding window ({shape.sliding_window}) where only "
        f"some layers ({windowed} of {shape.num_layers}) have one, got {seq_len}"
    )


def _positions(shape: ModelShape, _: Mapping[str, Any], seq_len: int) -> str | None:
    if shape.family != "gpt2" or seq_len <= shape.max_positions:
        return None
    return (
        f"the sequence must be within the model's positions ({shape.max_positions}), got {seq_len}"
    )


def _expert_layers(shape: ModelShape, _: Mapping[str, Any], _seq_len: int) -> str | None:
    if shape.experts is None or not shape.experts.num_dense_layers:
        return None
    return (
        f"all {shape.num_layers} layers must hold experts for megatron, got "
        f"{shape.experts.num_dense_layers} without"
    )


def _single_expert(shape: ModelShape, config: Mapping[str, Any], _: int) -> str | None:
    if shape.experts is None or shape.experts.experts_per_token > 1:
        return None
    if shape.family != "mixtral" and not config.get("norm_topk_prob", False):
        return None
    return (
        "a token must visit at least 2 experts where their weights are made to sum to 1, for "
        "megatron, got 1"
    )


def _model_rule(rule_id: str, wrong: Wrong, summary: str, source: str) -> Rule:
    def problem(setting: Setting) -> str | None:
        model = setting.workload.model
        if not isinstance(model, HfModel):  # rule G-13 speaks of these
            return None
        return wrong(model.shape, _config(model.config_text), setting.workload.seq_len)

    def breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
        return np.full(len(arrays), problem(setting) is not None)

    return Rule(
        id=rule_id,
        backends=(Backend.MEGATRON,),
        knobs=("backend",),
        breaks=breaks,
        says=lambda _, setting: f"{problem(setting)}; {_ELSEWHERE}",
        summary=summary,
        source=source,
    )


def _optimizer_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    return np.full(len(arrays), setting.workload.optimizer != "adamw")


MEGATRON_MODEL_RULES: tuple[Rule, ...] = (
    _model_rule(
        "MC-92",
        _family,
        f"the model must be one of {', '.join(FAMILIES)} for megatron",
        "ours: their losses were compared with transformers'",
    ),
    _model_rule(
        "MC-93",
        _activation,
        "the activation must be silu in a gated model, gelu in gpt2, for megatron",
        "ours: the activations that are launched",
    ),
    _model_rule(
        "MC-94",
        _biases,
        "the attention's output and the feed-forward must have no bias, for megatron",
        "ours: Megatron's add_bias_linear is for all matrices or none",
    ),
    _model_rule(
        "MC-95",
        _rope,
        "rotary positions must be unscaled, or scaled as llama3, for megatron",
        "ours: rotary_pos_embedding.py has only these frequencies built in",
    ),
    _model_rule(
        "MC-96",
        _window,
        "a sliding window shorter than the sequence must be in all layers, for megatron",
        "ours: --window-attn-skip-freq is not emitted yet",
    ),
    _model_rule(
        "MC-99",
        _positions,
        "the sequence must be within the learned positions, for megatron",
        "ours: more positions would be another model",
    ),
    _model_rule(
        "MC-97",
        _expert_layers,
        "every layer must hold experts, or none, for megatron",
        "ours: --moe-layer-freq is not emitted yet",
    ),
    _model_rule(
        "MC-45",
        _single_expert,
        "a token must visit at least 2 experts where their weights sum to 1, for megatron",
        "megatron/core/transformer/transformer_config.py: top-k 1 needs pre-softmax",
    ),
    Rule(
        id="MC-98",
        backends=(Backend.MEGATRON,),
        knobs=("backend",),
        breaks=_optimizer_breaks,
        says=lambda _, setting: (
            f"optimizer must be adamw for megatron, got {setting.workload.optimizer}; use adamw"
        ),
        summary="optimizer must be adamw for megatron",
        source="ours: others are not launched yet",
    ),
)
