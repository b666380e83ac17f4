"""PyTorch's settings of DDP and FSDP2, and its CUDA allocator's, which all frameworks share."""

from __future__ import annotations

from tuner.framework_settings.setting import (
    FrameworkSetting,
    SettingCase,
    Values,
    always,
    positive,
    switched,
)
from tuner.launch import SettingValue
from tuner.plan import Backend

ALLOCATOR_VARIABLE = "PYTORCH_ALLOC_CONF"
"""Of torch since 2.9; before, PYTORCH_CUDA_ALLOC_CONF."""
EXPANDABLE_SEGMENTS = "expandable_segments:True"
_TABLE = "pytorch.toml: paratune."
_DDP = "torch/nn/parallel/distributed.py"
_FSDP = "torch/distributed/fsdp/_fully_shard/_fully_shard.py"
_MB = 2**20
DDP_BUCKET_CAP_MB = 25


def _uses_ddp(case: SettingCase) -> bool:
    plan = case.plan
    return plan.zero_stage < 2 and plan.tp * plan.pp == 1 and case.data_parallel > 1


def _shards(case: SettingCase) -> bool:
    return case.plan.zero_stage >= 2 and case.data_parallel > 1


def _gathers_twice(case: SettingCase) -> bool:
    """Parameters are sharded again after the forward pass and gathered for the backward one."""
    return case.plan.zero_stage == 3 and case.data_parallel > 1


def _bucket_options(case: SettingCase, value: SettingValue) -> tuple[SettingValue, ...]:
    """Of other sizes those that make another number of buckets of this model's gradients."""
    if case.num_params is None:
        return (10, 100)
    gradient_mb = 4 * case.num_params / _MB  # master weights and gradients are fp32
    counts = {-(-gradient_mb // value)}
    found = []
    for size in (4, 10, 50, 200):
        count = -(-gradient_mb // size)
        if size != value and count not in counts:
            counts.add(count)
            found.append(size)
    return tuple(found)


def _layers_ahead(value: SettingValue, values: Values, case: SettingCase) -> str | None:
    layers = None if case.workload.shape is None else case.workload.shape.num_layers
    if value < 0 or (layers is not None and value >= layers):
        return f"must be from 0 (torch's own) to one less than the layers ({layers}), got {value}"
    return None


PYTORCH_SETTINGS: tuple[FrameworkSetting, ...] = (
    FrameworkSetting(
        name="ddp_bucket_cap_mb",
        backends=(Backend.PYTORCH,),
        written=f"{_TABLE}ddp_bucket_cap_mb",
        is_switch=False,
        applies=_uses_ddp,
        default=always(DDP_BUCKET_CAP_MB),
        options=_bucket_options,
        wrong=positive,
        source=_DDP,
    ),
    FrameworkSetting(
        name="ddp_gradient_as_bucket_view",
        backends=(Backend.PYTORCH,),
        written=f"{_TABLE}ddp_gradient_as_bucket_view",
        is_switch=True,
        applies=_uses_ddp,
        default=always(True),
        options=switched,
        source=_DDP,
    ),
    FrameworkSetting(
        name="ddp_static_graph",
        backends=(Backend.PYTORCH,),
        written=f"{_TABLE}ddp_static_graph",
        is_switch=True,
        # Its first iteration must reduce: torch 2.13 stops at an assertion of its own where
        # micro-batches accumulate without (no_sync).
        applies=lambda case: _uses_ddp(case) and case.num_microbatches == 1,
        default=always(False),
        options=switched,
        source=f"{_DDP}; rule PT-05",
    ),
    FrameworkSetting(
        name="fsdp_forward_prefetch",
        backends=(Backend.PYTORCH,),
        written=f"{_TABLE}fsdp_forward_prefetch",
        is_switch=False,
        applies=_shards,
        default=always(0),
        options=lambda case, value: tuple(depth for depth in (1, 2) if depth != value),
        wrong=_layers_ahead,
        source=f"{_FSDP}: set_modules_to_forward_prefetch",
    ),
    FrameworkSetting(
        name="fsdp_backward_prefetch",
        backends=(Backend.PYTORCH,),
        written=f"{_TABLE}fsdp_backward_prefetch",
        is_switch=False,
        applies=_gathers_twice,
        default=always(0),
        # One layer ahead is what torch does by itself.
        options=lambda case, value: (2,) if value != 2 else (0,),
        wrong=_layers_ahead,
        source=f"{_FSDP}: set_modules_to_backward_prefetch",
    ),
    FrameworkSetting(
        name="fsdp_reshard_last_layer",
        backends=(Backend.PYTORCH,),
        written=f"{_TABLE}fsdp_reshard_last_layer",
        is_switch=True,
        applies=_gathers_twice,
        default=always(True),
        options=switched,
        source="torch/distributed/fsdp/_fully_shard/_fsdp_init.py; rule F2-02",
    ),
)

ALLOCATOR_SETTINGS: tuple[FrameworkSetting, ...] = (
    FrameworkSetting(
        name="expandable_segments",
        backends=(Backend.PYTORCH, Backend.DEEPSPEED, Backend.MEGATRON),
        written=f"the environment: {ALLOCATOR_VARIABLE}={EXPANDABLE_SEGMENTS}",
        is_switch=True,
        applies=lambda case: case.on_gpus,
        default=always(False),
        options=switched,
        source="torch's notes on CUDA memory; rules MC-65 and MC-66 bind what is not launched here",
    ),
)
