"""How likely candidates are to run: memory as predicted, moved by what ran and what did not."""

from __future__ import annotations

from math import log

import numpy as np

from tuner.cost_model.posterior import slopes
from tuner.samplers.candidates import Candidates
from tuner.samplers.curve import STEP, Curve
from tuner.samplers.evidence import BoolArray, Evidence, FloatArray, IntArray
from tuner.samplers.kernel import Likeness
from tuner.samplers.normal import chance_below, density, rough_chance_below

COMMON_STD = 0.03
"""Of the log of a peak: what the cost model misses of all plans alike."""
KNOB_STD = 0.02
"""Of each option of a knob: what it misses of the plans with this option."""
OWN_STD = 0.04
"""Of each plan: allocator rounding, fragmentation."""
UNKNOWN_SIZE_STD = 0.35
"""Where the GPU is sold in two sizes and nobody says which: half of log 2."""
PEAK_NOISE_STD = 0.02
CRASH_CHANCE = 0.05
"""Of a plan to end for a reason other than memory, before anything is known of its like."""
FALSE_ALARM = 1 / 12
"""Of what is said to be out of memory, the share that crashed for another reason."""
_RAN_LAPSE = 1e-3
_PRIOR_WEIGHT = 1.0
"""Trials' worth that ``CRASH_CHANCE`` counts against the trials of similar plans."""
_MAX_OPTIONS = 300
"""Options of knobs that get an effect of their own on memory."""
_NEEDS_MORE = {"micro_batch": 1, "zero_stage": -1}
"""All else equal, the peak never falls (1) or never rises (-1) with these numbers."""
_NEEDS_MORE_WORDS = {
    "recompute": ("full", "selective", "none"),
    "offload": ("params", "optimizer", "none"),
}
"""All else equal, the peak never falls along these words."""


class FitBelief:
    """Linear model of the log peak around a predicted curve, learnt from limits and peaks."""

    def __init__(
        self,
        candidates: Candidates,
        curve: Curve,
        likeness: Likeness,
        limit_bytes: float,
        *,
        size_known: bool = True,
    ) -> None:
        self._curve, self._likeness = curve, likeness
        self._limit = log(limit_bytes)
        self._size_std = 0.0 if size_known else UNKNOWN_SIZE_STD
        self._candidates = candidates
        self._demand = _Demand(candidates)
        self._prior = curve.of(np.arange(len(candidates)))(curve.prior)

    def rough_chance(self, evidence: Evidence) -> FloatArray:
        """Cheap, of all candidates, a little too hopeful: the prediction, never lowered."""
        lift = 0.0
        ran = self._prior[evidence.measured]
        if len(ran):
            lift = max(0.0, float(ran.max()) - self._limit)
        std = np.hypot(self._size_std, 0.2)
        return rough_chance_below((self._limit + lift - self._prior) / std)

    def chance(self, evidence: Evidence, rows: IntArray) -> FloatArray:
        """Probability of each of these candidates to run at all."""
        tried = np.concatenate([evidence.measured, evidence.too_large]).astype(np.int64)
        known = self._features(np.concatenate([tried, rows]))
        features, wanted = known[: len(tried)], known[len(tried) :]
        mean, covariance = self._learnt(evidence, tried, features)
        centre, std = self._moments(rows, wanted, mean, covariance)
        fit = chance_below((self._limit - centre) / std)
        count = len(evidence.measured)
        own_centre, own_std = self._moments(tried[count:], features[count:], mean, covariance)
        tried_fit = chance_below((self._limit - own_centre) / own_std)
        # Bayes: it was said to be out of memory, which crashes are, too.
        crash = FALSE_ALARM * tried_fit / np.maximum(1 - tried_fit * (1 - FALSE_ALARM), 1e-9)
        fit = self._ordered(evidence, rows, fit, crash)
        return np.asarray(fit * (1 - self._crash_chance(evidence, rows, crash)))

    def _features(self, rows: IntArray) -> FloatArray:
        """Directions in which the log peak may differ from the prediction, one std long."""
        curve, candidates = self._curve, self._candidates
        slope = slopes(curve.of(rows), curve.prior, self._prior[rows], step=STEP)
        slope = slope * curve.prior_std
        common = np.full((len(rows), 1), float(np.hypot(COMMON_STD, self._size_std)))
        parts = [slope, common]
        num_options = 0
        for name in candidates.telling():
            column = candidates.names.index(name)
            num_options += (count := len(candidates.options[name]))
            if num_options <= _MAX_OPTIONS:
                parts.append(KNOB_STD * np.eye(count)[candidates.codes[rows, column]])
        return np.concatenate(parts, axis=1)

    def _moments(
        self, rows: IntArray, features: FloatArray, mean: FloatArray, covariance: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        variance = np.einsum("ij,ij->i", features @ covariance, features)
        return self._prior[rows] + features @ mean, np.sqrt(variance + OWN_STD**2)

    def _learnt(
        self, evidence: Evidence, tried: IntArray, features: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Mean and covariance of the weights, by matching moments trial by trial."""
        mean, covariance = np.zeros(features.shape[1]), np.eye(features.shape[1])
        for order, row in enumerate(tried):
            feature = features[order]
            across = covariance @ feature
            variance = float(feature @ across)
            centre = float(self._prior[row] + feature @ mean)
            peak = evidence.peaks.get(int(row))
            if peak is not None:
                noise = OWN_STD**2 + PEAK_NOISE_STD**2
                pull, sharpen = (log(peak) - centre) / (variance + noise), -1 / (variance + noise)
            else:
                ran = order < len(evidence.measured)
                pull, sharpen = _of_limit(centre - self._limit, variance + OWN_STD**2, ran=ran)
            mean = mean + across * pull
            covariance = covariance + np.outer(across, across) * sharpen
        return mean, covariance

    def _ordered(
        self, evidence: Evidence, rows: IntArray, fit: FloatArray, crash: FloatArray
    ) -> FloatArray:
        """Sure knowledge: what needs as much as a plan that did not fit does not fit either."""
        at_least = self._demand.at_least(rows, evidence.too_large)
        doomed = np.where(at_least, crash[None, :], 1.0).min(axis=1, initial=1.0)
        at_most = self._demand.at_most(rows, evidence.measured).any(axis=1)
        return np.where(at_most, np.maximum(fit, 1 - CRASH_CHANCE), fit * doomed)

    def _crash_chance(self, evidence: Evidence, rows: IntArray, crash: FloatArray) -> FloatArray:
        """Smoothed share of crashes among similar plans."""
        tried = np.concatenate([evidence.measured, evidence.too_large, evidence.failed])
        rate = np.concatenate(
            [np.zeros(len(evidence.measured)), crash, np.ones(len(evidence.failed))]
        )
        near = self._likeness.near(rows, tried.astype(np.int64))
        told = _PRIOR_WEIGHT * CRASH_CHANCE + near @ rate
        return np.asarray(told / (_PRIOR_WEIGHT + near.sum(axis=1)))


def _of_limit(excess: float, variance: float, *, ran: bool) -> tuple[float, float]:
    """First and second derivative, by the mean, of the log chance of what was seen."""
    std = variance**0.5
    z = excess / std
    sign = -1.0 if ran else 1.0
    lapse = _RAN_LAPSE if ran else FALSE_ALARM
    chance = float(chance_below(np.array(sign * z)))
    total = lapse + (1 - lapse) * chance
    slope = sign * (1 - lapse) * float(density(np.array(z))) / std
    bend = -z / std * slope
    first = slope / total
    return first, bend / total - first**2


class _Demand:
    """Which candidates provably need at least as much memory as others."""

    def __init__(self, candidates: Candidates) -> None:
        ordered: list[FloatArray] = []
        same: list[FloatArray] = []
        for column, name in enumerate(candidates.names):
            codes = candidates.codes[:, column]
            order = _order(candidates, name)
            if order is None:
                same.append(codes.astype(np.float64))
            else:
                ordered.append(order[codes])
        empty = np.zeros((len(candidates), 0))
        self._ordered = np.column_stack(ordered) if ordered else empty
        self._same = np.column_stack(same) if same else empty

    def at_least(self, rows: IntArray, others: IntArray) -> BoolArray:
        """Where a row needs at least as much as another, shape (len(rows), len(others))."""
        found = np.ones((len(rows), len(others)), dtype=np.bool_)
        for column in range(self._ordered.shape[1]):
            values = self._ordered[:, column]
            found &= values[rows][:, None] >= values[others][None, :]
        for column in range(self._same.shape[1]):
            values = self._same[:, column]
            found &= values[rows][:, None] == values[others][None, :]
        return found

    def at_most(self, rows: IntArray, others: IntArray) -> BoolArray:
        """Where a row needs at most as much as another, shape (len(rows), len(others))."""
        return self.at_least(others, rows).T


def _order(candidates: Candidates, name: str) -> FloatArray | None:
    """Numbers that grow with the memory needed, one an option; None where that is not sure."""
    options = candidates.options[name]
    if name in _NEEDS_MORE:
        return np.array([_NEEDS_MORE[name] * float(value) for value in options])
    if name in _NEEDS_MORE_WORDS:
        return np.array([float(_NEEDS_MORE_WORDS[name].index(str(v))) for v in options])
    return None
