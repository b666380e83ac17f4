"""The options of every knob where the user leaves it automatic."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.cluster import Cluster, Device
from tuner.plan import KNOB_NAMES, Backend, Offload, PlanValue, Precision, Recompute
from tuner.workload import Workload

_MAX_MICRO_BATCH = 64
"""Past this no accelerator gains from a larger matrix, and memory has long been full."""


def knob_options(
    workload: Workload, cluster: Cluster, asked: Mapping[str, tuple[PlanValue, ...]]
) -> dict[str, tuple[PlanValue, ...]]:
    """Options per knob, in the order of the knobs: what was asked, else what may be worth trying.

    Options never depend on another knob; what does not go together is a rule.
    """
    automatic = _automatic(workload, cluster)
    return {name: tuple(dict.fromkeys(asked.get(name, automatic[name]))) for name in KNOB_NAMES}


def _automatic(workload: Workload, cluster: Cluster) -> dict[str, tuple[PlanValue, ...]]:
    cuda = cluster.gpu.device is Device.CUDA
    return {
        "backend": tuple(str(backend) for backend in Backend),
        "zero_stage": (0, 1, 2, 3),
        "dp_replicate": (1, cluster.num_nodes),
        "micro_batch": _powers_of_two(min(workload.global_batch_sequences, _MAX_MICRO_BATCH)),
        "tp": _divisors(cluster.gpus_per_node),
        "pp": _divisors(cluster.num_gpus),
        "vpp": (1, 2, 4),
        "cp": (1,),
        "ep": (1,),
        "sequence_parallel": (False, True),
        "precision": _precisions(cluster),
        "recompute": tuple(str(recompute) for recompute in Recompute),
        "offload": tuple(str(offload) for offload in Offload) if cuda else (str(Offload.NONE),),
    }


def _precisions(cluster: Cluster) -> tuple[PlanValue, ...]:
    rates = cluster.gpu.flops_per_s
    if cluster.gpu.device is Device.CPU:
        return (str(Precision.FP32), str(Precision.BF16))
    return (str(Precision.BF16 if "bf16" in rates else Precision.FP16),)


def _divisors(number: int) -> tuple[PlanValue, ...]:
    return tuple(n for n in range(1, number + 1) if number % n == 0)


def _powers_of_two(largest: int) -> tuple[PlanValue, ...]:
    return tuple(2**n for n in range(largest.bit_length()) if 2**n <= largest)
