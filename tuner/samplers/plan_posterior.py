"""What trials taught about plans: a linear model of the log of a cost over knob options."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.plan import ParallelPlan

FloatArray = NDArray[np.float64]

_EFFECT_STD = 0.7
"""A priori, an option doubles or halves a cost (log 2 = 0.69) about a third of the time."""
_NOISE_STD = 0.06
"""Run-to-run noise of step times; 6-13 % is what users report."""


def plan_features(plans: Sequence[ParallelPlan]) -> FloatArray:
    """One row a plan, one column for each option of each knob, alone and per backend."""
    names: dict[tuple[str, str, str], int] = {}
    rows: list[list[int]] = []
    for plan in plans:
        row = []
        for knob, value in plan.to_dict().items():
            for backend in ("", str(plan.backend)):
                key = (backend, knob, str(value))
                row.append(names.setdefault(key, len(names)))
        rows.append(row)
    features = np.zeros((len(plans), len(names)))
    for index, row in enumerate(rows):
        features[index, row] = 1.0
    return features


class LinearPosterior:
    """Bayesian linear regression on the plans' features, around a prior guess of the log cost."""

    def __init__(self, features: FloatArray, prior_log: FloatArray) -> None:
        """Features have shape (n, k) for the n plans, the prior log cost has shape (n,)."""
        # The kernel form: n plans may be many, but only the tried ones are ever inverted.
        self._features = features * (_EFFECT_STD / np.sqrt(features.sum(axis=1).max()))
        self._prior_log = prior_log

    def mean_and_std(self, tried: Sequence[int], logs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Posterior of the log cost of every plan, each of shape (n,).

        Args:
            tried: indices of the measured plans.
            logs: log of their measured costs, same order.
        """
        own_variance = np.einsum("ij,ij->i", self._features, self._features) * 1.0
        if len(tried) == 0:
            return self._prior_log, np.sqrt(own_variance)
        residual = logs - self._prior_log[list(tried)]
        offset = float(residual.mean())
        known = self._features[list(tried)]
        gram = known @ known.T + _NOISE_STD**2 * np.eye(len(tried))
        cross = self._features @ known.T
        mean = self._prior_log + offset + cross @ np.linalg.solve(gram, residual - offset)
        explained = np.einsum("ij,ji->i", cross, np.linalg.solve(gram, cross.T))
        return mean, np.sqrt(np.maximum(own_variance - explained, 1e-6))
