"""What a DeepSpeed engine says of its layout, in the words of the plan."""

from __future__ import annotations

from typing import Any


def engine_facts(engine: Any) -> dict[str, Any]:
    """The knobs that every engine can be asked for."""
    precision = "bf16" if engine.bfloat16_enabled() else "fp16" if engine.fp16_enabled() else "fp32"
    offload = "none"
    if engine.zero_offload_optimizer() is not None:
        offload = "optimizer"
    if engine.zero_offload_param() is not None:
        offload = "params"
    return {
        "backend": "deepspeed",
        "zero_stage": int(engine.zero_optimization_stage()),
        "dp_replicate": _replicas(engine),
        "micro_batch": int(engine.train_micro_batch_size_per_gpu()),
        "tp": max(1, int(engine.autotp_size())),
        # One unless the engine has a grid of stages; the others are not carried out here.
        "pp": 1,
        "vpp": 1,
        "cp": 1,
        "ep": 1,
        "sequence_parallel": False,
        "precision": precision,
        "offload": offload,
        "optimizer": type(engine.optimizer).__name__,
    }


def _replicas(engine: Any) -> int:
    """Groups of ranks that hold a whole copy of the parameters for forward and backward (hpZ)."""
    shards = int(engine.zero_hpz_partition_size())
    return 1 if shards == 1 else int(engine.dp_world_size) // shards
