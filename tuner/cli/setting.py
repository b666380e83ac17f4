"""What every command starts from: the job, its legal plans, and what is predicted of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from search_spaces.enumeration import search_space
from search_spaces.rule import Setting
from tuner.cli.found_cluster import found_cluster
from tuner.cost_model.calibration import calibrated
from tuner.cost_model.case import subject_of
from tuner.cost_model.fit import usable_within
from tuner.cost_model.prediction import predictions
from tuner.cost_model.sureness import Sureness, sureness
from tuner.job import Job, read_job
from tuner.plan import Backend, ParallelPlan, Precision
from tuner.search_space import SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Predicted:
    """What is predicted of every legal plan, in their order."""

    step_time_s: NDArray[np.float64]
    peak_memory_bytes: NDArray[np.float64]
    fits: NDArray[np.bool_]
    """What cannot be given back, with the allocator's fragmentation, is within the limit."""


@dataclass(frozen=True, kw_only=True, eq=False)  # no slots: what is predicted is kept here
class Planned:
    """A job with its legal plans and their predictions."""

    job: Job
    space: SearchSpace

    @cached_property
    def predicted(self) -> Predicted | None:
        """Made when first asked for; None for a user's own module, of which nothing is known."""
        job = self.job
        subject = subject_of(job.workload, job.cluster)
        if subject is None:
            return None
        found = predictions(subject, self.space.plans)
        usable_bytes = usable_within(job.cluster.gpu, job.memory_limit_bytes)
        return Predicted(
            step_time_s=found.step_time_s,
            peak_memory_bytes=found.peak_memory_bytes,
            fits=found.needed_memory_bytes <= usable_bytes,
        )

    def sureness_of(self, indices: Sequence[int]) -> Sequence[Sureness] | None:
        """How sure the predictions of these legal plans are; None of none, or as ``predicted``."""
        subject = subject_of(self.job.workload, self.job.cluster)
        if subject is None or not indices:
            return None
        usable_bytes = usable_within(self.job.cluster.gpu, self.job.memory_limit_bytes)
        plans = self.space.plans.kept(np.asarray(indices, dtype=np.int64))
        return sureness(calibrated(()), subject, plans, usable_bytes)

    @property
    def num_fitting(self) -> int:
        """Legal plans that are predicted to fit; of an unknown model, all."""
        return len(self.space.plans) if self.predicted is None else int(self.predicted.fits.sum())


def planned(path: Path, ray_address: str | None = None) -> Planned:
    """Reads a job file and enumerates; ``cluster: auto`` asks the Ray, or this machine."""
    return planned_job(read_job(path, lambda: found_cluster(ray_address)))


def planned_job(job: Job) -> Planned:
    """The legal plans of a job, with what is predicted of them."""
    return Planned(job=job, space=search_space(job_setting(job), job.asked))


def job_setting(job: Job) -> Setting:
    """What the plans of a job are judged against, with the versions that it is planned for."""
    return Setting(workload=job.workload, cluster=job.cluster, stack=job.stack)


def default_plans(space: SearchSpace) -> dict[Backend, ParallelPlan]:
    """What each framework does unless told otherwise: data parallelism, micro-batch 1.

    In the job's first precision; a framework whose default is not legal here is left out.
    """
    precision = Precision(str(dict(space.knobs)["precision"][0]))
    defaults = {backend: ParallelPlan(backend=backend, precision=precision) for backend in Backend}
    return {backend: plan for backend, plan in defaults.items() if plan in space.plans}
