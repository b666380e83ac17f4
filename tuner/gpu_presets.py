"""GPUs known by name, each with the datasheet that its numbers come from; dense rates only.

NVIDIA's datasheets give tensor-core rates with structured sparsity, twice the dense ones; they are
halved here. They give link rates of both directions together; one direction is half.
"""

from __future__ import annotations

from dataclasses import dataclass

from tuner.cluster import Device, Gpu

_MIB = 1024**2
PCIE_3, PCIE_4, PCIE_5 = 12.5, 25.0, 50.0
"""GB/s, one direction, of 16 lanes: four fifths of 15.75, 31.5 and 63 GB/s, as copies from pinned
memory reach them."""
C2C = 360.0
"""GB/s, one direction: four fifths of GH200's NVLink-C2C, 900 GB/s both directions."""

_CAPABILITIES = {
    "v100": (7, 0),
    "t4": (7, 5),
    "a100": (8, 0),
    "a10g": (8, 6),
    "a10": (8, 6),
    "l4": (8, 9),
    "l40": (8, 9),
    "l40s": (8, 9),
    "rtx4090": (8, 9),
    "h100": (9, 0),
    "h200": (9, 0),
    "gh200": (9, 0),
    "h20": (9, 0),
    "b200": (10, 0),
    "gb200": (10, 0),
    "b300": (10, 3),
    "gb300": (10, 3),
    "rtx5090": (12, 0),
}
"""CUDA's compute capability by the name's first word (NVIDIA's list of CUDA GPUs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A GPU and the words, besides those of its name, that people and drivers add to it."""

    gpu: Gpu
    words: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Rates:
    """How fast bytes move."""

    memory_tb_per_s: float
    link_gb_per_s: float
    """One direction, to the other GPUs of its node taken together."""
    host_gb_per_s: float


def _preset(
    name: str, words: str, memory_mib: int, rates: _Rates, tflops: dict[str, float], source: str
) -> Preset:
    """``memory_mib`` is the total that the driver shows (nvidia-smi, rocm-smi)."""
    gpu = Gpu(
        name=name,
        device=Device.CUDA,  # torch calls AMD's GPUs so too
        memory_bytes=memory_mib * _MIB,
        flops_per_s={precision: rate * 1e12 for precision, rate in tflops.items()},
        memory_bytes_per_s=rates.memory_tb_per_s * 1e12,
        link_bytes_per_s=rates.link_gb_per_s * 1e9,
        pcie_bytes_per_s=rates.host_gb_per_s * 1e9,
        compute_capability=_CAPABILITIES.get(name.split("-")[0], (0, 0)),
        source=source,
    )
    return Preset(gpu=gpu, words=frozenset(words.split()))


def _flops(fp32: float, sixteen_bits: float, fp8: float = 0) -> dict[str, float]:
    rates = {"fp32": fp32, "fp16": sixteen_bits, "bf16": sixteen_bits}
    return rates | {"fp8": fp8} if fp8 else rates


_HOPPER_SXM = _flops(67, 989.4, 1978.9)
_HOPPER_NVL = _flops(60, 835.5, 1670.5)
_BRIDGE = "; link is PCIe, since NVLink bridges join only some GPUs of a node"
_H100_HBM2E = "NVIDIA H100 datasheet, 2023, rates of SXM; HGX H100 {} with HBM2e at 2.4 TB/s"

PRESETS: tuple[Preset, ...] = (
    _preset(
        "v100-sxm-16gb",
        "sxm2 hbm2",
        16384,
        _Rates(0.9, 150, PCIE_3),
        {"fp32": 15.7, "fp16": 125},
        "NVIDIA V100 datasheet, 2020",
    ),
    _preset(
        "v100-sxm-32gb",
        "sxm2 sxm3 hbm2",
        32768,
        _Rates(0.9, 150, PCIE_3),
        {"fp32": 15.7, "fp16": 125},
        "NVIDIA V100 datasheet, 2020",
    ),
    _preset(
        "v100-pcie-16gb",
        "hbm2",
        16384,
        _Rates(0.9, PCIE_3, PCIE_3),
        {"fp32": 14, "fp16": 112},
        "NVIDIA V100 datasheet, 2020",
    ),
    _preset(
        "v100-pcie-32gb",
        "hbm2",
        32768,
        _Rates(0.9, PCIE_3, PCIE_3),
        {"fp32": 14, "fp16": 112},
        "NVIDIA V100 datasheet, 2020",
    ),
    _preset(
        "t4-16gb",
        "gddr6 pcie",
        15360,
        _Rates(0.32, PCIE_3, PCIE_3),
        {"fp32": 8.1, "fp16": 65},
        "NVIDIA T4 datasheet, 2019; 1 GB holds the ECC",
    ),
    _preset(
        "a100-sxm-40gb",
        "sxm4 hbm2",
        40960,
        _Rates(1.555, 300, PCIE_4),
        _flops(19.5, 312),
        "NVIDIA A100 datasheet, 2021",
    ),
    _preset(
        "a100-sxm-80gb",
        "sxm4 hbm2e",
        81920,
        _Rates(2.039, 300, PCIE_4),
        _flops(19.5, 312),
        "NVIDIA A100 datasheet, 2021",
    ),
    _preset(
        "a100-pcie-40gb",
        "hbm2",
        40960,
        _Rates(1.555, PCIE_4, PCIE_4),
        _flops(19.5, 312),
        "NVIDIA A100 datasheet, 2020" + _BRIDGE,
    ),
    _preset(
        "a100-pcie-80gb",
        "hbm2e",
        81920,
        _Rates(1.935, PCIE_4, PCIE_4),
        _flops(19.5, 312),
        "NVIDIA A100 datasheet, 2021" + _BRIDGE,
    ),
    _preset(
        "a10-24gb",
        "gddr6 pcie",
        23028,
        _Rates(0.6, PCIE_4, PCIE_4),
        _flops(31.2, 125),
        "NVIDIA A10 datasheet, 2021",
    ),
    _preset(
        "a10g-24gb",
        "gddr6 pcie",
        23028,
        _Rates(0.6, PCIE_4, PCIE_4),
        _flops(35, 70),
        "NVIDIA A10G datasheet, 2022",
    ),
    _preset(
        "l4-24gb",
        "gddr6 pcie",
        23034,
        _Rates(0.3, PCIE_4, PCIE_4),
        _flops(30.3, 121, 242.5),
        "NVIDIA L4 datasheet, 2023",
    ),
    _preset(
        "l40-48gb",
        "gddr6 pcie",
        46068,
        _Rates(0.864, PCIE_4, PCIE_4),
        _flops(90.5, 181.05, 362),
        "NVIDIA L40 datasheet, 2023",
    ),
    _preset(
        "l40s-48gb",
        "gddr6 pcie",
        46068,
        _Rates(0.864, PCIE_4, PCIE_4),
        _flops(91.6, 362.05, 733),
        "NVIDIA L40S datasheet, 2023",
    ),
    _preset(
        "rtx4090-24gb",
        "gddr6x pcie",
        24564,
        _Rates(1.008, PCIE_4, PCIE_4),
        _flops(82.6, 165.2, 330.3),
        "NVIDIA Ada GPU architecture whitepaper, 2022, with fp32 accumulation",
    ),
    _preset(
        "rtx5090-32gb",
        "gddr7 pcie",
        32607,
        _Rates(1.792, PCIE_5, PCIE_5),
        _flops(104.8, 209.5, 419),
        "NVIDIA RTX Blackwell GPU architecture whitepaper, 2025, with fp32 accumulation",
    ),
    _preset(
        "h100-sxm-80gb",
        "sxm5 hbm3",
        81559,
        _Rates(3.35, 450, PCIE_5),
        _HOPPER_SXM,
        "NVIDIA H100 datasheet, 2023",
    ),
    _preset(
        "h100-sxm-94gb",
        "sxm5 hbm2e",
        95830,
        _Rates(2.4, 450, PCIE_5),
        _HOPPER_SXM,
        _H100_HBM2E.format("4-GPU 94 GB"),
    ),
    _preset(
        "h100-sxm-96gb",
        "sxm5 hbm2e 500w",  # torchtitan's benchmarks name the power limit that they ran with
        97871,
        _Rates(2.4, 450, PCIE_5),
        _HOPPER_SXM,
        _H100_HBM2E.format("8-GPU 96 GB"),
    ),
    _preset(
        "h100-pcie-80gb",
        "hbm2e",
        81559,
        _Rates(2.0, PCIE_5, PCIE_5),
        _flops(51, 756.5, 1513),
        "NVIDIA H100 datasheet, 2023" + _BRIDGE,
    ),
    _preset(
        "h100-nvl-94gb",
        "hbm3",
        95830,
        _Rates(3.9, PCIE_5, PCIE_5),
        _HOPPER_NVL,
        "NVIDIA H100 datasheet, 2024" + _BRIDGE,
    ),
    _preset(
        "h20-sxm-96gb",
        "sxm5 hbm3",
        97871,
        _Rates(4.0, 450, PCIE_5),
        _flops(44, 148, 296),
        "NVIDIA HGX H20 datasheet, 2023",
    ),
    _preset(
        "h200-sxm-141gb",
        "sxm5 hbm3e",
        143771,
        _Rates(4.8, 450, PCIE_5),
        _HOPPER_SXM,
        "NVIDIA H200 datasheet, 2024",
    ),
    _preset(
        "h200-nvl-141gb",
        "hbm3e",
        143771,
        _Rates(4.8, PCIE_5, PCIE_5),
        _HOPPER_NVL,
        "NVIDIA H200 datasheet, 2024" + _BRIDGE,
    ),
    _preset(
        "gh200-96gb",
        "hbm3 480gb 120gb",  # the product names give the size of Grace's own memory
        97871,
        _Rates(4.0, 450, C2C),
        _HOPPER_SXM,
        "NVIDIA GH200 datasheet, 2023; host is NVLink-C2C",
    ),
    _preset(
        "gh200-144gb",
        "hbm3e",
        147456,
        _Rates(4.9, 450, C2C),
        _HOPPER_SXM,
        "NVIDIA GH200 datasheet, 2023; host is NVLink-C2C; memory is 144 GiB, not a driver's total",
    ),
    _preset(
        "b200-180gb",
        "sxm sxm6 hbm3e 192gb 183gb",
        183359,
        _Rates(8.0, 900, PCIE_5),
        _flops(75, 2250, 4500),
        "NVIDIA HGX B200 datasheet, 2024, an eighth of 8 GPUs",
    ),
    _preset(
        "gb200-186gb",
        "nvl nvl72 hbm3e 192gb 189gb",
        189471,
        _Rates(8.0, 900, C2C / 2),
        _flops(80, 2500, 5000),
        "NVIDIA GB200 NVL72 datasheet, 2024, half a superchip; host is half its NVLink-C2C",
    ),
    _preset(
        "b300-270gb",
        "sxm sxm6 ac hbm3e 288gb",
        275040,
        _Rates(8.0, 900, PCIE_5),
        _flops(75, 2250, 4500),
        "NVIDIA HGX B300 datasheet, 2025, an eighth of 8 GPUs",
    ),
    _preset(
        "gb300-279gb",
        "nvl nvl72 hbm3e 288gb",
        284208,
        _Rates(8.0, 900, C2C / 2),
        _flops(80, 2500, 5000),
        "NVIDIA GB300 NVL72 datasheet, 2025, one of 72 GPUs; host is half a superchip's NVLink-C2C",
    ),
    _preset(
        "mi250x-gcd-64gb",
        "oam hbm2e 128gb",
        65520,
        _Rates(1.638, 50, PCIE_4),
        _flops(23.95, 191.5),
        "AMD Instinct MI250X datasheet, 2021, one of its two GCDs, each a GPU to ROCm; link is one "
        "xGMI link of 100 GB/s both directions",
    ),
    _preset(
        "mi300x-192gb",
        "oam hbm3",
        196592,
        _Rates(5.3, 448, PCIE_5),
        _flops(163.4, 1307.4, 2614.9),
        "AMD Instinct MI300X datasheet, 2023; link is all 7 xGMI links of 128 GB/s both directions",
    ),
    _preset(
        "mi325x-256gb",
        "oam hbm3e",
        262128,
        _Rates(6.0, 448, PCIE_5),
        _flops(163.4, 1307.4, 2614.9),
        "AMD Instinct MI325X datasheet, 2024; link is all 7 xGMI links of 128 GB/s both directions",
    ),
    _preset(
        "mi355x-288gb",
        "oam hbm3e",
        294896,
        _Rates(8.0, 537.6, PCIE_5),
        _flops(157.3, 2516.6, 5033.2),
        "AMD Instinct MI355X datasheet, 2025; link is all 7 xGMI links of 153.6 GB/s both "
        "directions",
    ),
)
"""In the order in which they are listed to people: by maker, then by age and size."""

GPUS: tuple[Gpu, ...] = tuple(preset.gpu for preset in PRESETS)
