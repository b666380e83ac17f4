"""What the cost model says of plans: seconds a step and bytes of every stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.cluster import Cluster
from tuner.cost_model.coefficients import (
    DEFAULT,
    Coefficients,
    MemoryCoefficients,
    TimeCoefficients,
)
from tuner.cost_model.layout import FloatArray, layout
from tuner.cost_model.memory import candidate_stages, stage_memory
from tuner.cost_model.software import Software
from tuner.cost_model.stages import stage_table
from tuner.cost_model.time import step_terms
from tuner.model_shape import ModelShape
from tuner.plan import ParallelPlan
from tuner.plan_arrays import IntArray, PlanArrays
from tuner.workload import Workload

_BLOCK = 16384
"""Plans predicted at a time: their arrays stay in the processor's cache."""
OWN_SOFTWARE = Software()
"""What this product's trials run."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Predictions:
    """Of many plans, from shapes and datasheets; not measured. Shape (n,) each."""

    step_time_s: FloatArray
    peak_memory_bytes: FloatArray
    """Of the fullest rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Of one plan, term by term."""

    memory_bytes: Mapping[str, float]
    """Of the fullest stage."""
    memory_bytes_by_stage: tuple[float, ...]
    time_s: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Of one plan, from shapes and datasheets; not measured."""

    step_time_s: float
    peak_memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What plans are predicted for."""

    shape: ModelShape
    workload: Workload
    cluster: Cluster
    software: Software = OWN_SOFTWARE


def predictions(
    subject: Subject, plans: PlanArrays, coefficients: Coefficients = DEFAULT
) -> Predictions:
    """What plans should cost, in order."""
    seconds, peaks = [np.zeros(0)], [np.zeros(0)]
    for start in range(0, len(plans), _BLOCK):
        some = _sliced(plans, start, start + _BLOCK)
        seconds.append(step_times(subject, some, coefficients.time))
        peaks.append(peak_memory(subject, some, coefficients.memory))
    return Predictions(step_time_s=np.concatenate(seconds), peak_memory_bytes=np.concatenate(peaks))


def step_times(subject: Subject, plans: PlanArrays, coefficients: TimeCoefficients) -> FloatArray:
    """Seconds a step, shape (n,)."""
    lay = layout(subject.workload, subject.cluster, plans)
    table = stage_table(subject.shape, subject.software, lay)
    terms = step_terms(subject.shape, subject.software, subject.cluster, lay, table, coefficients)
    return _total(terms)


def peak_memory(
    subject: Subject, plans: PlanArrays, coefficients: MemoryCoefficients
) -> FloatArray:
    """Bytes of the fullest stage, shape (n,)."""
    lay = layout(subject.workload, subject.cluster, plans)
    table = stage_table(subject.shape, subject.software, lay)
    stages = [
        _total(stage_memory(subject.shape, subject.software, lay, table, stage, coefficients))
        for stage in candidate_stages(lay)
    ]
    return np.asarray(np.max(stages, axis=0))


def memory_of_stage(
    subject: Subject, plans: PlanArrays, stage: int, coefficients: MemoryCoefficients
) -> FloatArray:
    """Bytes of one stage of every plan, shape (n,); a negative one counts from the end."""
    lay = layout(subject.workload, subject.cluster, plans)
    table = stage_table(subject.shape, subject.software, lay)
    wanted = lay.pp + stage if stage < 0 else np.minimum(float(stage), lay.pp - 1)
    return _total(stage_memory(subject.shape, subject.software, lay, table, wanted, coefficients))


def stage_peaks(
    subject: Subject, plans: PlanArrays, coefficients: Coefficients = DEFAULT
) -> list[tuple[float, ...]]:
    """Peak bytes of every stage of every plan, from the first stage to the last."""
    depths = plans.ints("pp")
    columns = [
        memory_of_stage(subject, plans, stage, coefficients.memory)
        for stage in range(int(depths.max()))
    ]
    rows = np.stack(columns, axis=1)
    return [
        tuple(float(size) for size in row[:depth]) for row, depth in zip(rows, depths, strict=True)
    ]


def prediction(workload: Workload, cluster: Cluster, plan: ParallelPlan) -> Prediction | None:
    """What a plan should cost; None for a user's own module, of which nothing is known."""
    return plan_predictions(workload, cluster, PlanArrays.of_plans([plan]))[0]


def plan_predictions(
    workload: Workload, cluster: Cluster, plans: PlanArrays
) -> tuple[Prediction | None, ...]:
    """What each plan should cost; None for a user's own module, of which nothing is known."""
    if workload.shape is None:
        return (None,) * len(plans)
    subject = Subject(shape=workload.shape, workload=workload, cluster=cluster)
    found = predictions(subject, plans)
    return tuple(
        Prediction(step_time_s=float(seconds), peak_memory_bytes=float(peak))
        for seconds, peak in zip(found.step_time_s, found.peak_memory_bytes, strict=True)
    )


def breakdown(
    subject: Subject, plan: ParallelPlan, coefficients: Coefficients = DEFAULT
) -> Breakdown:
    """Where a plan's bytes and seconds go."""
    shape, software = subject.shape, subject.software
    lay = layout(subject.workload, subject.cluster, PlanArrays.of_plans([plan]))
    table = stage_table(shape, software, lay)
    stages = [
        stage_memory(shape, software, lay, table, np.array([float(s)]), coefficients.memory)
        for s in range(plan.pp)
    ]
    totals = [float(_total(terms)[0]) for terms in stages]
    fullest = stages[int(np.argmax(totals))]
    seconds = step_terms(shape, software, subject.cluster, lay, table, coefficients.time)
    return Breakdown(
        memory_bytes={name: float(value[0]) for name, value in fullest.items()},
        memory_bytes_by_stage=tuple(totals),
        time_s={name: float(value[0]) for name, value in seconds.items()},
    )


def _sliced(plans: PlanArrays, start: int, stop: int) -> PlanArrays:
    return PlanArrays(columns={name: array[start:stop] for name, array in plans.columns.items()})


def _total(terms: Mapping[str, FloatArray]) -> FloatArray:
    return np.asarray(sum(terms.values()))


def predictions_of_rows(
    subjects: Sequence[Subject], plans: PlanArrays, coefficients: Coefficients = DEFAULT
) -> Predictions:
    """What plans should cost, each of its own subject, in order."""
    seconds, peaks = np.zeros(len(plans)), np.zeros(len(plans))
    for subject, where in rows_of_subjects(subjects):
        found = predictions(subject, plans.kept(where), coefficients)
        seconds[where], peaks[where] = found.step_time_s, found.peak_memory_bytes
    return Predictions(step_time_s=seconds, peak_memory_bytes=peaks)


def rows_of_subjects(subjects: Sequence[Subject]) -> list[tuple[Subject, IntArray]]:
    """Every distinct subject with the positions of its rows."""
    where: dict[Subject, list[int]] = {}
    for position, subject in enumerate(subjects):
        where.setdefault(subject, []).append(position)
    return [(subject, np.asarray(rows, dtype=np.int64)) for subject, rows in where.items()]
