"""A plan as what would be started: the front door of the three frameworks."""

from __future__ import annotations

from typing import assert_never

from runners.backends.deepspeed_zero import deepspeed_launch
from runners.backends.megatron_core import megatron_launch
from runners.backends.pytorch_native import pytorch_launch
from tuner.cluster import Cluster
from tuner.launch import LaunchSpec, Measurement
from tuner.plan import Backend, ParallelPlan
from tuner.workload import Workload


def launch_for(
    plan: ParallelPlan, workload: Workload, cluster: Cluster, measurement: Measurement
) -> LaunchSpec:
    """What a trial of this plan starts with; starts nothing."""
    match plan.backend:
        case Backend.PYTORCH:
            return pytorch_launch(plan, workload, cluster, measurement)
        case Backend.DEEPSPEED:
            return deepspeed_launch(plan, workload, cluster, measurement)
        case Backend.MEGATRON:
            return megatron_launch(plan, workload, cluster, measurement)
        case _:
            assert_never(plan.backend)
