"""Whether a predicted peak fits a GPU: what is usable of its memory, and how sure that is."""

from __future__ import annotations

import numpy as np

from tuner.cluster import Device, Gpu
from tuner.cost_model.layout import FloatArray
from tuner.plan_arrays import BoolArray

CONTEXT_BYTES = 1.2e9
"""CUDA context and NCCL's own buffers, outside the allocator: 0.5 GB and about as much again."""
FRAGMENTATION = 1.10
"""What the allocator holds over what tensors need at the peak: up to 1.08 over the ranks of a
B200 sweep with static shapes, and about 1.1 where an 80 GB sweep of an eager program ends."""


def usable_bytes(gpu: Gpu) -> float:
    """What tensors may take at their peak."""
    if gpu.device is Device.CPU:
        return float(gpu.memory_bytes)
    return (gpu.memory_bytes - CONTEXT_BYTES) / FRAGMENTATION


def fits(peak_bytes: FloatArray, gpu: Gpu) -> BoolArray:
    """Whether each peak is below what is usable, shape (n,)."""
    return np.asarray(peak_bytes <= usable_bytes(gpu))
