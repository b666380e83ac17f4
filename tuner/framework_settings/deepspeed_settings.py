"""DeepSpeed's settings of ZeRO: buckets, overlapping, prefetching (0.19)."""

from __future__ import annotations

from tuner.framework_settings.setting import (
    FrameworkSetting,
    SettingCase,
    Values,
    always,
    carried_only,
    switched,
)
from tuner.launch import SettingValue
from tuner.plan import Backend, Offload

LARGEST_BUCKET = 500_000_000
"""Elements; DeepSpeed's own default, 1 GB in 16 bits."""
_ZERO = "ds_config.json: zero_optimization."
_CONFIG = "deepspeed/runtime/zero/config.py"


def model_sized_bucket(case: SettingCase) -> int:
    """Elements. DeepSpeed allocates buckets whole: they must not exceed a small model.

    Rounded up: an all-gather bucket must be a multiple of NCCL's start alignment, 2.
    """
    num_params = case.num_params
    return LARGEST_BUCKET if num_params is None else min(LARGEST_BUCKET, _even(num_params))


def _even(number: int) -> int:
    return number + number % 2


def _has_buckets(case: SettingCase) -> bool:
    return case.plan.zero_stage >= 1


def _below_stage_3(case: SettingCase) -> bool:
    return case.plan.zero_stage in (1, 2)


def _is_stage_3(case: SettingCase) -> bool:
    return case.plan.zero_stage == 3


def _overlaps(case: SettingCase) -> bool:
    """With a pipeline DeepSpeed turns it off (rule DS-23); CPU ranks have one stream."""
    return _has_buckets(case) and case.on_gpus and case.plan.pp == 1


def _bucket_default(case: SettingCase, values: Values) -> int:
    return model_sized_bucket(case)


def _bucket_options(case: SettingCase, value: SettingValue) -> tuple[SettingValue, ...]:
    """A quarter, a sixteenth, and where the model is larger twice as much."""
    most = model_sized_bucket(case)
    larger = (2 * most,) if most == LARGEST_BUCKET else ()
    smaller = (_even(most // 4), _even(most // 16))
    return tuple(size for size in (*smaller, *larger) if size not in (0, value))


def _positive(value: SettingValue, values: Values, case: SettingCase) -> str | None:
    return None if value > 0 else f"must be above 0 (rule DS-31), got {value}"


def _not_negative(value: SettingValue, values: Values, case: SettingCase) -> str | None:
    return None if value >= 0 else f"must be at least 0 (rule DS-31), got {value}"


def _aligned(value: SettingValue, values: Values, case: SettingCase) -> str | None:
    if value < 0 or value % 2:
        return f"must be a multiple of 2 (rule DS-33) and at least 0 (rule DS-31), got {value}"
    return None


DEEPSPEED_SETTINGS: tuple[FrameworkSetting, ...] = (
    FrameworkSetting(
        name="reduce_bucket_size",
        backends=(Backend.DEEPSPEED,),
        written=f"{_ZERO}reduce_bucket_size",
        is_switch=False,
        applies=_has_buckets,
        default=_bucket_default,
        options=_bucket_options,
        wrong=_positive,
        source=f"{_CONFIG}; rule DS-31",
    ),
    FrameworkSetting(
        name="allgather_bucket_size",
        backends=(Backend.DEEPSPEED,),
        written=f"{_ZERO}allgather_bucket_size",
        is_switch=False,
        applies=_below_stage_3,
        default=_bucket_default,
        options=_bucket_options,
        wrong=_aligned,
        source=f"{_CONFIG}; rules DS-31 and DS-33",
    ),
    FrameworkSetting(
        name="overlap_comm",
        backends=(Backend.DEEPSPEED,),
        written=f"{_ZERO}overlap_comm",
        is_switch=True,
        applies=_overlaps,
        default=always(True),
        options=switched,
        source=f"{_CONFIG}; rules DS-23 and DS-32",
    ),
    FrameworkSetting(
        name="contiguous_gradients",
        backends=(Backend.DEEPSPEED,),
        written=f"{_ZERO}contiguous_gradients",
        is_switch=True,
        # Below stage 3, offloading turns it on whatever it is told (stage_1_and_2.py).
        applies=lambda case: (
            _has_buckets(case) and (_is_stage_3(case) or case.plan.offload is Offload.NONE)
        ),
        default=always(True),
        options=switched,
        source="deepspeed/runtime/zero/stage_1_and_2.py, stage3.py",
    ),
    FrameworkSetting(
        name="round_robin_gradients",
        backends=(Backend.DEEPSPEED,),
        written=f"{_ZERO}round_robin_gradients",
        is_switch=True,
        applies=_below_stage_3,
        default=always(False),
        # It spreads the copies to host memory over the ranks: of no use without offload.
        options=lambda case, value: () if case.plan.offload is Offload.NONE else (not value,),
        source=f"{_CONFIG}: round_robin_gradients",
    ),
    FrameworkSetting(
        name="stage3_prefetch_bucket_size",
        backends=(Backend.DEEPSPEED,),
        written=f"{_ZERO}stage3_prefetch_bucket_size",
        is_switch=False,
        applies=_is_stage_3,
        default=lambda case, values: min(50_000_000, model_sized_bucket(case)),
        options=lambda case, value: tuple(
            size
            for size in (0, min(200_000_000, model_sized_bucket(case)), 10_000_000)
            if size != value and size <= model_sized_bucket(case)
        ),
        wrong=_not_negative,
        source=f"{_CONFIG}; rule DS-31",
    ),
    FrameworkSetting(
        name="stage3_param_persistence_threshold",
        backends=(Backend.DEEPSPEED,),
        written=f"{_ZERO}stage3_param_persistence_threshold",
        is_switch=False,
        applies=_is_stage_3,
        default=lambda case, values: min(100_000, model_sized_bucket(case)),
        options=lambda case, value: tuple(size for size in (1_000_000, 10_000) if size != value),
        wrong=_not_negative,
        source=f"{_CONFIG}; rule DS-31",
    ),
    FrameworkSetting(
        name="stage3_max_live_parameters",
        backends=(Backend.DEEPSPEED,),
        written=f"{_ZERO}stage3_max_live_parameters",
        is_switch=False,
        applies=_is_stage_3,
        default=always(1_000_000_000),
        options=carried_only,
        wrong=_not_negative,
        source=f"{_CONFIG}; rule DS-31",
    ),
    FrameworkSetting(
        name="stage3_max_reuse_distance",
        backends=(Backend.DEEPSPEED,),
        written=f"{_ZERO}stage3_max_reuse_distance",
        is_switch=False,
        applies=_is_stage_3,
        default=always(1_000_000_000),
        options=carried_only,
        wrong=_not_negative,
        source=f"{_CONFIG}; rule DS-31",
    ),
)
