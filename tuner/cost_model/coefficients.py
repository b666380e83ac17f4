"""The few numbers that shapes and datasheets do not give, with their priors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from tuner.cost_model.layout import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeCoefficients:
    """Of the step time; all positive."""

    matrix: float = 0.68
    """Share of the dense peak that a large matrix product reaches."""
    attention: float = 0.35
    """Share of the dense peak that a flash attention kernel reaches."""
    memory: float = 0.65
    """Share of the memory bandwidth that element-wise kernels reach."""
    host_layer_s: float = 2.5e-3
    """Host time to launch the kernels of a fused layer, forward and backward: about 100 launches
    of 10 us with autograd and as much Python around them."""
    host_microbatch_s: float = 3e-3
    """Host time of a micro-batch outside its layers: embedding, loss, schedule."""
    link: float = 0.65
    """Share of the NVLink rate that a large collective reaches."""
    network: float = 0.5
    """Share of the network rate that a large collective reaches."""
    hop_s: float = 3.5e-5
    """Latency of a ring across nodes, a rank."""
    exposed: float = 0.5
    """Share of the data-parallel traffic that never overlaps with computing."""
    step_s: float = 1e-2
    """Of every step: data, logging, gradient norm."""
    hand_over_s: float = 1e-3
    """Latency of a hand-over between stages on different nodes."""
    exchange_s: float = 2.8e-3
    """Where stages hand over across nodes with the host waiting: delay of every layer that
    synchronises a tensor-parallel group, a rank of the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCoefficients:
    """Of the peak memory; all positive."""

    states: float = 1.0
    """Of weights, gradients and optimizer states: padding and alignment."""
    activations: float = 1.0
    """Of what a formula counts as kept for the backward pass."""
    logits: float = 1.0
    workspace: float = 1.0
    """Of the temporary gradients and gathered weights."""
    context_bytes: float = 0.07e9
    """Library workspaces that the allocator hands out: cuBLAS, NCCL staging, rotary tables."""


TIME_PRIOR_STD: Mapping[str, float] = {
    "matrix": 0.15,
    "attention": 0.4,
    "memory": 0.4,
    "host_layer_s": 0.5,
    "host_microbatch_s": 1.0,
    "link": 0.4,
    "network": 0.7,
    "hop_s": 0.7,
    "exposed": 0.6,
    "step_s": 1.0,
    "hand_over_s": 2.0,
    "exchange_s": 0.7,
}
"""Standard deviation of the log of each coefficient before any trial."""
MEMORY_PRIOR_STD: Mapping[str, float] = {
    "states": 0.03,
    "activations": 0.15,
    "logits": 0.3,
    # Gathered weights and temporary gradients have exact sizes; what is unsure is which of them
    # live at once. With 0.5 a few rows of a noisy allocator move it to 1.6.
    "workspace": 0.25,
    "context_bytes": 0.7,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """All of them, and what they leave unexplained."""

    time: TimeCoefficients = TimeCoefficients()
    memory: MemoryCoefficients = MemoryCoefficients()
    time_noise: float = 0.12
    """Standard deviation of the log of a step time that the model does not explain."""
    memory_noise: float = 0.08


DEFAULT = Coefficients()


def logs(coefficients: TimeCoefficients | MemoryCoefficients) -> FloatArray:
    """The logarithms, in the order of the fields."""
    return np.log([getattr(coefficients, f.name) for f in fields(coefficients)])
