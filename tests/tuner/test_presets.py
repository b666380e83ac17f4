"""Usual spellings of a GPU find the preset that they mean, all that they may mean, or nothing."""

from __future__ import annotations

import pytest

from tuner.cluster import Gpu
from tuner.presets import GPUS, gpu_named, gpu_names_by_nearness, gpu_of_device, gpus_spelled

MIB = 1024**2

ONE = [
    ("h100-sxm-80gb", "h100-sxm-80gb"),
    ("H100-80GB-SXM", "h100-sxm-80gb"),
    ("h100 sxm5 80gb", "h100-sxm-80gb"),
    ("h100sxm80gb", "h100-sxm-80gb"),
    ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
    ("NVIDIA H100 PCIe", "h100-pcie-80gb"),
    ("H100 NVL", "h100-nvl-94gb"),
    ("H100-96GB-HBM2e(500W)", "h100-sxm-96gb"),
    ("H100-94GB-HBM2e", "h100-sxm-94gb"),
    ("A100-SXM4-80GB", "a100-sxm-80gb"),
    ("a100_sxm_80GiB", "a100-sxm-80gb"),
    ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
    ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
    ("Tesla V100-SXM2-16GB", "v100-sxm-16gb"),
    ("NVIDIA GH200 480GB", "gh200-96gb"),
    ("b200", "b200-180gb"),
    ("GB200", "gb200-186gb"),
    ("NVIDIA B300 SXM6 AC", "b300-270gb"),
    ("A10G", "a10g-24gb"),
    ("a10", "a10-24gb"),
    ("L4", "l4-24gb"),
    ("L40S", "l40s-48gb"),
    ("RTX 4090", "rtx4090-24gb"),
    ("NVIDIA GeForce RTX 4090", "rtx4090-24gb"),
    ("4090", "rtx4090-24gb"),
    ("MI300X", "mi300x-192gb"),
    ("AMD Instinct MI300X OAM", "mi300x-192gb"),
    ("mi250x", "mi250x-gcd-64gb"),
]

SEVERAL = [
    ("A100", {"a100-sxm-40gb", "a100-sxm-80gb", "a100-pcie-40gb", "a100-pcie-80gb"}),
    ("a100-80gb", {"a100-sxm-80gb", "a100-pcie-80gb"}),
    ("v100-32gb", {"v100-sxm-32gb", "v100-pcie-32gb"}),
    ("H200-141GB", {"h200-sxm-141gb", "h200-nvl-141gb"}),
    ("H100 80 GB", {"h100-sxm-80gb", "h100-pcie-80gb"}),
    ("h100-94gb", {"h100-sxm-94gb", "h100-nvl-94gb"}),
]

NONE = [
    *("", "nvidia", "80gb", "h900", "a1000", "H100-64GB", "H100-SXM-40GB", "8xH100"),
    *("RTX 4090 Ti", "geforce 4090 d", "NVIDIA RTX 4000 Ada", "H100 MIG 1g.10gb", "TPU v5p"),
    "A100-SXM4-80GB(300W)",
]

DEVICES = [
    ("NVIDIA H100 80GB HBM3", 81559, "h100-sxm-80gb"),
    ("NVIDIA H100", 95830, "h100-sxm-94gb"),
    ("NVIDIA H100 NVL", 95830, "h100-nvl-94gb"),
    ("NVIDIA H200", 143771, "h200-sxm-141gb"),
    ("NVIDIA H200 NVL", 143771, "h200-nvl-141gb"),
    ("NVIDIA A100-SXM4-40GB", 40536, "a100-sxm-40gb"),
    ("Tesla V100-SXM2-32GB", 32510, "v100-sxm-32gb"),
    ("Tesla V100-SXM2-16GB", 16160, "v100-sxm-16gb"),
    ("NVIDIA A10G", 22731, "a10g-24gb"),
    ("NVIDIA GeForce RTX 4090", 24564, "rtx4090-24gb"),
    ("NVIDIA B200", 183359, "b200-180gb"),
    ("NVIDIA GB300", 284208, "gb300-279gb"),
    ("NVIDIA H100 80GB HBM3", 40000, None),
    ("NVIDIA RTX A6000", 49140, None),
]


@pytest.mark.parametrize(("spelling", "name"), ONE, ids=[spelling for spelling, _ in ONE])
def test_a_usual_spelling_means_one_gpu(spelling: str, name: str) -> None:
    assert [gpu.name for gpu in gpus_spelled(spelling)] == [name]
    named = gpu_named(spelling)
    assert named is not None
    assert named.name == name


@pytest.mark.parametrize(("spelling", "names"), SEVERAL, ids=[spelling for spelling, _ in SEVERAL])
def test_an_ambiguous_spelling_means_all_that_it_may(spelling: str, names: set[str]) -> None:
    assert {gpu.name for gpu in gpus_spelled(spelling)} == names
    assert gpu_named(spelling) is None


@pytest.mark.parametrize("spelling", NONE)
def test_a_name_that_is_not_known_means_nothing(spelling: str) -> None:
    assert gpus_spelled(spelling) == ()


@pytest.mark.parametrize("gpu", GPUS, ids=[gpu.name for gpu in GPUS])
def test_every_preset_is_found_by_its_own_name_in_any_order(gpu: Gpu) -> None:
    assert gpus_spelled(gpu.name) == (gpu,)
    assert gpu in gpus_spelled(" ".join(reversed(gpu.name.upper().split("-"))))


@pytest.mark.parametrize(("product", "mib", "name"), DEVICES)
def test_a_device_is_known_by_its_product_name_and_memory(
    product: str, mib: int, name: str | None
) -> None:
    gpu = gpu_of_device(product, mib * MIB)
    assert (gpu.name if gpu else None) == name


@pytest.mark.parametrize("gpu", GPUS, ids=[gpu.name for gpu in GPUS])
def test_every_preset_is_complete_and_physical(gpu: Gpu) -> None:
    assert gpu.source
    assert gpu.memory_bytes > 10 * 1024**3
    assert 0 < gpu.flops_per_s["fp32"] < gpu.flops_per_s["fp16"]
    assert gpu.flops_per_s.get("bf16", gpu.flops_per_s["fp16"]) == gpu.flops_per_s["fp16"]
    # Dense rates double with each halving of the number; a sparse one would be four times.
    if "fp8" in gpu.flops_per_s:
        assert gpu.flops_per_s["fp8"] / gpu.flops_per_s["fp16"] == pytest.approx(2, rel=0.03)
    assert gpu.pcie_bytes_per_s <= gpu.link_bytes_per_s or gpu.name.startswith("mi250x")
    assert gpu.link_bytes_per_s < gpu.memory_bytes_per_s
    assert gpu.name.startswith("mi") or gpu.compute_capability >= (7, 0)
    # bf16 came with Ampere, fp8 with Ada.
    if not gpu.name.startswith("mi"):
        assert ("bf16" in gpu.flops_per_s) == (gpu.compute_capability >= (8, 0))
        assert ("fp8" in gpu.flops_per_s) == (gpu.compute_capability >= (8, 9))


def test_the_memory_in_a_name_is_that_of_the_driver_within_a_tenth() -> None:
    for gpu in GPUS:
        gib = int(gpu.name.rsplit("-", 1)[1].removesuffix("gb"))
        assert gpu.memory_bytes / 1024**3 == pytest.approx(gib, rel=0.1), gpu.name


def test_the_nearest_names_come_first() -> None:
    assert gpu_names_by_nearness("a100-sxm-60gb")[0] in {"a100-sxm-40gb", "a100-sxm-80gb"}
    assert all(name.startswith("h100-") for name in gpu_names_by_nearness("h1000")[:4])
    assert gpu_names_by_nearness("h900")[0].startswith("h100")
    assert sorted(gpu_names_by_nearness("x")) == sorted(gpu.name for gpu in GPUS)
