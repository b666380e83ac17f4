"""What is known of candidates' costs before any trial: logs of a cost, given a few coefficients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Protocol

import numpy as np

from tuner.cost_model.case import Subject, case_of
from tuner.cost_model.coefficients import (
    DEFAULT,
    MEMORY_PRIOR_STD,
    TIME_PRIOR_STD,
    MemoryCoefficients,
    TimeCoefficients,
    logs,
)
from tuner.cost_model.prediction import needed_memory, rows_of_subjects
from tuner.cost_model.time import step_terms
from tuner.plan_arrays import PlanArrays
from tuner.samplers.evidence import FloatArray, IntArray

_BLOCK = 16384
"""Plans computed at a time: their arrays stay in the processor's cache."""
_MAX_PRIOR_STD = 0.5
"""Of the log of a coefficient: a less sure one would have the search explore what it touches,
while what near plans have in common is learnt without it."""
STEP = 0.02
"""Relative change of a coefficient to see its effect."""


LogCosts = Callable[[FloatArray], FloatArray]
"""Log costs of some candidates as a function of the logs of the coefficients."""


class Curve(Protocol):
    """The log of a cost of candidates as a function of the logs of coefficients."""

    prior: FloatArray
    """Logs of the coefficients before any trial, shape (k,); k may be 0."""
    prior_std: FloatArray

    def of(self, rows: IntArray) -> LogCosts:
        """Of these candidates; what does not depend on the coefficients is computed here."""
        ...


class FixedCurve:
    """Costs given as they are: no coefficient to fit."""

    def __init__(self, log_costs: FloatArray) -> None:
        self.prior = np.zeros(0)
        self.prior_std = np.zeros(0)
        self._log_costs = log_costs

    def of(self, rows: IntArray) -> LogCosts:
        """The given logs of these candidates."""
        return lambda _: self._log_costs[rows]


class PhysicalCurve:
    """The cost model over plans; candidates may differ in the program that runs them."""

    def __init__(
        self,
        subjects: Sequence[Subject],
        plans: PlanArrays,
        cost: Callable[[Subject, PlanArrays], Callable[[FloatArray], FloatArray]],
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

    def of(self, rows: IntArray) -> LogCosts:
        """Log costs of these candidates."""
        which = self._which[rows]
        parts = []
        for number, subject in enumerate(self._subjects):
            here = np.flatnonzero(which == number)
            for start in range(0, len(here), _BLOCK):
                some = here[start : start + _BLOCK]
                parts.append((some, self._cost(subject, self._plans.kept(rows[some]))))

        def log_costs(theta: FloatArray) -> FloatArray:
            found = np.zeros(len(rows))
            for some, cost in parts:
                found[some] = np.log(np.maximum(cost(np.exp(theta)), 1e-12))
            return found

        return log_costs


def time_curve(subjects: Sequence[Subject], plans: PlanArrays) -> PhysicalCurve:
    """Log seconds of a step."""
    names = [f.name for f in fields(TimeCoefficients)]

    def cost(subject: Subject, some: PlanArrays) -> Callable[[FloatArray], FloatArray]:
        case = case_of(subject, some)

        def seconds(values: FloatArray) -> FloatArray:
            named = TimeCoefficients(**dict(zip(names, values.tolist(), strict=True)))
            terms = step_terms(case, named)
            return np.asarray(sum(terms.values()))

        return seconds

    stds = np.array([min(TIME_PRIOR_STD[name], _MAX_PRIOR_STD) for name in names])
    return PhysicalCurve(subjects, plans, cost, logs(DEFAULT.time), stds)


def memory_curve(subjects: Sequence[Subject], plans: PlanArrays) -> PhysicalCurve:
    """Log peak bytes of the fullest rank."""
    names = [f.name for f in fields(MemoryCoefficients)]

    def cost(subject: Subject, some: PlanArrays) -> Callable[[FloatArray], FloatArray]:
        def peaks(values: FloatArray) -> FloatArray:
            named = MemoryCoefficients(**dict(zip(names, values.tolist(), strict=True)))
            return needed_memory(subject, some, named)

        return peaks

    stds = np.array([MEMORY_PRIOR_STD[name] for name in names])
    return PhysicalCurve(subjects, plans, cost, logs(DEFAULT.memory), stds)
