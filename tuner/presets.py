"""GPUs known by name, each with the datasheet that its numbers come from; dense rates only."""

from __future__ import annotations

import re
from dataclasses import replace

from tuner.cluster import Device, Gpu

_GB = 10**9
_GIB = 1024**3


def _cuda(name: str, memory_gib: int, bandwidth: float, link: float, **tflops: float) -> Gpu:
    return Gpu(
        name=name,
        device=Device.CUDA,
        memory_bytes=memory_gib * _GIB,
        flops_per_s={precision: rate * 1e12 for precision, rate in tflops.items()},
        memory_bytes_per_s=bandwidth * 1e12,
        link_bytes_per_s=link * _GB,
    )


GPUS: tuple[Gpu, ...] = (
    # NVIDIA V100 datasheet (2020): 125 TFLOP/s fp16, 900 GB/s, NVLink 300 GB/s both directions.
    _cuda("v100-sxm-16gb", 16, 0.9, 150, fp32=15.7, fp16=125),
    _cuda("v100-sxm-32gb", 32, 0.9, 150, fp32=15.7, fp16=125),
    # NVIDIA A100 datasheet (2021): 312 TFLOP/s dense bf16, 19.5 fp32; NVLink 600 GB/s.
    _cuda("a100-sxm-40gb", 40, 1.555, 300, fp32=19.5, fp16=312, bf16=312),
    _cuda("a100-sxm-80gb", 80, 2.039, 300, fp32=19.5, fp16=312, bf16=312),
    # NVIDIA H100 datasheet (2023), sparse figures halved; NVLink 900 GB/s.
    _cuda("h100-sxm-80gb", 80, 3.35, 450, fp32=67, fp16=989, bf16=989, fp8=1979),
    # NVIDIA H200 datasheet (2024), sparse figures halved.
    _cuda("h200-sxm-141gb", 131, 4.8, 450, fp32=67, fp16=989, bf16=989, fp8=1979),
    # NVIDIA DGX B200 datasheet (2024), per GPU: 2.25 PFLOP/s dense bf16, 180 GB, 8 TB/s, NVLink 5.
    _cuda("b200-sxm-180gb", 178, 8.0, 900, fp32=75, fp16=2250, bf16=2250, fp8=4500),
    # NVIDIA L40S datasheet (2023): PCIe gen 4 x16.
    _cuda("l40s-48gb", 48, 0.864, 32, fp32=91.6, fp16=362, bf16=362, fp8=733),
)
"""memory_gib is what the driver shows, rounded down: 141 GB of HBM3e are 131 GiB."""

CPU_NAME = "cpu"
CPU_FLOPS_PER_S = 5e10
"""One core with AVX2, fp32: 3 GHz * 16 = 48 GFLOP/s. Only ranks predictions; never reported."""


def cpu_rank(memory_bytes: int) -> Gpu:
    """A CPU rank standing in for a GPU, with this much memory of its own."""
    return Gpu(
        name=CPU_NAME,
        device=Device.CPU,
        memory_bytes=memory_bytes,
        flops_per_s={"fp32": CPU_FLOPS_PER_S, "bf16": CPU_FLOPS_PER_S, "fp16": CPU_FLOPS_PER_S},
        memory_bytes_per_s=1e10,
        link_bytes_per_s=2e9,
    )


def gpu_named(name: str) -> Gpu | None:
    """The GPU of this name, however its words are joined; None where it is not known."""
    wanted = _words(name)
    for gpu in GPUS:
        if _words(gpu.name) == wanted:
            return gpu
    return None


def gpu_of_device(product: str, memory_bytes: int) -> Gpu | None:
    """The GPU that the driver calls by this product name (``NVIDIA H100 80GB HBM3``)."""
    words = re.split(r"[^a-z0-9]+", product.lower())
    near = [
        gpu
        for gpu in GPUS
        if gpu.name.split("-")[0] in words and abs(gpu.memory_bytes / memory_bytes - 1) < 0.15
    ]
    return near[0] if near and "pcie" not in words and "nvl" not in words else None


def _words(name: str) -> tuple[str, ...]:
    words = re.findall(r"[a-z]+|[0-9]+", name.lower().removeprefix("nvidia"))
    return tuple(sorted(words))


def gpus_spelled(name: str) -> tuple[Gpu, ...]:
    """Every preset that a usual spelling may mean: none = unknown, several = ambiguous.

    A spelling with a memory size that no preset of that family has is the family's nearest
    preset with that memory (an H100 with 96 GB).
    """
    words = re.findall(r"[a-z]+\d+[a-z]*|\d+(?=\s*g)|[a-z]+|\d+", name.lower())
    families = [gpu for gpu in GPUS if gpu.name.split("-")[0] in words]
    sizes = [int(size) for size in re.findall(r"(\d+)\s*-?g(?:i?b)?\b", name.lower())]
    if not families or not sizes:
        return tuple(families)
    exact = [gpu for gpu in families if f"-{sizes[0]}gb" in gpu.name]
    if exact:
        return tuple(exact)
    return (replace(families[-1], name=name.lower(), memory_bytes=sizes[0] * _GIB),)
