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
        "micro_batch": int(engine.train_micro_batch_size_per_gpu()),
        "precision": precision,
        "offload": offload,
        "optimizer": type(engine.optimizer).__name__,
    }
