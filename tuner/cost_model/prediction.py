"""What the cost model says of a plan: seconds a step and bytes of the fullest rank."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.cluster import Cluster
from tuner.cost_model.memory import memory_terms
from tuner.cost_model.time import time_terms
from tuner.plan import ParallelPlan
from tuner.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Of one plan, from shapes and datasheets; not measured."""

    step_time_s: float
    peak_memory_bytes: float


def prediction(workload: Workload, cluster: Cluster, plan: ParallelPlan) -> Prediction | None:
    """What a plan should cost; None for a user's own module, of which nothing is known."""
    shape = workload.shape
    if shape is None:
        return None
    return Prediction(
        step_time_s=time_terms(shape, workload, cluster, plan).total_s,
        peak_memory_bytes=memory_terms(shape, workload, cluster, plan).total_bytes,
    )
