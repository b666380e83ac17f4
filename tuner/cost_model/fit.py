"""What is usable of a GPU's memory: what a predicted peak is held against."""

from __future__ import annotations

from tuner.cluster import Device, Gpu

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


def usable_within(gpu: Gpu, limit_bytes: float) -> float:
    """What tensors may take at their peak where the allocator may hold no more than a limit."""
    if gpu.device is Device.CPU:
        return float(limit_bytes)
    return min(usable_bytes(gpu), limit_bytes / FRAGMENTATION)
