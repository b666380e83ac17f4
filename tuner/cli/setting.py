"""What every command starts from: the job, its legal plans, and what is predicted of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runners.backends.launch import launch_for
from search_spaces.enumeration import search_space
from search_spaces.rule import Setting
from tuner.cli.found_cluster import found_cluster
from tuner.cost_model.case import Subject
from tuner.cost_model.prediction import predictions
from tuner.errors import UserError
from tuner.job import Job, read_job
from tuner.plan import Backend, ParallelPlan, Precision
from tuner.search_space import Removal, SearchSpace
from tuner.stack import installed_stack


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Predicted:
    """What is predicted of every legal plan, in their order."""

    step_time_s: NDArray[np.float64]
    peak_memory_bytes: NDArray[np.float64]
    fits: NDArray[np.bool_]
    """Within what a rank may allocate."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Planned:
    """A job with its legal plans and their predictions."""

    job: Job
    space: SearchSpace
    predicted: Predicted | None
    """None for a user's own module, of which nothing is known."""

    @property
    def num_fitting(self) -> int:
        """Legal plans that are predicted to fit; of an unknown model, all."""
        return len(self.space.plans) if self.predicted is None else int(self.predicted.fits.sum())


def planned(path: Path) -> Planned:
    """Reads a job file and enumerates; needs no GPU unless the file says ``cluster: auto``."""
    return planned_job(read_job(path, found_cluster))


def planned_job(job: Job) -> Planned:
    """The legal plans of a job, with what is predicted of them."""
    space = _describable(job, search_space(job_setting(job), job.asked))
    return Planned(job=job, space=space, predicted=_predicted(job, space))


def _predicted(job: Job, space: SearchSpace) -> Predicted | None:
    shape = job.workload.shape
    if shape is None:
        return None
    subject = Subject(shape=shape, workload=job.workload, cluster=job.cluster)
    found = predictions(subject, space.plans)
    return Predicted(
        step_time_s=found.step_time_s,
        peak_memory_bytes=found.peak_memory_bytes,
        fits=found.peak_memory_bytes <= job.memory_limit_bytes,
    )


def job_setting(job: Job) -> Setting:
    """What the plans of a job are judged against, with the versions that are installed here."""
    return Setting(workload=job.workload, cluster=job.cluster, stack=installed_stack())


def _describable(job: Job, space: SearchSpace) -> SearchSpace:
    """Without the frameworks that cannot build this model; the waterfall says what they said."""
    removals = list(space.waterfall)
    plans = space.plans
    for backend in Backend:
        own = plans.equals("backend", backend)
        if not own.any():
            continue
        try:
            launch_for(plans[int(own.argmax())], job.workload, job.cluster, job.measurement)
        except UserError as error:
            plans = plans.kept(~own)
            sentence = f"{backend} cannot train this model: {error}"
            removals.append(Removal(rule="M-01", removed=int(own.sum()), sentence=sentence))
    return replace(space, plans=plans, waterfall=tuple(removals))


def default_plans(space: SearchSpace) -> dict[Backend, ParallelPlan]:
    """What each framework does unless told otherwise: data parallelism, micro-batch 1.

    In the job's first precision; a framework whose default is not legal here is left out.
    """
    precision = Precision(str(dict(space.knobs)["precision"][0]))
    defaults = {backend: ParallelPlan(backend=backend, precision=precision) for backend in Backend}
    return {backend: plan for backend, plan in defaults.items() if plan in space.plans}
