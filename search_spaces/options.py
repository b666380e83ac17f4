"""The options of every knob where the user leaves it automatic."""

from __future__ import annotations

from collections.abc import Mapping

from search_spaces.rule import Setting
from tuner.cluster import Cluster, Device
from tuner.plan import KNOB_NAMES, Backend, Offload, PlanValue, Precision, Recompute

_MAX_MICRO_BATCH = 64
"""Past this no accelerator gains from a larger matrix, and memory has long been full."""
_MAX_CP = 64
"""Llama 3 was trained at 128k tokens with 16; past 64 a rank's share is too short to overlap."""


def knob_options(
    setting: Setting, asked: Mapping[str, tuple[PlanValue, ...]]
) -> dict[str, tuple[PlanValue, ...]]:
    """Options per knob, in the order of the knobs: what was asked, else what may be worth trying.

    Options never depend on another knob; what does not go together is a rule.
    """
    automatic = _automatic(setting)
    return {name: tuple(dict.fromkeys(asked.get(name, automatic[name]))) for name in KNOB_NAMES}


def _automatic(setting: Setting) -> dict[str, tuple[PlanValue, ...]]:
    workload, cluster = setting.workload, setting.cluster
    shape = workload.shape
    layers = shape.num_layers if shape else 1
    experts = shape.experts.num_experts if shape and shape.experts else 1
    cuda = cluster.gpu.device is Device.CUDA
    return {
        "backend": tuple(str(backend) for backend in Backend),
        "zero_stage": (0, 1, 2, 3),
        "dp_replicate": _divisors(cluster.num_nodes),
        "micro_batch": _powers_of_two(min(workload.global_batch_sequences, _MAX_MICRO_BATCH)),
        "tp": _divisors(cluster.gpus_per_nvlink_domain),
        "pp": _divisors(cluster.num_gpus, most=layers),
        # Megatron can count the embedding and the loss as a layer each (126 layers over 16 stages).
        "vpp": tuple(sorted({*_divisors(layers), *_divisors(layers + 2)})),
        "cp": _divisors(cluster.num_gpus, most=_MAX_CP if cuda else 1),
        "ep": _divisors(experts),
        "sequence_parallel": (False, True),
        "precision": _precisions(cluster),
        "recompute": tuple(str(recompute) for recompute in Recompute),
        "offload": tuple(str(offload) for offload in Offload) if cuda else (str(Offload.NONE),),
    }


def _precisions(cluster: Cluster) -> tuple[PlanValue, ...]:
    rates = cluster.gpu.flops_per_s
    if cluster.gpu.device is Device.CPU:
        return (str(Precision.FP32), str(Precision.BF16))
    sixteen_bits = str(Precision.BF16 if "bf16" in rates else Precision.FP16)
    return (sixteen_bits, str(Precision.FP8)) if "fp8" in rates else (sixteen_bits,)


def _divisors(number: int, most: int | None = None) -> tuple[PlanValue, ...]:
    return tuple(n for n in range(1, min(number, most or number) + 1) if number % n == 0)


def _powers_of_two(largest: int) -> tuple[PlanValue, ...]:
    return tuple(2**n for n in range(largest.bit_length()) if 2**n <= largest)
