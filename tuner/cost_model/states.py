"""Bytes of weights, gradients and optimizer states on one rank of one pipeline stage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tuner.cost_model.layout import FloatArray, Layout
from tuner.cost_model.software import Software
from tuner.cost_model.stages import StageParams

MOMENTS_BYTES = 8.0
"""Two fp32 moments of Adam, for a parameter."""
MASTER_BYTES = 4.0
"""The fp32 copy of a weight that is computed with in 16 bits."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StateBytes:
    """Of one stage's rank; shape (n,) each."""

    parameters: FloatArray
    gradients: FloatArray
    optimizer: FloatArray


def state_bytes(lay: Layout, software: Software, params: StageParams) -> StateBytes:
    """What lies there between steps.

    Sharding follows ZeRO (arXiv 1910.02054, section 5): stage 1 splits optimizer states, 2 also
    gradients, 3 also weights. Routed experts have fewer replicas: their states are split over
    the data ranks of their own group, shards * tp / (ep * tp).
    """
    dense = _state_bytes(lay, params.dense, lay.shards)
    extra = params.total * np.where(lay.fp32, 0.0, 2.0) if software.extra_gradients else 0.0
    # Transformer Engine caches 8-bit weights and their transposes between micro-batches.
    cached = np.where(lay.fp8 & lay.megatron, 2.0 * params.total, 0.0)
    if not params.has_experts:
        return StateBytes(
            parameters=dense.parameters + cached,
            gradients=dense.gradients + extra,
            optimizer=dense.optimizer,
        )
    expert = _state_bytes(lay, params.expert, np.maximum(lay.shards / lay.ep, 1.0))
    return StateBytes(
        parameters=dense.parameters + expert.parameters + cached,
        gradients=dense.gradients + expert.gradients + extra,
        optimizer=dense.optimizer + expert.optimizer,
    )


def _state_bytes(lay: Layout, count: FloatArray, shards: FloatArray) -> StateBytes:
    of_optimizer = np.where(lay.zero_stage >= 1, shards, 1.0)
    of_gradients = np.where(lay.zero_stage >= 2, shards, 1.0)
    of_weights = np.where(lay.zero_stage >= 3, shards, 1.0)
    on_device = np.where(lay.offload_optimizer, 0.0, 1.0)
    master = np.where(lay.fp32, 0.0, MASTER_BYTES) * on_device
    # FSDP and autocast compute with 16-bit copies of fp32 weights, which are their own masters
    # (torch.distributed.fsdp.MixedPrecisionPolicy); what is gathered counts as workspace.
    own_master = lay.pytorch & ~lay.fp32
    copies = np.where(own_master & (lay.zero_stage >= 3), 0.0, lay.value_bytes) / of_weights
    own = master / np.where(lay.zero_stage >= 2, shards, 1.0)
    weights = copies + np.where(own_master, own, 0.0)
    moments = MOMENTS_BYTES * on_device + np.where(own_master, 0.0, master)
    return StateBytes(
        parameters=np.where(lay.offload_params, 0.0, count * weights),
        gradients=count * _gradient_bytes(lay, shards) / of_gradients,
        optimizer=count * moments / of_optimizer,
    )


def _gradient_bytes(lay: Layout, shards: FloatArray) -> FloatArray:
    """Of one parameter before the division by ZeRO-2.

    Megatron and DDP accumulate in fp32. DeepSpeed keeps 16-bit gradients and, from ZeRO-1 on,
    an fp32 partition of them for the optimizer (zero/stage_1_and_2.py, averaged_gradients).
    """
    partition = np.where(lay.zero_stage == 1, 4.0 / shards, 4.0)
    deepspeed = np.where(lay.fp32, 4.0, 2.0 + partition)
    # Offload streams the fp32 partition to the host.
    deepspeed = np.where(lay.offload_optimizer, lay.value_bytes, deepspeed)
    return np.where(lay.deepspeed, deepspeed, 4.0)
