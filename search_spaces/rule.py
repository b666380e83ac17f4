"""A rule as data: who it binds, which plans break it, and the sentence that says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from search_spaces.plan_arrays import BoolArray, IntArray, PlanArrays
from tuner.cluster import Cluster
from tuner.plan import Backend, ParallelPlan
from tuner.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What plans are judged against."""

    workload: Workload
    cluster: Cluster

    def data_parallel(self, arrays: PlanArrays) -> IntArray:
        """Data-parallel degree, shape (n,); floored where the degrees do not divide the GPUs."""
        split = arrays.ints("tp") * arrays.ints("pp") * arrays.ints("cp")
        return np.maximum(1, self.cluster.num_gpus // split)

    def num_microbatches(self, arrays: PlanArrays) -> IntArray:
        """Micro-batches of one data-parallel rank in a step, shape (n,), floored."""
        rows = arrays.ints("micro_batch") * self.data_parallel(arrays)
        return self.workload.global_batch_sequences // rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule of the table."""

    id: str
    backends: tuple[Backend, ...]
    breaks: Callable[[PlanArrays, Setting], BoolArray]
    """True where a plan breaks the rule, shape (n,)."""
    says: Callable[[ParallelPlan, Setting], str]
    """What must hold, what was got, what to do, for a plan that breaks it."""
    summary: str
    """What must hold, for all plans."""
    source: str
    """Where the rule was found: file of the framework, or why it is ours."""


ALL = (Backend.PYTORCH, Backend.DEEPSPEED, Backend.MEGATRON)
"""Rules that bind every framework."""


def backend_mask(arrays: PlanArrays, backends: tuple[Backend, ...]) -> BoolArray:
    """Plans of these backends, shape (n,)."""
    return arrays.equals("backend", *[str(backend) for backend in backends])
