"""Fits positive coefficients to measured logs: the most probable ones, and how sure they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tuner.cost_model.layout import FloatArray

_STEP = 1e-3
"""Of the log of a coefficient, for the numerical derivative."""
_ITERATIONS = 12
_OUTLIER = 3.0
"""In units of the noise: residuals beyond weigh less and less (Student's t)."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LogPosterior:
    """Of k coefficients' logs, normal around the most probable ones."""

    mean: FloatArray
    """Shape (k,)."""
    covariance: FloatArray
    """Shape (k, k)."""
    noise: float
    """Standard deviation of a measured log around the model, as the residuals show."""
    loss: float
    """What is left unexplained, in units of the noise; compares models of the same figures."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LogPrior:
    """Of k coefficients' logs before any trial, independent; and the noise to begin with."""

    mean: FloatArray
    std: FloatArray
    noise: float


def log_posterior(
    model: Callable[[FloatArray], FloatArray], measured: FloatArray, prior: LogPrior
) -> LogPosterior:
    """Gauss-Newton on the logs, with the prior as so many more measurements.

    Args:
        model: from the k logs to the predicted logs, shape (n,).
        measured: the measured logs, shape (n,).
        prior: what is believed before.
    """
    logs: FloatArray = prior.mean.copy()
    precision = 1 / prior.std**2
    damping = 1.0
    residual = measured - model(logs)
    covariance: FloatArray = np.diag(prior.std**2)
    for _ in range(_ITERATIONS):
        rows = slopes(model, logs, measured - residual)
        weights = _weights(residual, prior.noise)
        hessian = rows.T * weights @ rows + np.diag(precision)
        gradient = rows.T @ (weights * residual) - precision * (logs - prior.mean)
        covariance = np.asarray(np.linalg.inv(hessian), dtype=np.float64)
        step = covariance @ gradient
        step *= damping / max(1.0, float(np.abs(step).max()))
        trial = measured - model(logs + step)
        if _loss(trial, logs + step, prior) > _loss(residual, logs, prior):
            damping /= 3
            continue
        logs, residual = np.asarray(logs + step), trial
        if float(np.abs(step).max()) < 1e-3:
            break
    return LogPosterior(
        mean=logs,
        covariance=covariance,
        noise=_noise(residual, prior),
        loss=_loss(residual, logs, prior),
    )


def slopes(
    model: Callable[[FloatArray], FloatArray],
    logs: FloatArray,
    predicted: FloatArray,
    *,
    step: float = _STEP,
) -> FloatArray:
    """Of the predicted logs along each coefficient's log, shape (n, k); k may be 0.

    Args:
        model: from the k logs to the predicted logs, shape (n,).
        logs: where.
        predicted: what the model says there.
        step: how far a log is moved to see its effect.
    """
    found = np.zeros((len(predicted), len(logs)))
    for index in range(len(logs)):
        moved = logs.copy()
        moved[index] += step
        found[:, index] = (model(moved) - predicted) / step
    return found


def _weights(residual: FloatArray, noise: float) -> FloatArray:
    scaled = residual / (_OUTLIER * noise)
    return np.asarray(1 / (1 + scaled**2) / noise**2)


def _loss(residual: FloatArray, logs: FloatArray, prior: LogPrior) -> float:
    outliers = _OUTLIER**2 / 2 * np.log1p((residual / (_OUTLIER * prior.noise)) ** 2)
    return float(outliers.sum() + 0.5 * (((logs - prior.mean) / prior.std) ** 2).sum())


def _noise(residual: FloatArray, prior: LogPrior) -> float:
    """The prior's noise counts as four residuals; the median is deaf to outliers."""
    if len(residual) == 0:
        return prior.noise
    seen = 1.48 * float(np.median(np.abs(residual)))
    return float(np.sqrt((4 * prior.noise**2 + len(residual) * seen**2) / (4 + len(residual))))
