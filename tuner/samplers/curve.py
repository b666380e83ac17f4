"""What is known of candidates' costs before any trial: logs of a cost, given a few coefficients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Protocol

import numpy as np

from tuner.cost_model.coefficients import (
    DEFAULT,
    MEMORY_PRIOR_STD,
    TIME_PRIOR_STD,
    MemoryCoefficients,
    TimeCoefficients,
    logs,
)
from tuner.cost_model.prediction import Subject, peak_memory, rows_of_subjects, step_times
from tuner.plan_arrays import PlanArrays
from tuner.samplers.evidence import FloatArray, IntArray

_STEP = 0.02
"""Relative change of a coefficient to see its effect."""


class Curve(Protocol):
    """The log of a cost of candidates as a function of the logs of coefficients."""

    prior: FloatArray
    """Logs of the coefficients before any trial, shape (k,); k may be 0."""
    prior_std: FloatArray

    def logs(self, theta: FloatArray, rows: IntArray) -> FloatArray:
        """Log costs of these candidates."""
        ...


class FixedCurve:
    """Costs given as they are: no coefficient to fit."""

    def __init__(self, log_costs: FloatArray) -> None:
        self.prior = np.zeros(0)
        self.prior_std = np.zeros(0)
        self._log_costs = log_costs

    def logs(self, theta: FloatArray, rows: IntArray) -> FloatArray:
        """The given logs of these candidates."""
        return self._log_costs[rows]


class PhysicalCurve:
    """The cost model over plans; candidates may differ in the program that runs them."""

    def __init__(
        self,
        subjects: Sequence[Subject],
        plans: PlanArrays,
        cost: Callable[[Subject, PlanArrays, FloatArray], FloatArray],
        prior: FloatArray,
        prior_std: FloatArray,
    ) -> None:
        """Takes one subject for all plans, or one a plan."""
        self.prior, self.prior_std = prior, prior_std
        self._plans, self._cost = plans, cost
        self._subjects: list[Subject] = []
        self._which = np.zeros(len(plans), dtype=np.int64)
        of_rows = rows_of_subjects(subjects) if len(subjects) > 1 else [(subjects[0], None)]
        for number, (subject, rows) in enumerate(of_rows):
            self._subjects.append(subject)
            if rows is not None:
                self._which[rows] = number

    def logs(self, theta: FloatArray, rows: IntArray) -> FloatArray:
        """Log costs of these candidates."""
        found = np.zeros(len(rows))
        which = self._which[rows]
        for number, subject in enumerate(self._subjects):
            here = np.flatnonzero(which == number)
            if len(here):
                plans = self._plans.kept(rows[here])
                found[here] = np.log(np.maximum(self._cost(subject, plans, theta), 1e-12))
        return found


def time_curve(subjects: Sequence[Subject], plans: PlanArrays) -> PhysicalCurve:
    """Log seconds of a step."""
    names = [f.name for f in fields(TimeCoefficients)]

    def cost(subject: Subject, some: PlanArrays, theta: FloatArray) -> FloatArray:
        values = dict(zip(names, np.exp(theta).tolist(), strict=True))
        return step_times(subject, some, TimeCoefficients(**values))

    stds = np.array([TIME_PRIOR_STD[name] for name in names])
    return PhysicalCurve(subjects, plans, cost, logs(DEFAULT.time), stds)


def memory_curve(subjects: Sequence[Subject], plans: PlanArrays) -> PhysicalCurve:
    """Log peak bytes of the fullest rank."""
    names = [f.name for f in fields(MemoryCoefficients)]

    def cost(subject: Subject, some: PlanArrays, theta: FloatArray) -> FloatArray:
        values = dict(zip(names, np.exp(theta).tolist(), strict=True))
        return peak_memory(subject, some, MemoryCoefficients(**values))

    stds = np.array([MEMORY_PRIOR_STD[name] for name in names])
    return PhysicalCurve(subjects, plans, cost, logs(DEFAULT.memory), stds)


def slopes(curve: Curve, theta: FloatArray, rows: IntArray, at: FloatArray) -> FloatArray:
    """Derivatives of the log costs by the logs of the coefficients, shape (len(rows), k)."""
    found = np.zeros((len(rows), len(theta)))
    for index in range(len(theta)):
        moved = theta.copy()
        moved[index] += _STEP
        found[:, index] = (curve.logs(moved, rows) - at) / _STEP
    return found
