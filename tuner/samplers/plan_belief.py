"""What is believed of every candidate, given the trials: its step time and whether it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tuner.cost_model.case import Subject
from tuner.plan import KNOB_NAMES
from tuner.plan_arrays import PlanArrays
from tuner.samplers.candidates import Candidates
from tuner.samplers.curve import Curve, FixedCurve, memory_curve, time_curve
from tuner.samplers.evidence import BoolArray, Evidence, FloatArray, IntArray
from tuner.samplers.fit_belief import FitBelief
from tuner.samplers.kernel import EffectStd, Likeness
from tuner.samplers.time_belief import TimeFit, time_fit

SHORTLIST = 1500
"""Candidates that are looked at closely; the others are much slower or sure not to fit."""
_HOPELESS = 0.02
"""A lower chance to fit is not looked at closely while others are left."""
PHYSICS_STD = EffectStd(common=0.1, known_knob=0.15, unknown_knob=0.15, together=0.1)
"""Of what the cost model does not explain."""
NO_PHYSICS_STD = EffectStd(common=2.0, known_knob=0.4, unknown_knob=0.4, together=0.4)
"""Where nothing is predicted: an option doubles a step time in one case out of ten."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Outlook:
    """What is expected of the candidates worth a look."""

    rows: IntArray
    """Their positions; the arrays below are in this order."""
    mean: FloatArray
    """Of the log seconds of a step."""
    std: FloatArray
    fit: FloatArray
    """Probability to run."""

    def kept(self, left: BoolArray) -> Outlook:
        """Of those candidates where ``left`` holds."""
        keep = left[self.rows]
        return Outlook(
            rows=self.rows[keep], mean=self.mean[keep], std=self.std[keep], fit=self.fit[keep]
        )


class Belief(Protocol):
    """What a sampler needs to know."""

    def outlook(self, evidence: Evidence, left: BoolArray) -> Outlook:
        """Of the candidates where ``left`` holds, those worth a look."""
        ...

    def chance_to_run(self, evidence: Evidence, rows: IntArray) -> FloatArray:
        """Of these candidates."""
        ...


class PlanBelief:
    """Curves re-fitted to the trials, and a Gaussian process over what they do not explain."""

    def __init__(
        self, candidates: Candidates, time: Curve, fit: FitBelief, likeness: Likeness
    ) -> None:
        self._candidates, self._time, self._fit = candidates, time, fit
        self._likeness = likeness

    def outlook(self, evidence: Evidence, left: BoolArray) -> Outlook:
        """Of the candidates where ``left`` holds, those worth a look."""
        evidence = evidence.shortened()
        fitted = self._fitted(evidence)
        rows = self._shortlist(evidence, fitted, np.flatnonzero(left))
        mean, std = fitted.mean_and_std(rows)
        return Outlook(rows=rows, mean=mean, std=std, fit=self._fit.chance(evidence, rows))

    def chance_to_run(self, evidence: Evidence, rows: IntArray) -> FloatArray:
        """Of these candidates."""
        return self._fit.chance(evidence.shortened(), rows)

    def _fitted(self, evidence: Evidence) -> TimeFit:
        logs = np.log(evidence.seconds)
        fitted = time_fit(self._time, self._likeness, evidence.measured, logs)
        if not len(evidence.running):
            return fitted
        # What runs is taken to turn out as expected, so that the next one is not its twin.
        guessed, _ = fitted.mean_and_std(evidence.running)
        tried = np.concatenate([evidence.measured, evidence.running])
        return time_fit(self._time, self._likeness, tried, np.concatenate([logs, guessed]))

    def _shortlist(self, evidence: Evidence, fitted: TimeFit, left: IntArray) -> IntArray:
        if len(left) <= SHORTLIST:
            return left
        hopeful = self._fit.rough_chance(evidence)[left] >= _HOPELESS
        some = left[hopeful] if hopeful.any() else left
        if len(some) <= SHORTLIST:
            return some
        rough = fitted.rough_mean(some)
        return np.sort(some[np.argpartition(rough, SHORTLIST)[:SHORTLIST]])


def physical_belief(
    candidates: Candidates,
    subjects: Sequence[Subject],
    plans: PlanArrays,
    limit_bytes: float,
    *,
    size_known: bool = True,
) -> PlanBelief:
    """From the cost model; ``subjects`` holds one for all candidates or one for each."""
    likeness = Likeness(candidates, PHYSICS_STD, frozenset(KNOB_NAMES))
    fit = FitBelief(
        candidates, memory_curve(subjects, plans), likeness, limit_bytes, size_known=size_known
    )
    return PlanBelief(candidates, time_curve(subjects, plans), fit, likeness)


def plain_belief(
    candidates: Candidates, limit_bytes: float = 1.0, log_peaks: FloatArray | None = None
) -> PlanBelief:
    """Where no cost model applies; memory is a coin's toss unless ``log_peaks`` says more."""
    likeness = Likeness(candidates, NO_PHYSICS_STD, frozenset())
    peaks = np.full(len(candidates), np.log(limit_bytes / 2)) if log_peaks is None else log_peaks
    fit = FitBelief(
        candidates, FixedCurve(peaks), likeness, limit_bytes, size_known=log_peaks is not None
    )
    return PlanBelief(candidates, FixedCurve(np.zeros(len(candidates))), fit, likeness)


__all__ = ["Belief", "Outlook", "PlanBelief", "physical_belief", "plain_belief"]
