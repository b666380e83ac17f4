"""How long steps of candidates should take, given the trials: physics re-fitted, and the rest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tuner.cost_model.posterior import slopes
from tuner.samplers.curve import STEP, Curve
from tuner.samplers.evidence import FloatArray, IntArray
from tuner.samplers.kernel import Likeness
from tuner.samplers.normal import density

NOISE_STD = 0.02
"""Of the log of a measured step time, where nothing disturbs it."""
HICCUP_CHANCE = 0.05
"""Share of trials that a slow node, network or storage makes far too slow, by e on average."""
_ITERATIONS = 6
_SCALES = (1.0, 2.0, 4.0)
"""Of the standard deviations of what physics does not explain; trials choose."""
_SCALE_STD = 0.7
_MAX_STEP = 1.0
"""Prior standard deviations that a coefficient may move at a time."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TimeFit:
    """Coefficients and residuals that explain the measured step times."""

    curve: Curve
    likeness: Likeness
    tried: IntArray
    theta: FloatArray
    tried_slopes: FloatArray
    """Shape (m, k)."""
    weights: FloatArray
    """Solved residuals: what the covariance with the tried is multiplied with."""
    inverse: FloatArray
    """Of the covariance of the tried, noise included."""
    scale: float

    def physical(self, rows: IntArray) -> FloatArray:
        """Log seconds by the re-fitted cost model alone."""
        return self.curve.of(rows)(self.theta)

    def rough_mean(self, rows: IntArray) -> FloatArray:
        """Cheap: physics and each knob's own effect, without what near plans tell."""
        effects = self.likeness.knob_effects(self.tried, self.weights)
        return np.asarray(self.physical(rows) + self.scale**2 * effects[rows])

    def mean_and_std(self, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """Of the log seconds of these candidates, noise not included."""
        log_seconds = self.curve.of(rows)
        physical = log_seconds(self.theta)
        slope = slopes(log_seconds, self.theta, physical, step=STEP)
        prior = self.curve.prior_std**2
        alike = self.scale**2 * self.likeness.between(rows, self.tried)
        both = alike + (slope * prior) @ self.tried_slopes.T
        mean = physical + alike @ self.weights
        own = self.scale**2 * self.likeness.variance + (slope**2) @ prior
        explained = np.einsum("ij,ij->i", both @ self.inverse, both)
        return mean, np.sqrt(np.maximum(own - explained, 1e-6))


def time_fit(curve: Curve, likeness: Likeness, tried: IntArray, log_seconds: FloatArray) -> TimeFit:
    """The most likely coefficients, and what they leave unexplained, of these trials.

    Gauss-Newton on the coefficients with the residuals' covariance; what had a hiccup counts less.
    """
    alike, predicted = likeness.between(tried, tried), curve.of(tried)
    theta = curve.prior.copy()
    noise = np.full(len(tried), NOISE_STD**2)
    scale = 1.0
    inverse, slope = np.zeros((0, 0)), np.zeros((len(tried), len(theta)))
    solved = np.zeros(len(tried))
    for _ in range(_ITERATIONS if len(tried) else 0):
        found = predicted(theta)
        slope = slopes(predicted, theta, found, step=STEP)
        wanted = log_seconds - found + slope @ (theta - curve.prior)
        physics = (slope * curve.prior_std**2) @ slope.T
        scale, inverse = _scaled(physics, alike, noise, wanted)
        solved = inverse @ wanted
        step = curve.prior + curve.prior_std**2 * (slope.T @ solved) - theta
        limit = _MAX_STEP * curve.prior_std
        theta = theta + np.clip(step, -limit, limit)
        noise = _noise(solved, inverse)
    return TimeFit(
        curve=curve,
        likeness=likeness,
        tried=tried,
        theta=theta,
        tried_slopes=slope,
        weights=solved,
        inverse=inverse,
        scale=scale,
    )


def _noise(solved: FloatArray, inverse: FloatArray) -> FloatArray:
    """Variance of each measurement: large where the others say that it had a hiccup."""
    variance = 1 / np.diag(inverse)
    late = solved * variance  # than the other trials let expect
    expected = density(late / np.sqrt(variance)) / np.sqrt(variance)
    hiccup = np.where(late > 0, HICCUP_CHANCE * np.exp(-np.maximum(late, 0.0)), 0.0)
    share = hiccup / (hiccup + (1 - HICCUP_CHANCE) * expected + 1e-300)
    return np.asarray(NOISE_STD**2 + share * late**2)


def _scaled(
    physics: FloatArray, alike: FloatArray, noise: FloatArray, wanted: FloatArray
) -> tuple[float, FloatArray]:
    """The likeliest scale of the residuals, and the inverse of the covariance with it."""
    best: tuple[float, float, FloatArray] | None = None
    for scale in _SCALES:
        covariance = physics + scale**2 * alike + np.diag(noise)
        inverse: FloatArray = np.linalg.inv(covariance).astype(np.float64)
        _, log_determinant = np.linalg.slogdet(covariance)
        fit = -0.5 * (wanted @ inverse @ wanted + log_determinant)
        fit -= 0.5 * (np.log(scale) / _SCALE_STD) ** 2
        if best is None or fit > best[0]:
            best = (float(fit), scale, inverse)
    assert best is not None
    return best[1], best[2]
