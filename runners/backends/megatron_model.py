"""A Hugging Face model as Megatron-LM's options; that Megatron can build it is a rule's to say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tuner.cluster import Device, Gpu
from tuner.model_shape import ModelShape
from tuner.plan import ParallelPlan, Precision
from tuner.workload import HfModel, Workload

VOCAB_MULTIPLE = 8
"""The vocabulary is padded to this (what tensor cores like), the same for tp 1, 2, 4 and 8: the
padded columns take part in the softmax, so unequal padding would make the losses differ."""
_QK_NORM = ("qwen3", "qwen3_moe")
_QKV_BIAS = ("qwen2", "qwen2_moe")
_ROPE_THETA = {"mixtral": 1e6}
"""What the family's class in transformers takes where the file leaves it out; others 10000."""
_RMS_NORM_EPS = {"mixtral": 1e-5}
"""The same of ``rms_norm_eps``; others 1e-6."""


def model_lines(workload: Workload, plan: ParallelPlan, gpu: Gpu) -> list[str]:
    """The options that give the model its shape."""
    model = workload.model
    assert isinstance(model, HfModel), "rule G-13 keeps modules without a shape away"
    shape, config = model.shape, json.loads(model.config_text)
    lines = [
        f"--num-layers {shape.num_layers}",
        f"--hidden-size {shape.hidden}",
        f"--ffn-hidden-size {shape.ffn}",
        f"--num-attention-heads {shape.num_heads}",
        f"--kv-channels {shape.head_dim}",
        f"--vocab-size {shape.vocab}",
        f"--make-vocab-size-divisible-by {max(1, VOCAB_MULTIPLE // plan.tp)}",
        f"--seq-length {workload.seq_len}",
        f"--max-position-embeddings {max(shape.max_positions, workload.seq_len)}",
        "--attention-dropout 0.0",
        "--hidden-dropout 0.0",
    ]
    if shape.num_kv_heads != shape.num_heads:
        lines += ["--group-query-attention", f"--num-query-groups {shape.num_kv_heads}"]
    if not shape.tied_embeddings:
        lines.append("--untie-embeddings-and-output-weights")
    if shape.family == "gpt2":
        return lines + _gpt2_lines(config)
    lines += _rope_lines(shape, config) + _window_lines(shape, workload.seq_len)
    return lines + _expert_lines(shape, config, plan.precision, gpu)


def _gpt2_lines(config: Mapping[str, Any]) -> list[str]:
    return [
        "--normalization LayerNorm",
        f"--norm-epsilon {config.get('layer_norm_epsilon', 1e-5)}",
        "--position-embedding-type learned_absolute",
    ]


def _rope_lines(shape: ModelShape, config: Mapping[str, Any]) -> list[str]:
    # transformers 5 gathers these in rope_parameters; older files have them one by one.
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    default = _ROPE_THETA.get(shape.family, 1e4)
    theta = rope.get("rope_theta", config.get("rope_theta", default))
    lines = [
        "--swiglu",
        "--disable-bias-linear",
        "--normalization RMSNorm",
        f"--norm-epsilon {config.get('rms_norm_eps', _RMS_NORM_EPS.get(shape.family, 1e-6))}",
        "--position-embedding-type rope",
        f"--rotary-base {round(theta)}",
    ]
    if rope.get("rope_type", rope.get("type", "default")) == "llama3":
        lines += ["--use-rope-scaling", f"--rope-scaling-factor {rope['factor']}"]
    if shape.family in _QKV_BIAS:
        lines.append("--add-qkv-bias")
    if shape.family in _QK_NORM:
        lines.append("--qk-layernorm")
    return lines


def _window_lines(shape: ModelShape, seq_len: int) -> list[str]:
    if not shape.num_windowed_layers or shape.sliding_window >= seq_len:
        return []
    # transformers counts the token itself; Megatron says how many before and after it are seen.
    return [f"--window-size {shape.sliding_window - 1},0"]


def _expert_lines(
    shape: ModelShape, config: Mapping[str, Any], precision: Precision, gpu: Gpu
) -> list[str]:
    experts = shape.experts
    if experts is None:
        return []
    lines = [
        f"--num-experts {experts.num_experts}",
        f"--moe-ffn-hidden-size {experts.ffn}",
        f"--moe-router-topk {experts.experts_per_token}",
        # transformers adds no balancing loss unless it is asked for the router's logits.
        "--moe-router-load-balancing-type none",
        "--moe-token-dispatcher-type alltoall",
    ]
    renormalized = shape.family == "mixtral" or config.get("norm_topk_prob", False)
    if not renormalized:
        lines.append("--moe-router-pre-softmax")
    if experts.shared_ffn:
        lines.append(f"--moe-shared-expert-intermediate-size {experts.shared_ffn}")
        if shape.family == "qwen2_moe":
            lines.append("--moe-shared-expert-gate")
    # Megatron-LM takes it only in bf16 and on Ampere or later (MC-46).
    able = gpu.device is Device.CUDA and gpu.compute_capability >= (8, 0)
    if able and precision in (Precision.BF16, Precision.FP8):
        lines.append("--moe-grouped-gemm")
    return lines
