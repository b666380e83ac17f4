"""A rule as data: who it binds, which plans break it, and the sentence that says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tuner.cluster import Cluster
from tuner.plan import Backend, ParallelPlan
from tuner.plan_arrays import BoolArray, IntArray, PlanArrays
from tuner.stack import Stack
from tuner.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What plans are judged against."""

    workload: Workload
    cluster: Cluster
    stack: Stack
    """The versions that the plans are made for."""

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
    knobs: tuple[str, ...]
    """Knobs that ``breaks`` looks at: it is asked as soon as these are chosen."""
    breaks: Callable[[PlanArrays, Setting], BoolArray]
    """True where a plan breaks the rule, shape (n,)."""
    says: Callable[[ParallelPlan, Setting], str]
    """What must hold, what was got, what to do, for a plan that breaks it."""
    summary: str
    """What must hold, for all plans."""
    source: str
    """Where the rule was found: file of the framework, or why it is ours."""
    versions: tuple[str, str] | None = None
    """Distribution and PEP 440 specifier that the rule binds; None = whatever the version."""

    def binds(self, stack: Stack) -> bool:
        """Whether the rule holds for these versions."""
        return self.versions is None or stack.has(*self.versions)


ALL = (Backend.PYTORCH, Backend.DEEPSPEED, Backend.MEGATRON)
"""Rules that bind every framework."""


def backend_mask(arrays: PlanArrays, backends: tuple[Backend, ...]) -> BoolArray:
    """Plans of these backends, shape (n,)."""
    return arrays.equals("backend", *[str(backend) for backend in backends])
