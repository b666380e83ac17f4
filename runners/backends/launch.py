"""A plan as what would be started: the front door of the three frameworks."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from runners.backends.deepspeed_zero import deepspeed_launch
from runners.backends.megatron_core import megatron_launch
from runners.backends.pytorch_native import pytorch_launch
from tuner.cluster import Cluster
from tuner.framework_settings.pytorch_settings import ALLOCATOR_VARIABLE, EXPANDABLE_SEGMENTS
from tuner.framework_settings.setting import SettingCase
from tuner.framework_settings.table import applied
from tuner.launch import LaunchSpec, Measurement, Settings
from tuner.plan import Backend, ParallelPlan
from tuner.workload import Workload


def launch_for(
    plan: ParallelPlan,
    workload: Workload,
    cluster: Cluster,
    measurement: Measurement,
    settings: Settings = (),
) -> LaunchSpec:
    """What a trial of this plan starts with; starts nothing.

    ``settings`` are the framework's; of them, those that apply to the plan are launched.
    """
    case = SettingCase(plan=plan, workload=workload, cluster=cluster)
    asked = applied(case, settings)
    spec = _launch(case, measurement, asked)
    expands = dict(asked).get("expandable_segments", False)
    allocator = ((ALLOCATOR_VARIABLE, EXPANDABLE_SEGMENTS),) if expands else ()
    return replace(spec, env=(*spec.env, *allocator), settings=asked)


def _launch(case: SettingCase, measurement: Measurement, asked: Settings) -> LaunchSpec:
    plan, workload, cluster = case.plan, case.workload, case.cluster
    match plan.backend:
        case Backend.PYTORCH:
            return pytorch_launch(plan, workload, cluster, measurement, asked)
        case Backend.DEEPSPEED:
            return deepspeed_launch(plan, workload, cluster, measurement, asked)
        case Backend.MEGATRON:
            return megatron_launch(plan, workload, cluster, measurement, asked)
        case _:
            assert_never(plan.backend)
