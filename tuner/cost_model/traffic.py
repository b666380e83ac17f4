"""Seconds that ranks spend sending: tensor, context, expert and data groups, and stages."""

from __future__ import annotations

import numpy as np

from tuner.cost_model.case import Case
from tuner.cost_model.coefficients import TimeCoefficients
from tuner.cost_model.collectives import gather_s, group
from tuner.cost_model.layout import FloatArray
from tuner.cost_model.stages import StageParams

INSIDE_HAND_OVER_S = 1e-5
"""Latency of a hand-over over NVLink: one kernel each side."""


def tensor_parallel_s(case: Case, c: TimeCoefficients) -> FloatArray:
    """Of one layer and micro-batch: eight gathers or scatters of the hidden states.

    An all-reduce is two of them; forward and backward have two each (arXiv 1909.08053). With
    sequence parallelism the backward pass gathers the inputs of two products again.
    """
    lay = case.lay
    ranks = group(case.cluster, lay.tp, np.ones(len(lay)))
    whole = lay.tokens * case.shape.hidden * lay.value_bytes
    count = np.where(lay.sequence_parallel, 10.0, 8.0)
    return count * gather_s(case.cluster, c, ranks, whole)


def context_parallel_s(case: Case, c: TimeCoefficients) -> FloatArray:
    """Of one layer: keys and values go round the ring, they and their gradients back."""
    lay, shape = case.lay, case.shape
    ranks = group(case.cluster, lay.cp, lay.tp)
    keys = 2.0 * shape.num_kv_heads * shape.head_dim / lay.tp
    return 3 * gather_s(case.cluster, c, ranks, lay.tokens * lay.cp * keys * lay.value_bytes)


def expert_parallel_s(case: Case, c: TimeCoefficients) -> FloatArray:
    """Of one layer: tokens go to their experts and back, forward and backward."""
    lay, shape, experts = case.lay, case.shape, case.shape.experts
    if experts is None:
        return np.zeros(len(lay))
    ranks = group(case.cluster, lay.ep, lay.tp)
    routed = lay.tokens_split * experts.experts_per_token * shape.hidden * lay.value_bytes
    share = 1 - experts.num_dense_layers / shape.num_layers
    return share * 4 * gather_s(case.cluster, c, ranks, routed)


def weight_gather_s(case: Case, c: TimeCoefficients) -> FloatArray:
    """Of one layer and micro-batch under ZeRO-3: gathered twice, its gradient scattered once."""
    lay, shape = case.lay, case.shape
    layer = sum(shape.params.layers) / shape.num_layers / lay.tp
    ranks = group(case.cluster, lay.shards, lay.tp)
    return np.where(
        lay.sharded_params, 3 * gather_s(case.cluster, c, ranks, layer * lay.value_bytes), 0.0
    )


def exchange_delay_s(case: Case, c: TimeCoefficients) -> FloatArray:
    """Delay a layer where stages of a blocking pipeline lie on different nodes."""
    lay = case.lay
    if not case.software.blocking_exchange:
        return np.zeros(len(lay))
    across = lay.tp * lay.cp * lay.dp * lay.pp > case.cluster.gpus_per_nvlink_domain
    waits = across & (lay.pp > 1) & (lay.tp > 1)
    return np.where(waits, c.exchange_s * lay.tp, 0.0)


def hand_over_s(case: Case, c: TimeCoefficients) -> FloatArray:
    """Of a step: activations forward and gradients back between stages, half of it hidden."""
    lay, cluster = case.lay, case.cluster
    across = lay.tp * lay.cp * lay.dp >= cluster.gpus_per_nvlink_domain
    rate = np.where(
        across,
        cluster.network_bytes_per_s * c.network,
        cluster.gpu.link_bytes_per_s * c.link,
    )
    sent = lay.tokens_split * case.shape.hidden * lay.value_bytes / rate
    sent = sent + np.where(across, c.hand_over_s, INSIDE_HAND_OVER_S)
    count = np.where(lay.pp > 1, lay.num_microbatches * lay.vpp + lay.pp - 1, 0.0)
    return count * sent


def data_parallel_s(
    case: Case, c: TimeCoefficients, params: StageParams, backward_s: FloatArray
) -> FloatArray:
    """Of a step: gradients are reduced and weights gathered; the last backward hides some.

    Args:
        case: the plans.
        c: the coefficients.
        params: of the stage whose traffic counts.
        backward_s: the backward pass of the last micro-batch.
    """
    lay, cluster, overlaps = case.lay, case.cluster, case.software.overlaps_data
    ranks = group(cluster, lay.dp * lay.cp, lay.tp)
    second = np.where(lay.zero_stage >= 1, lay.value_bytes, 4.0)
    if not overlaps:  # all ranks get all gradients, and only then the weights
        second = second + np.where(lay.zero_stage >= 1, 4.0, 0.0)
    whole = gather_s(cluster, c, ranks, 4 * params.dense)
    whole = whole + gather_s(cluster, c, ranks, second * params.dense)
    if params.has_experts:
        own = group(cluster, np.maximum(lay.dp * lay.cp / lay.ep, 1.0), lay.tp * lay.ep)
        whole = whole + gather_s(cluster, c, own, (4 + lay.value_bytes) * params.expert)
    # ZeRO-3 reduces layer by layer inside a sharded group; replicas of it remain (HSDP).
    replicas = group(cluster, lay.replicas, lay.tp * lay.shards)
    between = 2 * gather_s(cluster, c, replicas, 4 * params.total / lay.shards)
    whole = np.where(lay.sharded_params, between, whole)
    # Sums over micro-batches are reduced afterwards; a lone micro-batch's gradients from hooks.
    hooks = (lay.zero_stage == 0) & (lay.num_microbatches == 1)
    exposed = np.where(overlaps | hooks, min(c.exposed, 1.0), 1.0)
    return exposed * whole + np.maximum((1 - exposed) * whole - backward_s, 0.0)
