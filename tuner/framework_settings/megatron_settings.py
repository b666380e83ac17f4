"""Megatron-Core's settings of its data parallelism and its interleaved pipeline (0.16)."""

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

_DDP = "megatron/core/distributed/distributed_data_parallel_config.py"
_FEWEST = 100_000
"""Parameters: a smaller bucket is all latency."""


def _reduces(case: SettingCase) -> bool:
    return case.data_parallel * case.plan.cp > 1


def _shards(case: SettingCase) -> bool:
    return _reduces(case) and case.plan.zero_stage == 1


def _interleaves(case: SettingCase) -> bool:
    return case.plan.vpp > 1


def _needs_reduce(value: SettingValue, values: Values, case: SettingCase) -> str | None:
    if value and not values["overlap_grad_reduce"]:
        return "needs overlap_grad_reduce (rule MC-60), got it without; turn both on, or both off"
    return None


def _overlaps_reduce(values: Values, case: SettingCase) -> bool:
    return bool(values["overlap_grad_reduce"])


def megatrons_bucket(case: SettingCase) -> int:
    """Parameters; what DistributedDataParallel takes unless told."""
    return max(40_000_000, 1_000_000 * case.data_parallel)


def _bucket_options(case: SettingCase, value: SettingValue) -> tuple[SettingValue, ...]:
    """A quarter and a sixteenth of what a rank holds; four times the default if it holds more."""
    if case.num_params is None:
        return ()
    plan = case.plan
    held = case.num_params // (plan.tp * plan.pp * plan.vpp)
    sizes = [size for size in (held // 4, held // 16) if size >= _FEWEST]
    if held > 2 * megatrons_bucket(case):
        sizes = [size for size in sizes if size < megatrons_bucket(case)]
        sizes.append(4 * megatrons_bucket(case))
    return tuple(size for size in sizes if size != value)


def _group_options(case: SettingCase, value: SettingValue) -> tuple[SettingValue, ...]:
    sizes = (case.plan.pp, 2 * case.plan.pp, case.num_microbatches)
    return tuple(
        size
        for size in dict.fromkeys(sizes)
        if size != value and _group_fits(size, {}, case) is None
    )


def _group_fits(value: SettingValue, values: Values, case: SettingCase) -> str | None:
    pp, number = case.plan.pp, case.num_microbatches
    rest = number % value if value > 0 else 1
    if pp <= value <= number and (rest == 0 or rest >= pp):
        return None
    return (
        f"must be from pp ({pp}) to the number of micro-batches ({number}) and leave none or at "
        f"least pp over (rule MC-21), got {value}"
    )


MEGATRON_SETTINGS: tuple[FrameworkSetting, ...] = (
    FrameworkSetting(
        name="overlap_grad_reduce",
        backends=(Backend.MEGATRON,),
        written="megatron.args: --overlap-grad-reduce",
        is_switch=True,
        applies=_reduces,
        default=always(True),
        options=switched,
        takes_along=lambda value: () if value else (("overlap_param_gather", False),),
        source=f"{_DDP}; rule MC-60",
    ),
    FrameworkSetting(
        name="overlap_param_gather",
        backends=(Backend.MEGATRON,),
        written="megatron.args: --overlap-param-gather",
        is_switch=True,
        applies=_shards,
        default=lambda case, values: values["overlap_grad_reduce"],
        options=switched,
        works=_overlaps_reduce,
        wrong=_needs_reduce,
        source=f"{_DDP}; rule MC-60",
    ),
    FrameworkSetting(
        name="align_param_gather",
        backends=(Backend.MEGATRON,),
        written="megatron.args: --no-align-param-gather",
        is_switch=True,
        # Without interleaving it is turned off, whatever it is told.
        applies=lambda case: _shards(case) and _interleaves(case),
        default=always(True),
        options=switched,
        works=lambda values, case: bool(values["overlap_param_gather"]),
        source=f"{_DDP}; rule MC-27",
    ),
    FrameworkSetting(
        name="ddp_bucket_size",
        backends=(Backend.MEGATRON,),
        written="megatron.args: --ddp-bucket-size",
        is_switch=False,
        applies=_reduces,
        default=lambda case, values: megatrons_bucket(case),
        options=_bucket_options,
        # Without overlapping there is one bucket, whatever its size.
        works=_overlaps_reduce,
        wrong=positive,
        source=_DDP,
    ),
    FrameworkSetting(
        name="ddp_average_in_collective",
        backends=(Backend.MEGATRON,),
        written="megatron.args: --ddp-average-in-collective",
        is_switch=True,
        # gloo does not average; experts of other data-parallel groups scale by themselves.
        applies=lambda case: _reduces(case) and case.on_gpus and case.plan.ep == 1,
        default=always(False),
        options=switched,
        source=f"{_DDP}; rule MC-82",
    ),
    FrameworkSetting(
        name="microbatch_group_size",
        backends=(Backend.MEGATRON,),
        written="megatron.args: --microbatch-group-size-per-virtual-pipeline-stage",
        is_switch=False,
        applies=_interleaves,
        default=lambda case, values: case.plan.pp,
        options=_group_options,
        wrong=_group_fits,
        source="megatron/core/pipeline_parallel/schedules.py; rule MC-21",
    ),
)
