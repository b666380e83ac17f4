"""Seconds of one layer and micro-batch on one rank, part by part, and what the host takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tuner.cluster import Device
from tuner.cost_model.activations import is_eager
from tuner.cost_model.case import Case
from tuner.cost_model.coefficients import TimeCoefficients
from tuner.cost_model.layer_work import (
    attention_s,
    elementwise_s,
    layer_forward_share,
    layer_products_s,
    peak_flops_per_s,
)
from tuner.cost_model.layout import FloatArray
from tuner.cost_model.traffic import (
    context_parallel_s,
    exchange_delay_s,
    expert_parallel_s,
    tensor_parallel_s,
    weight_gather_s,
)

TENSOR_OVERLAP = 0.5
"""Share of a layer's matrix products behind which tensor-parallel traffic can hide: the product
that waits for the gather has nothing to start on."""
CPU_HOST_SHARE = 0.3
"""CPU ranks launch no kernels: host time of a layer, of a GPU's."""
EAGER_LAUNCHES = 1.5
"""Kernels of an eager layer, of a fused one's: norms, rotary embedding and activations apart."""
GATHERED_HOST_SHARE = 1.5
"""Hooks of ZeRO-3 around every layer: host time of a layer, of one without them."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LayerTime:
    """Forward and backward of an average layer, what is computed again included."""

    parts: Mapping[str, FloatArray]
    """Of the GPU, shape (n,) each; they add up."""
    whole: FloatArray
    """What the layer takes: the slowest of GPU, host and the gathering of weights."""


def layer_time(case: Case, c: TimeCoefficients) -> LayerTime:
    """Of every plan."""
    lay = case.lay
    again = layer_forward_share(lay)
    parts = {name: part * again for name, part in _computing(case, c).items()}
    tensor = tensor_parallel_s(case, c) * again
    if case.software.overlaps_tensor:
        tensor = np.maximum(tensor - TENSOR_OVERLAP * parts["matrix_products"], 0.0)
    parts["tensor_parallel"] = tensor
    parts["context_parallel"] = context_parallel_s(case, c)
    parts["expert_parallel"] = expert_parallel_s(case, c) * again
    device = np.asarray(sum(parts.values()))
    host = _launch_s(case, c) * again * np.where(lay.sharded_params, GATHERED_HOST_SHARE, 1.0)
    host = host + exchange_delay_s(case, c)
    # FSDP gathers the next layer while this one computes.
    whole = smooth_max(smooth_max(device, weight_gather_s(case, c)), host)
    return LayerTime(parts=parts, whole=whole)


def host_lead(case: Case, c: TimeCoefficients) -> FloatArray:
    """GPU time of a layer over the time in which the host launches it, shape (n,)."""
    computing = np.asarray(sum(_computing(case, c).values()))
    return computing / (_launch_s(case, c) + exchange_delay_s(case, c))


def _computing(case: Case, c: TimeCoefficients) -> dict[str, FloatArray]:
    peak = peak_flops_per_s(case.cluster, case.lay)
    bandwidth = case.cluster.gpu.memory_bytes_per_s * c.memory
    shape, software, lay = case.shape, case.software, case.lay
    return {
        "matrix_products": layer_products_s(shape, lay, peak * c.matrix),
        "attention": attention_s(shape, software, lay, peak * c.attention, bandwidth),
        "elementwise": elementwise_s(shape, software, lay, bandwidth),
    }


def _launch_s(case: Case, c: TimeCoefficients) -> FloatArray:
    share = CPU_HOST_SHARE if case.cluster.gpu.device is Device.CPU else 1.0
    eager = np.where(is_eager(case.software, case.lay), EAGER_LAUNCHES, 1.0)
    return c.host_layer_s * share * eager


def smooth_max(a: FloatArray, b: FloatArray) -> FloatArray:
    """The sixth-power mean: near equality both show a little, 12 % at most."""
    high = np.maximum(np.maximum(a, b), 1e-12)
    ratio = np.minimum(a, b) / high
    cube = ratio * ratio * ratio
    return np.asarray(high * np.cbrt(np.sqrt(1 + cube * cube)))
