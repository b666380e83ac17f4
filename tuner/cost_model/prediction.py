"""What the cost model says of plans: seconds a step and bytes of every stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.cluster import Cluster
from tuner.cost_model.case import Case, Subject, case_of, subject_of
from tuner.cost_model.coefficients import (
    DEFAULT,
    Coefficients,
    MemoryCoefficients,
    TimeCoefficients,
)
from tuner.cost_model.layout import FloatArray
from tuner.cost_model.memory import LATE_TERM, candidate_stages, stage_memory
from tuner.cost_model.time import step_terms
from tuner.plan import ParallelPlan
from tuner.plan_arrays import IntArray, PlanArrays
from tuner.workload import Workload

_BLOCK = 16384
"""Plans predicted at a time: their arrays stay in the processor's cache."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Predictions:
    """Of many plans, from shapes and datasheets; not measured. Shape (n,) each."""

    step_time_s: FloatArray
    peak_memory_bytes: FloatArray
    """Of the fullest rank."""
    needed_memory_bytes: FloatArray
    """Of the fullest rank, less what its allocator could have back: decides whether it fits."""


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


def predictions(
    subject: Subject, plans: PlanArrays, coefficients: Coefficients = DEFAULT
) -> Predictions:
    """What plans should cost, in order."""
    seconds, peaks, needs = [np.zeros(0)], [np.zeros(0)], [np.zeros(0)]
    for start in range(0, len(plans), _BLOCK):
        case = case_of(subject, _sliced(plans, start, start + _BLOCK))
        seconds.append(_total(step_terms(case, coefficients.time)))
        peak, needed = _peak_and_needed(case, coefficients.memory)
        peaks.append(peak)
        needs.append(needed)
    return Predictions(
        step_time_s=np.concatenate(seconds),
        peak_memory_bytes=np.concatenate(peaks),
        needed_memory_bytes=np.concatenate(needs),
    )


def step_times(subject: Subject, plans: PlanArrays, coefficients: TimeCoefficients) -> FloatArray:
    """Seconds a step, shape (n,)."""
    return _total(step_terms(case_of(subject, plans), coefficients))


def peak_memory(
    subject: Subject, plans: PlanArrays, coefficients: MemoryCoefficients
) -> FloatArray:
    """Bytes of the fullest stage, shape (n,)."""
    return _peak_and_needed(case_of(subject, plans), coefficients)[0]


def needed_memory(
    subject: Subject, plans: PlanArrays, coefficients: MemoryCoefficients
) -> FloatArray:
    """Bytes that the fullest stage cannot do without, shape (n,)."""
    return _peak_and_needed(case_of(subject, plans), coefficients)[1]


def _peak_and_needed(case: Case, coefficients: MemoryCoefficients) -> tuple[FloatArray, FloatArray]:
    peak = needed = np.zeros(len(case.lay))
    for stage in candidate_stages(case.lay):
        terms = stage_memory(case, stage, coefficients)
        total = _total(terms)
        peak = np.maximum(peak, total)
        needed = np.maximum(needed, total - terms[LATE_TERM])
    return peak, needed


def memory_of_stage(
    subject: Subject, plans: PlanArrays, stage: int, coefficients: MemoryCoefficients
) -> FloatArray:
    """Bytes of one stage of every plan, shape (n,); a negative one counts from the end."""
    case = case_of(subject, plans)
    depth = case.lay.pp
    wanted = depth + stage if stage < 0 else np.minimum(float(stage), depth - 1)
    return _total(stage_memory(case, wanted, coefficients))


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
    subject = subject_of(workload, cluster)
    if subject is None:
        return (None,) * len(plans)
    found = predictions(subject, plans)
    return tuple(
        Prediction(step_time_s=float(seconds), peak_memory_bytes=float(peak))
        for seconds, peak in zip(found.step_time_s, found.peak_memory_bytes, strict=True)
    )


def breakdown(
    subject: Subject, plan: ParallelPlan, coefficients: Coefficients = DEFAULT
) -> Breakdown:
    """Where a plan's bytes and seconds go."""
    case = case_of(subject, PlanArrays.of_plans([plan]))
    stages = [
        stage_memory(case, np.array([float(stage)]), coefficients.memory)
        for stage in range(plan.pp)
    ]
    totals = [float(_total(terms)[0]) for terms in stages]
    fullest = stages[int(np.argmax(totals))]
    seconds = step_terms(case, coefficients.time)
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
    seconds, peaks, needs = (np.zeros(len(plans)) for _ in range(3))
    for subject, where in rows_of_subjects(subjects):
        found = predictions(subject, plans.kept(where), coefficients)
        seconds[where], peaks[where] = found.step_time_s, found.peak_memory_bytes
        needs[where] = found.needed_memory_bytes
    return Predictions(step_time_s=seconds, peak_memory_bytes=peaks, needed_memory_bytes=needs)


def rows_of_subjects(subjects: Sequence[Subject]) -> list[tuple[Subject, IntArray]]:
    """Every distinct subject with the positions of its rows."""
    where: dict[Subject, list[int]] = {}
    for position, subject in enumerate(subjects):
        where.setdefault(subject, []).append(position)
    return [(subject, np.asarray(rows, dtype=np.int64)) for subject, rows in where.items()]
