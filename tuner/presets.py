"""The GPUs that are known by name, and a CPU rank that stands in for one."""

from __future__ import annotations

from tuner.cluster import Device, Gpu
from tuner.gpu_names import gpu_named, gpu_names_by_nearness, gpu_of_device, gpus_spelled
from tuner.gpu_presets import GPUS

__all__ = [
    "CPU_NAME",
    "GPUS",
    "cpu_rank",
    "gpu_named",
    "gpu_names_by_nearness",
    "gpu_of_device",
    "gpus_spelled",
]

CPU_NAME = "cpu"
CPU_FLOPS_PER_S = 5e10
"""One core with AVX2, fp32: 3 GHz * 16 = 48 GFLOP/s. Only ranks predictions; never reported."""


def cpu_rank(memory_bytes: int, *, cores: float = 1.0) -> Gpu:
    """A CPU rank standing in for a GPU, with this much memory and these cores of its own."""
    return Gpu(
        name=CPU_NAME,
        device=Device.CPU,
        memory_bytes=memory_bytes,
        flops_per_s={"fp32": CPU_FLOPS_PER_S, "bf16": CPU_FLOPS_PER_S, "fp16": CPU_FLOPS_PER_S},
        memory_bytes_per_s=1e10,
        link_bytes_per_s=2e9,
        cores=cores,
        source="an estimate of one core; it only ranks predictions",
    )
