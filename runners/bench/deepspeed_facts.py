"""What a DeepSpeed engine does, in the words of the plan: read from its parts, not its settings.

DeepSpeed keeps settings that it does not follow: with a pipeline it turns overlapping off, below
stage 3 it offloads no parameters, and its bf16 optimizer shards states at stage 0.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import groups

_PRECISIONS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
_KEPT_SETTINGS = (
    "reduce_bucket_size",
    "allgather_bucket_size",
    "contiguous_gradients",
    "round_robin_gradients",
)
_GATHERING_SETTINGS = {
    "stage3_prefetch_bucket_size": "_prefetch_bucket_sz",
    "stage3_param_persistence_threshold": "param_numel_persistence_threshold",
    "stage3_max_live_parameters": "_max_available_parameters_in_numel",
    "stage3_max_reuse_distance": "_max_reuse_distance_in_numel",
}
"""Attributes of what gathers the parameters of stage 3."""


def engine_facts(engine: Any) -> dict[str, Any]:
    """The knobs that every engine can be asked for, and what DeepSpeed adds to them."""
    optimizer = engine.optimizer
    return {
        "backend": "deepspeed",
        "zero_stage": _zero_stage(optimizer),
        "dp_replicate": _replicas(engine),
        "micro_batch": int(engine.train_micro_batch_size_per_gpu()),
        "tp": max(1, int(engine.autotp_size())),
        # One unless the engine has a grid of stages; the others are not carried out here.
        "pp": 1,
        "vpp": 1,
        "cp": 1,
        "ep": 1,
        "sequence_parallel": False,
        "precision": _PRECISIONS[next(engine.module.parameters()).dtype],
        "offload": _offload(optimizer),
        "optimizer": type(optimizer).__name__,
        "overlap_comm": _overlaps(optimizer),
        "settings": _settings(optimizer),
        "optimizer_elements": sum(weights.numel() for weights in _updated_weights(optimizer)),
    }


def _settings(optimizer: Any) -> dict[str, bool | int]:
    """Of ZeRO's optimizers, which keep what they follow under these names."""
    kept = {name: getattr(optimizer, name, None) for name in _KEPT_SETTINGS}
    kept["overlap_comm"] = _overlaps(optimizer)
    gathering = getattr(optimizer, "parameter_offload", None)
    for name, attribute in _GATHERING_SETTINGS.items():
        kept[name] = getattr(gathering, attribute, None)
    return {name: value for name, value in kept.items() if value is not None}


def _overlaps(optimizer: Any) -> bool:
    """Stage 3 keeps no word of it: its reductions have a stream of their own or they have not."""
    stream = getattr(optimizer, "reduce_and_partition_stream", None)
    if stream is not None:
        return bool(stream != get_accelerator().default_stream())
    return bool(getattr(optimizer, "overlap_comm", False))


def _zero_stage(optimizer: Any) -> int:
    """What is sharded over ranks: 1 the optimizer's states, 2 also gradients, 3 parameters."""
    match type(optimizer).__name__:
        case "DeepSpeedZeroOptimizer_Stage3":
            return 3
        case "DeepSpeedZeroOptimizer":
            return 2 if optimizer.partition_gradients else 1
        case "BF16_Optimizer":
            return int(max(optimizer.partition_count) > 1)
        case _:
            return 0


def _offload(optimizer: Any) -> str:
    """Only ZeRO's optimizers offload."""
    if getattr(optimizer, "offload_param", False):
        return "params"
    offloads = getattr(optimizer, "cpu_offload", False), getattr(optimizer, "offload_optimizer", 0)
    return "optimizer" if any(offloads) else "none"


def _replicas(engine: Any) -> int:
    """Groups of ranks that hold a whole copy of the parameters for forward and backward (hpZ)."""
    group = groups._get_zero_param_intra_parallel_group()
    return 1 if group is None else int(engine.dp_world_size) // dist.get_world_size(group)


def _updated_weights(optimizer: Any) -> list[torch.Tensor]:
    """The fp32 weights that this rank's optimizer holds, whole or its partition of them."""
    match type(optimizer).__name__:
        case "DeepSpeedZeroOptimizer_Stage3":
            return list(optimizer.fp32_partitioned_groups_flat)
        case "DeepSpeedZeroOptimizer":
            return list(optimizer.single_partition_of_fp32_groups)
        case "BF16_Optimizer":
            return list(optimizer.fp32_groups_flat_partition)
        case _:
            return [weights for group in optimizer.param_groups for weights in group["params"]]
