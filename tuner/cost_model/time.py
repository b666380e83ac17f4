"""Seconds of an optimizer step, term by term, of every plan."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tuner.cluster import Cluster, Device
from tuner.cost_model.case import Case
from tuner.cost_model.coefficients import TimeCoefficients
from tuner.cost_model.collectives import Group, gather_s, group
from tuner.cost_model.layer_work import (
    attention_s,
    elementwise_s,
    head_s,
    layer_forward_share,
    layer_products_s,
    peak_flops_per_s,
)
from tuner.cost_model.layout import FloatArray, Layout
from tuner.cost_model.software import Software
from tuner.cost_model.stages import StageTable, expert_params_per_layer, stage_params
from tuner.model_shape import ModelShape

TENSOR_OVERLAP = 0.5
"""Share of a layer's matrix products behind which tensor-parallel traffic can hide: the product
that waits for the gather has nothing to start on."""
ADAM_BYTES_PER_PARAM = 40.0
"""fp32 weight, gradient and two moments read, three written, the 16-bit weight written, and the
gradient norm's and scaling's passes."""
HOST_ADAM_BYTES_PER_PARAM = 32.0
HOST_MEMORY_BYTES_PER_S = 20e9
"""A host's memory bandwidth, shared by the ranks of a node: 160 GB/s over 8."""
CPU_HOST_SHARE = 0.3
"""CPU ranks launch no kernels: host time of a layer, of a GPU's."""


def host_lead(case: Case, c: TimeCoefficients) -> FloatArray:
    """GPU time of a layer over the time in which the host launches it, shape (n,)."""
    peak = peak_flops_per_s(case.cluster, case.lay)
    bandwidth = case.cluster.gpu.memory_bytes_per_s * c.memory
    device = layer_products_s(case.shape, case.lay, peak * c.matrix)
    device = device + attention_s(
        case.shape, case.software, case.lay, peak * c.attention, bandwidth
    )
    device = device + elementwise_s(case.shape, case.software, case.lay, bandwidth)
    return device / (c.host_layer_s + _exchange_delay_s(case.software, case.cluster, case.lay, c))


def step_terms(case: Case, coefficients: TimeCoefficients) -> Mapping[str, FloatArray]:
    """Seconds a step of every plan by term, shape (n,); their sum is the step time."""
    shape, software, cluster = case.shape, case.software, case.cluster
    lay, table = case.lay, case.table
    c, m = coefficients, lay.num_microbatches
    again = layer_forward_share(lay)
    peak = peak_flops_per_s(cluster, lay)
    bandwidth = cluster.gpu.memory_bytes_per_s * c.memory
    matrix = layer_products_s(shape, lay, peak * c.matrix) * again
    attention = attention_s(shape, software, lay, peak * c.attention, bandwidth) * again
    elementwise = elementwise_s(shape, software, lay, bandwidth) * again
    tensor = _tensor_parallel_s(shape, cluster, lay, c) * again
    context = _context_parallel_s(shape, cluster, lay, c)
    expert = _expert_parallel_s(shape, cluster, lay, c) * again
    gather = _weight_gather_s(shape, cluster, lay, c)
    exchange = _exchange_delay_s(software, cluster, lay, c)
    if software.overlaps_tensor:
        hidden = np.minimum(tensor, TENSOR_OVERLAP * matrix)
        tensor = tensor - hidden
    device = matrix + attention + elementwise + tensor + context + expert
    # FSDP gathers the next layer while this one computes: the longer of both, and latency.
    host = c.host_layer_s * (CPU_HOST_SHARE if cluster.gpu.device is Device.CPU else 1.0) * again
    host = host * np.where(lay.sharded_params, 1.5, 1.0) + exchange
    layer = _smooth_max(_smooth_max(device, gather), host)
    head = head_s(shape, lay, peak * c.matrix, bandwidth)
    first = c.host_microbatch_s / 2 + np.zeros(len(lay))
    last = head + c.host_microbatch_s / 2
    slowest, everything = _stage_times(shape, table, lay, layer, first, last)
    steady = m * slowest
    bubble = (everything - slowest) / lay.vpp
    of_device = np.maximum(device, 1e-12)
    layers = table.most(lay.pp)
    busy = m * layers * device  # of the fullest stage, at most `steady`
    scale = np.minimum(1.0, steady / np.maximum(busy, 1e-12))
    terms = {
        name: m * layers * part * scale
        for name, part in (
            ("matrix_products", matrix),
            ("attention", attention),
            ("elementwise", elementwise),
            ("tensor_parallel", tensor),
            ("context_parallel", context),
            ("expert_parallel", expert),
        )
    }
    del of_device
    terms["waiting_for_host_or_weights"] = np.maximum(steady - busy * scale, 0.0)
    terms["pipeline_bubble"] = bubble
    terms["hand_over"] = _hand_over_s(shape, cluster, lay, c)
    terms["data_parallel"] = _data_parallel_s(
        shape, software, cluster, lay, table, c, slowest * 2 / 3
    )
    terms["optimizer"] = _optimizer_s(shape, software, cluster, lay, table, bandwidth)
    terms["step"] = np.full(len(lay), c.step_s)
    return terms


def _smooth_max(a: FloatArray, b: FloatArray) -> FloatArray:
    """The sixth-power mean: near equality both show a little, 12 % at most."""
    high = np.maximum(np.maximum(a, b), 1e-12)
    ratio = np.minimum(a, b) / high
    cube = ratio * ratio * ratio
    return high * np.cbrt(np.sqrt(1 + cube * cube))


def _stage_times(
    shape: ModelShape,
    table: StageTable,
    lay: Layout,
    layer: FloatArray,
    first: FloatArray,
    last: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Of one micro-batch: the slowest stage, and all stages one after another."""
    zero = np.zeros(len(lay))
    alone = lay.pp == 1
    at_first = table.of(lay.pp, zero) * layer + first + np.where(alone, last, 0.0)
    at_last = table.of(lay.pp, lay.pp - 1) * layer + last + np.where(alone, first, 0.0)
    slowest = np.maximum(np.maximum(at_first, at_last), table.most(lay.pp) * layer)
    return slowest, shape.num_layers * layer + first + last


def _tensor_parallel_s(
    shape: ModelShape, cluster: Cluster, lay: Layout, c: TimeCoefficients
) -> FloatArray:
    """Of one layer and micro-batch: eight gathers or scatters of the hidden states.

    An all-reduce is two of them; forward and backward have two each (arXiv 1909.08053).
    """
    ranks = group(cluster, lay.tp, np.ones(len(lay)))
    whole = lay.tokens * shape.hidden * lay.value_bytes
    # With sequence parallelism the backward pass gathers the inputs of two products again.
    count = np.where(lay.sequence_parallel, 10.0, 8.0)
    return count * gather_s(cluster, c, ranks, whole)


def _context_parallel_s(
    shape: ModelShape, cluster: Cluster, lay: Layout, c: TimeCoefficients
) -> FloatArray:
    """Keys and values go round the ring forward, they and their gradients backward."""
    ranks = group(cluster, lay.cp, lay.tp)
    keys = 2.0 * shape.num_kv_heads * shape.head_dim / lay.tp
    whole = lay.tokens * lay.cp * keys * lay.value_bytes
    return 3 * gather_s(cluster, c, ranks, whole)


def _expert_parallel_s(
    shape: ModelShape, cluster: Cluster, lay: Layout, c: TimeCoefficients
) -> FloatArray:
    """Tokens go to their experts and back, forward and backward: four all-to-alls."""
    experts = shape.experts
    if experts is None:
        return np.zeros(len(lay))
    ranks = group(cluster, lay.ep, lay.tp)
    routed = lay.tokens_split * experts.experts_per_token * shape.hidden * lay.value_bytes
    share = 1 - experts.num_dense_layers / shape.num_layers
    return share * 4 * gather_s(cluster, c, ranks, routed)


def _data_group(cluster: Cluster, lay: Layout) -> Group:
    return group(cluster, lay.dp * lay.cp, lay.tp)


def _weight_gather_s(
    shape: ModelShape, cluster: Cluster, lay: Layout, c: TimeCoefficients
) -> FloatArray:
    """Of one layer and micro-batch under ZeRO-3: gathered twice, its gradient scattered once."""
    layer = sum(shape.params.layers) / shape.num_layers / lay.tp
    once = gather_s(cluster, c, _data_group(cluster, lay), layer * lay.value_bytes)
    return np.where(lay.sharded_params, 3 * once, 0.0)


def _exchange_delay_s(
    software: Software, cluster: Cluster, lay: Layout, c: TimeCoefficients
) -> FloatArray:
    """Delay a layer where stages of a blocking pipeline lie on different nodes."""
    if not software.blocking_exchange:
        return np.zeros(len(lay))
    across = lay.tp * lay.cp * lay.dp * lay.pp > cluster.gpus_per_nvlink_domain
    waits = across & (lay.pp > 1) & (lay.tp > 1)
    return np.where(waits, c.exchange_s * lay.tp, 0.0)


def _hand_over_s(
    shape: ModelShape, cluster: Cluster, lay: Layout, c: TimeCoefficients
) -> FloatArray:
    """Activations forward and gradients backward between stages, half of it hidden."""
    across = lay.tp * lay.cp * lay.dp >= cluster.gpus_per_nvlink_domain
    rate = np.where(
        across,
        cluster.network_bytes_per_s * c.network,
        cluster.gpu.link_bytes_per_s * c.link,
    )
    sent = lay.tokens_split * shape.hidden * lay.value_bytes / rate
    sent = sent + np.where(across, c.hand_over_s, 1e-5)
    count = np.where(lay.pp > 1, lay.num_microbatches * lay.vpp + lay.pp - 1, 0.0)
    return count * sent


def _data_parallel_s(
    shape: ModelShape,
    software: Software,
    cluster: Cluster,
    lay: Layout,
    table: StageTable,
    c: TimeCoefficients,
    backward_s: FloatArray,
) -> FloatArray:
    """Gradients are reduced once a step and weights gathered; the last backward hides some."""
    zero = np.zeros(len(lay))
    params = stage_params(shape, software, lay, table.of(lay.pp, zero), zero)
    ranks = _data_group(cluster, lay)
    scatter = gather_s(cluster, c, ranks, 4 * params.dense)
    gathered_bytes = np.where(lay.zero_stage >= 1, lay.value_bytes, 4.0) * params.dense
    if not software.overlaps_data:  # all ranks get all gradients, and only then the weights
        gathered_bytes = gathered_bytes + np.where(lay.zero_stage >= 1, 4.0, 0.0) * params.dense
    gather = gather_s(cluster, c, ranks, gathered_bytes)
    if shape.experts is not None:
        own = group(cluster, np.maximum(lay.dp * lay.cp / lay.ep, 1.0), lay.tp * lay.ep)
        scatter = scatter + gather_s(cluster, c, own, 4 * params.expert)
        gather = gather + gather_s(cluster, c, own, lay.value_bytes * params.expert)
    whole = scatter + gather
    exposed = min(c.exposed, 1.0) if software.overlaps_data else 1.0
    late = exposed * whole + np.maximum((1 - exposed) * whole - backward_s, 0.0)
    return np.where(lay.sharded_params, zero, late)


def _optimizer_s(
    shape: ModelShape,
    software: Software,
    cluster: Cluster,
    lay: Layout,
    table: StageTable,
    bandwidth: float,
) -> FloatArray:
    """Adam over a rank's share; on the host where it is offloaded, with copies there and back."""
    zero = np.zeros(len(lay))
    params = stage_params(shape, software, lay, table.of(lay.pp, zero), zero).total
    share = params / np.where(lay.zero_stage >= 1, lay.shards, 1.0)
    on_device = share * ADAM_BYTES_PER_PARAM / bandwidth
    copies = 6.0 + np.where(lay.offload_params, 4 * lay.num_microbatches, 0.0)
    on_host = share * (
        HOST_ADAM_BYTES_PER_PARAM / HOST_MEMORY_BYTES_PER_S + copies / cluster.gpu.pcie_bytes_per_s
    )
    return np.where(lay.offload_optimizer, on_host, on_device)


__all__ = ["expert_params_per_layer", "step_terms"]
