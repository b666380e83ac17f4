"""Seconds of an optimizer step, term by term, of every plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tuner.cluster import Device
from tuner.cost_model.case import Case
from tuner.cost_model.coefficients import TimeCoefficients
from tuner.cost_model.cpu_time import cpu_step_terms
from tuner.cost_model.layer_time import layer_time
from tuner.cost_model.layer_work import head_s, peak_flops_per_s
from tuner.cost_model.layout import FloatArray
from tuner.cost_model.stages import StageParams, stage_params
from tuner.cost_model.traffic import data_parallel_s, hand_over_s

ADAM_BYTES_PER_PARAM = 40.0
"""fp32 weight, gradient and two moments read, three written, the 16-bit weight written, and the
gradient norm's and scaling's passes."""
HOST_ADAM_BYTES_PER_PARAM = 32.0
"""On the host the same without the passes: 16 read, 12 written, 2 for the 16-bit copy, rounded."""
HOST_MEMORY_BYTES_PER_S = 20e9
"""A host's memory bandwidth, shared by the ranks of a node: 160 GB/s over 8."""
BACKWARD_SHARE = 2 / 3
"""Of a micro-batch's time."""


def step_terms(case: Case, c: TimeCoefficients) -> Mapping[str, FloatArray]:
    """Seconds a step of every plan by term, shape (n,); their sum is the step time."""
    if case.cluster.gpu.device is Device.CPU:
        return cpu_step_terms(case, c)
    lay = case.lay
    m = lay.num_microbatches
    bandwidth = case.cluster.gpu.memory_bytes_per_s * c.memory
    layer = layer_time(case, c)
    head = head_s(case.shape, lay, peak_flops_per_s(case.cluster, lay) * c.matrix, bandwidth)
    slowest = _slowest_stage(case, c, layer.whole, head)
    terms = {name: m * slowest.layers * part for name, part in layer.parts.items()}
    terms["output_layer"] = m * slowest.head
    # Host and weight gathers show where they are slower than the GPU's own work.
    terms["waiting_for_host_or_weights"] = m * slowest.whole - np.asarray(sum(terms.values()))
    alone = case.shape.num_layers * layer.whole + head + c.host_microbatch_s
    terms["pipeline_bubble"] = (alone - slowest.whole) / lay.vpp
    terms["hand_over"] = hand_over_s(case, c)
    zero = np.zeros(len(lay))
    params = stage_params(case.shape, case.software, lay, case.table.of(lay.pp, zero), zero)
    terms["data_parallel"] = data_parallel_s(case, c, params, BACKWARD_SHARE * slowest.whole)
    terms["optimizer"] = _optimizer_s(case, params, bandwidth)
    terms["step"] = np.full(len(lay), c.step_s)
    return terms


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Stage:
    """Of one micro-batch; shape (n,) each."""

    whole: FloatArray
    layers: FloatArray
    head: FloatArray


def _slowest_stage(case: Case, c: TimeCoefficients, layer: FloatArray, head: FloatArray) -> _Stage:
    """The stage that all others wait for: the first, the last, or the one with most layers.

    1F1B (arXiv 2104.04473): each micro-batch passes it in turn, the other stages' time of one
    micro-batch is the bubble, of which interleaving leaves a share of 1 / vpp.
    """
    depth = case.lay.pp
    side = c.host_microbatch_s / 2
    most = case.table.most(depth)
    last_layers = case.table.of(depth, depth - 1)
    at_last = last_layers * layer + head + side + np.where(depth == 1, side, 0.0)
    at_first = case.table.of(depth, np.zeros(len(depth))) * layer + side
    elsewhere = np.maximum(at_first, most * layer)
    is_last = at_last >= elsewhere
    return _Stage(
        whole=np.where(is_last, at_last, elsewhere),
        layers=np.where(is_last, last_layers, most),
        head=np.where(is_last, head, 0.0),
    )


def _optimizer_s(case: Case, params: StageParams, bandwidth: float) -> FloatArray:
    """Adam over a rank's share; on the host where it is offloaded, with copies there and back."""
    lay = case.lay
    share = params.total / np.where(lay.zero_stage >= 1, lay.shards, 1.0)
    on_device = share * ADAM_BYTES_PER_PARAM / bandwidth
    copies = 6.0 + np.where(lay.offload_params, 4 * lay.num_microbatches, 0.0)
    on_host = share * (
        HOST_ADAM_BYTES_PER_PARAM / HOST_MEMORY_BYTES_PER_S
        + copies / case.cluster.gpu.pcie_bytes_per_s
    )
    return np.where(lay.offload_optimizer, on_host, on_device)
