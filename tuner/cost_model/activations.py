"""Bytes that the forward pass keeps for the backward pass: a layer's, the logits', in flight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tuner.cost_model.layout import FloatArray, Layout
from tuner.cost_model.software import Attention, Software
from tuner.model_shape import ModelShape
from tuner.plan_arrays import BoolArray

LOSS_BYTES_FUSED = 6.0
"""Vocabulary-parallel cross entropy: 16-bit logits and one fp32 copy that becomes the softmax and
its gradient in place (megatron/core/tensor_parallel/cross_entropy.py)."""
LOSS_BYTES_EAGER = 10.0
"""16-bit logits, fp32 logits and softmax, which becomes the gradient."""
LOSS_BYTES_TORCH = 14.0
"""torch.nn.functional.cross_entropy: 16-bit logits, fp32 ones, their log-softmax, its gradient."""
LOSS_BYTES_KEPT = 2.0
"""The 16-bit logits of the micro-batch before, which eager programs still refer to."""
FP8_SHARE = 0.75
"""Inputs of matrix products are kept in 8 bits, about half of all that is kept."""
SELECTIVE_OP_SHARE = 0.4
"""Eager selective recomputation keeps every other matrix product's output (torchtitan)."""


def is_eager(software: Software, lay: Layout) -> BoolArray:
    """Where layers are made of one kernel an operation, shape (n,)."""
    return ~lay.megatron if software.fused else np.ones(len(lay), dtype=np.bool_)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LayerBytes:
    """Of one layer and one micro-batch on one rank, shape (n,)."""

    kept: FloatArray
    """From the forward to the backward pass."""
    whole: FloatArray
    """While the layer is recomputed: everything."""


def layer_bytes(shape: ModelShape, software: Software, lay: Layout) -> LayerBytes:
    """Activations of an average layer.

    Counts of 16-bit values per token as in Korthikanti et al. 2022 (arXiv 2205.05198), section
    4.1, for the shapes of GQA, gated feed-forwards, experts and latent attention.
    """
    value = lay.value_bytes
    split, whole = lay.tokens / lay.tp, lay.tokens_split
    hidden = float(shape.hidden)
    eager = is_eager(software, lay).astype(np.float64)
    # Norm inputs and outputs (which are the inputs of both column-parallel products).
    ends = 4 * hidden * value * whole
    if software.dropout:
        ends = ends + 2 * hidden * whole  # a mask of one byte after each half
    inside = (_attention_values(shape, eager) + _mlp_values(shape, eager)) * value * split
    latent = _latent_values(shape) * value * lay.tokens
    scores = _score_bytes(shape, software, lay)
    ends = np.where(lay.fp8, FP8_SHARE * ends, ends)
    inside = np.where(lay.fp8, FP8_SHARE * inside, inside)
    everything = ends + inside + latent + scores
    again = scores if "core_attn" in software.recomputed else 0.0
    if software.recomputed & {"mlp", "moe"}:
        again = again + _mlp_values(shape, eager) * value * split
    if "layernorm" in software.recomputed:
        again = again + 2 * hidden * value * whole
    if "mla_up_proj" in software.recomputed:
        again = again + 0.75 * _attention_values(shape, eager) * value * split
    selective = np.where(lay.pytorch, SELECTIVE_OP_SHARE * everything, everything - again)
    kept = np.where(lay.recompute_selective, selective, everything)
    kept = np.where(lay.recompute_full, hidden * value * whole, kept)
    return LayerBytes(kept=kept, whole=everything)


def _attention_values(shape: ModelShape, eager: FloatArray) -> FloatArray:
    """Split by tp: queries, keys, values, and the kernel's output."""
    latent = shape.latent_attention
    if latent is not None:
        head = latent.qk_nope_head_dim + latent.qk_rope_head_dim
        # Queries, keys, values, output; keys and values come out of one up-projection.
        per_head = 2 * head + 2 * latent.v_head_dim + latent.qk_nope_head_dim
        return np.full(len(eager), float(shape.num_heads * per_head))
    queries = shape.num_heads * shape.head_dim
    keys = shape.num_kv_heads * shape.head_dim
    # Eager: rotated queries and keys too, beside what they were made of. Models whose
    # feed-forward is not gated (GPT, MPT) are older than rotary embedding.
    rotated = 2.0 * (queries + keys) if shape.gated_mlp else 0.0
    return 2.0 * queries + 2 * keys + eager * rotated


def _latent_values(shape: ModelShape) -> float:
    """Not split by tp: the low-rank queries and keys, before and after their norms."""
    latent = shape.latent_attention
    if latent is None:
        return 0.0
    return 2.0 * (latent.q_lora_rank + latent.kv_lora_rank) + latent.qk_rope_head_dim


def _mlp_values(shape: ModelShape, eager: FloatArray) -> FloatArray:
    """Split by tp: what the activation function reads and what the second product reads."""
    # Eager and gated: also silu(gate), which the product with the other half keeps.
    wide = 3.0 + eager if shape.gated_mlp else np.full(len(eager), 2.0)
    experts = shape.experts
    if experts is None:
        return wide * shape.ffn
    dense_share = experts.num_dense_layers / shape.num_layers
    # Routed tokens are copied: the permuted input and the output before it is combined.
    routed = experts.experts_per_token * (wide * experts.ffn + 2 * shape.hidden)
    return dense_share * wide * shape.ffn + (1 - dense_share) * (routed + wide * experts.shared_ffn)


def _score_bytes(shape: ModelShape, software: Software, lay: Layout) -> FloatArray:
    """Softmax, its dropout's mask and output where scores are stored; else one fp32 a row."""
    heads = shape.num_heads / lay.tp
    if software.attention is Attention.FLASH:
        return 4 * heads * lay.tokens
    context = lay.tokens * lay.cp / lay.micro_batch
    per_score = 2 * lay.value_bytes + 1 if software.dropout else lay.value_bytes
    return per_score * heads * lay.tokens * context


def in_flight_layers(lay: Layout, layers: FloatArray, stage: FloatArray) -> FloatArray:
    """Layers times micro-batches whose activations a stage holds at once, shape (n,).

    1F1B: stage s has pp - s micro-batches under way. Interleaved (arXiv 2104.04473, section 2.2
    and Megatron's schedules.py): 2 (pp - s - 1) + (vpp - 1) pp + 1 chunks of layers / vpp.
    """
    plain = np.minimum(lay.num_microbatches, lay.pp - stage)
    chunks = 2 * (lay.pp - stage - 1) + (lay.vpp - 1) * lay.pp + 1
    chunks = np.minimum(chunks, lay.num_microbatches * lay.vpp)
    return layers * np.where(lay.vpp > 1, chunks / lay.vpp, plain)


def logit_bytes(shape: ModelShape, software: Software, lay: Layout) -> FloatArray:
    """Logits, their fp32 copies and gradient, on the last stage."""
    eager = LOSS_BYTES_EAGER + LOSS_BYTES_KEPT * (lay.num_microbatches > 1)
    per_logit = np.where(is_eager(software, lay), eager, LOSS_BYTES_FUSED)
    per_logit = np.where(lay.megatron, per_logit, LOSS_BYTES_TORCH)
    if software.loss_bytes:
        per_logit = np.full(len(lay), software.loss_bytes)
    # Only Megatron's loss takes a split vocabulary as it is; elsewhere logits are gathered.
    split = np.where(lay.megatron | software.split_loss, lay.tp, 1.0)
    return per_logit * lay.tokens * shape.vocab / split
