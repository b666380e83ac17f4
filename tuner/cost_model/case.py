"""One subject with some of its plans laid out: what memory and time are worked out from."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.cluster import Cluster
from tuner.cost_model.layout import Layout, layout
from tuner.cost_model.software import Software
from tuner.cost_model.stages import StageTable, stage_table
from tuner.model_shape import ModelShape
from tuner.plan_arrays import PlanArrays
from tuner.workload import Workload

OWN_SOFTWARE = Software()
"""What this product's trials run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What plans are predicted for."""

    shape: ModelShape
    workload: Workload
    cluster: Cluster
    software: Software = OWN_SOFTWARE


def subject_of(workload: Workload, cluster: Cluster) -> Subject | None:
    """What this product's own trials are predicted for; None for a model without a shape."""
    shape = workload.shape
    return None if shape is None else Subject(shape=shape, workload=workload, cluster=cluster)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Case:
    """A subject and some plans of it."""

    shape: ModelShape
    software: Software
    cluster: Cluster
    lay: Layout
    table: StageTable


def case_of(subject: Subject, plans: PlanArrays) -> Case:
    """The plans laid out."""
    lay = layout(subject.workload, subject.cluster, plans)
    return Case(
        shape=subject.shape,
        software=subject.software,
        cluster=subject.cluster,
        lay=lay,
        table=stage_table(subject.shape, subject.software, lay),
    )
