"""Arithmetic and memory traffic of one micro-batch in a layer and in the output layer."""

from __future__ import annotations

import numpy as np

from tuner.cluster import Cluster
from tuner.cost_model.activations import is_eager
from tuner.cost_model.layout import FloatArray, Layout
from tuner.cost_model.software import Attention, Software
from tuner.model_shape import ModelShape

HALF_RATE_TOKENS = 256.0
"""Rows of a matrix product at which the tensor cores reach half of their best rate: two waves
of 128-row tiles."""
HALF_RATE_WIDTH = 192.0
"""The same for the two other sides of the product."""
ELEMENTWISE_VALUES = 40.0
"""16-bit values per token and hidden unit that norms, residuals, rotary embedding and dropout
read and write, forward and backward."""

EAGER_TRAFFIC = 2.0
"""Times as much where every element-wise operation is a kernel of its own."""


def peak_flops_per_s(cluster: Cluster, lay: Layout) -> FloatArray:
    """The dense datasheet rate of each plan's precision, shape (n,)."""
    rates = cluster.gpu.flops_per_s
    half = rates.get("bf16", rates.get("fp16", rates["fp32"]))
    rate = np.where(lay.fp32, rates["fp32"], half)
    return np.where(lay.fp8, rates.get("fp8", half), rate)


def product_s(
    rows: FloatArray, inner: FloatArray | float, outer: FloatArray | float, rate: FloatArray
) -> FloatArray:
    """Forward and backward of one matrix product: three products of 2 * rows * inner * outer."""
    share = (
        rows / (rows + HALF_RATE_TOKENS)
        * inner / (inner + HALF_RATE_WIDTH)
        * outer / (outer + HALF_RATE_WIDTH)
    )  # fmt: skip
    return 6 * rows * inner * outer / (rate * share)


def layer_products_s(shape: ModelShape, lay: Layout, rate: FloatArray) -> FloatArray:
    """All matrix products of an average layer, forward and backward, shape (n,)."""
    hidden = float(shape.hidden)
    total = np.zeros(len(lay))
    for inner, outer, column in _attention_products(shape):
        total = total + (
            product_s(lay.tokens, inner, outer / lay.tp, rate)
            if column
            else product_s(lay.tokens, inner / lay.tp, outer, rate)
        )
    up = 2.0 if shape.gated_mlp else 1.0
    experts = shape.experts
    dense_share = 1.0 if experts is None else experts.num_dense_layers / shape.num_layers
    if experts is not None:
        rows = lay.tokens * experts.experts_per_token / (experts.num_experts / lay.ep) * lay.ep
        local = experts.num_experts / lay.ep
        rows = lay.tokens * experts.experts_per_token * lay.ep / experts.num_experts
        moe = local * (
            product_s(rows, hidden, up * experts.ffn / lay.tp, rate)
            + product_s(rows, experts.ffn / lay.tp, hidden, rate)
        )
        if experts.shared_ffn:
            moe = moe + product_s(lay.tokens, hidden, up * experts.shared_ffn / lay.tp, rate)
            moe = moe + product_s(lay.tokens, experts.shared_ffn / lay.tp, hidden, rate)
        total = total + (1 - dense_share) * moe
    dense = product_s(lay.tokens, hidden, up * shape.ffn / lay.tp, rate)
    dense = dense + product_s(lay.tokens, shape.ffn / lay.tp, hidden, rate)
    return total + dense_share * dense


def _attention_products(shape: ModelShape) -> list[tuple[float, float, bool]]:
    """Inner side, outer side, and whether tp splits the outer one."""
    latent, hidden = shape.latent_attention, float(shape.hidden)
    queries = float(shape.num_heads * shape.head_dim)
    if latent is None:
        keys = shape.num_kv_heads * shape.head_dim
        return [(hidden, queries + 2 * keys, True), (queries, hidden, False)]
    head = latent.qk_nope_head_dim + latent.qk_rope_head_dim
    out = float(shape.num_heads * latent.v_head_dim)
    products = [
        (hidden, float(latent.kv_lora_rank + latent.qk_rope_head_dim), True),
        (float(latent.kv_lora_rank), shape.num_heads * latent.qk_nope_head_dim + out, True),
        (out, hidden, False),
    ]
    if latent.q_lora_rank:
        low = float(latent.q_lora_rank)
        return [(hidden, low, True), (low, float(shape.num_heads * head), True), *products]
    return [(hidden, float(shape.num_heads * head), True), *products]


def attention_s(
    shape: ModelShape,
    software: Software,
    lay: Layout,
    rate: FloatArray,
    bytes_per_s: float,
) -> FloatArray:
    """Scores and their use, forward and backward, of one layer; causal, so half of the square."""
    latent = shape.latent_attention
    head = (
        2.0 * shape.head_dim
        if latent is None
        else float(latent.qk_nope_head_dim + latent.qk_rope_head_dim + latent.v_head_dim)
    )
    seq = lay.tokens * lay.cp / lay.micro_batch
    seen = seq / 2
    if shape.sliding_window:
        seen = np.minimum(seen, float(shape.sliding_window))
    heads = shape.num_heads / lay.tp
    # Forward 2 products, backward 5 of which flash attention repeats one: 3.5 times forward.
    flops = 3.5 * 2 * lay.tokens * seen * heads * head
    if software.attention is Attention.FLASH:
        return flops / rate
    # Nothing skips the upper half, and the scores go through memory some 12 times.
    moved = 12 * lay.value_bytes * heads * lay.tokens * seq
    return 2 * flops / rate + moved / bytes_per_s


def elementwise_s(
    shape: ModelShape, software: Software, lay: Layout, bytes_per_s: float
) -> FloatArray:
    """Norms, residuals, activation functions, forward and backward, of one layer."""
    values = ELEMENTWISE_VALUES * shape.hidden * lay.tokens_split
    experts = shape.experts
    wide = shape.ffn if experts is None else experts.experts_per_token * experts.ffn
    values = values + (9.0 if shape.gated_mlp else 6.0) * wide * lay.tokens / lay.tp
    eager = np.where(is_eager(software, lay), EAGER_TRAFFIC, 1.0)
    return eager * values * lay.value_bytes / bytes_per_s


def head_s(shape: ModelShape, lay: Layout, rate: FloatArray, bytes_per_s: float) -> FloatArray:
    """The output layer and the loss, forward and backward, of one micro-batch."""
    split = shape.vocab / lay.tp
    loss_bytes = 24.0 * lay.tokens * split
    return product_s(lay.tokens, float(shape.hidden), split, rate) + loss_bytes / bytes_per_s


def layer_forward_share(lay: Layout) -> FloatArray:
    """How much longer a layer takes for what it computes again: a forward is a third."""
    return np.where(lay.recompute_full, 4 / 3, np.where(lay.recompute_selective, 1.08, 1.0))
