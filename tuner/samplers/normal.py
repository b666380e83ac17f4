"""The normal distribution over arrays: chances, and the gain that is expected of a guess."""

from __future__ import annotations

from math import erf, pi, sqrt

import numpy as np

from tuner.samplers.evidence import FloatArray

_ERF = np.frompyfunc(erf, 1, 1)


def chance_below(z: FloatArray) -> FloatArray:
    """Probability that a standard normal variable is below z."""
    return np.asarray(0.5 * (1 + np.asarray(_ERF(np.asarray(z) / sqrt(2)), dtype=np.float64)))


def density(z: FloatArray) -> FloatArray:
    """Of the standard normal distribution."""
    return np.asarray(np.exp(-(np.asarray(z) ** 2) / 2) / sqrt(2 * pi))


def rough_chance_below(z: FloatArray) -> FloatArray:
    """The same within 0.01, many times as fast: the logistic curve."""
    return np.asarray(1 / (1 + np.exp(np.clip(-1.702 * z, -500, 500))))


def expected_gain(lead: FloatArray, std: FloatArray) -> FloatArray:
    """Expected improvement of normal variables that lead by ``lead``; same unit as both."""
    z = lead / std
    return np.asarray(np.maximum(lead * chance_below(z) + std * density(z), 0.0))
