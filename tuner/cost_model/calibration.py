"""Re-fits the coefficients to measured plans, says how sure they are, and what would teach most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum

import numpy as np

from tuner.cost_model.case import Subject
from tuner.cost_model.coefficients import (
    DEFAULT,
    MEMORY_PRIOR_STD,
    TIME_PRIOR_STD,
    Coefficients,
    MemoryCoefficients,
    TimeCoefficients,
    logs,
)
from tuner.cost_model.fit import usable_bytes
from tuner.cost_model.layout import FloatArray
from tuner.cost_model.posterior import LogPosterior, LogPrior, log_posterior, slopes
from tuner.cost_model.prediction import (
    memory_of_stage,
    needed_memory,
    peak_memory,
    step_times,
)
from tuner.plan_arrays import BoolArray, IntArray, PlanArrays


class MeasuredStage(StrEnum):
    """Whose memory a measured peak is."""

    FULLEST = "fullest"
    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MeasuredPlans:
    """Plans of one subject with what came of them; shape (n,) each, NaN where nothing is known."""

    subject: Subject
    plans: PlanArrays
    step_time_s: FloatArray
    peak_memory_bytes: FloatArray
    out_of_memory: BoolArray
    """Needed more than the GPU has; how much more is not known."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Calibration:
    """The coefficients that measured plans support, and what is still uncertain of them."""

    coefficients: Coefficients
    time: LogPosterior
    memory: LogPosterior

    def time_log_std(self, subject: Subject, plans: PlanArrays) -> FloatArray:
        """Standard deviation of the log of each predicted step time, shape (n,)."""
        return _log_std(self.time, time_model([(subject, plans)]))

    def memory_log_std(self, subject: Subject, plans: PlanArrays) -> FloatArray:
        """Standard deviation of the log of each predicted peak, shape (n,)."""
        return _log_std(self.memory, memory_model([(subject, plans)], MeasuredStage.FULLEST))


RANK_ZERO_ODDS = 5.0
"""Log of the odds that a program which reports one peak reports that of its first rank."""


def measured_stage(measured: Sequence[MeasuredPlans], *, of_all_ranks: bool) -> MeasuredStage:
    """Which stage the measured peaks are of, where nothing says so: what explains them best."""
    if of_all_ranks:
        return MeasuredStage.FULLEST

    def loss(stage: MeasuredStage) -> float:
        unlikely = 0.0 if stage is MeasuredStage.FIRST else RANK_ZERO_ODDS
        return _memory_posterior(measured, DEFAULT, stage, width=1.0).loss + unlikely

    return min(MeasuredStage, key=loss)


def calibrated(
    measured: Sequence[MeasuredPlans],
    prior: Coefficients = DEFAULT,
    *,
    stage: MeasuredStage = MeasuredStage.FULLEST,
    prior_width: float = 1.0,
) -> Calibration:
    """The most probable coefficients after these measurements, and how sure they are.

    Args:
        measured: what came of plans, of one workload or of several; none = what is believed before.
        prior: what is believed before; by default what many published figures support.
        stage: whose memory the peaks are.
        prior_width: how far the coefficients may be from the prior, 1 = as far as those of any
            program; less where the prior was fitted to the same program.
    """
    time = _time_posterior(measured, prior, prior_width)
    memory = _memory_posterior(measured, prior, stage, prior_width)
    coefficients = Coefficients(
        time=time_coefficients(time.mean),
        memory=memory_coefficients(memory.mean),
        time_noise=time.noise,
        memory_noise=memory.noise,
    )
    return Calibration(coefficients=coefficients, time=time, memory=memory)


def time_coefficients(values: FloatArray) -> TimeCoefficients:
    """Of logs in the order of the fields."""
    names = [field.name for field in fields(TimeCoefficients)]
    return TimeCoefficients(**dict(zip(names, np.exp(values).tolist(), strict=True)))


def memory_coefficients(values: FloatArray) -> MemoryCoefficients:
    """Of logs in the order of the fields."""
    names = [field.name for field in fields(MemoryCoefficients)]
    return MemoryCoefficients(**dict(zip(names, np.exp(values).tolist(), strict=True)))


Model = Callable[[FloatArray], FloatArray]
"""From the logs of coefficients to the logs of predictions."""


def time_model(parts: Sequence[tuple[Subject, PlanArrays]]) -> Model:
    """Log step times of all parts one after another."""
    return lambda values: _joined(
        [step_times(subject, plans, time_coefficients(values)) for subject, plans in parts]
    )


def memory_model(parts: Sequence[tuple[Subject, PlanArrays]], stage: MeasuredStage) -> Model:
    """Log peaks of all parts one after another."""

    def model(values: FloatArray) -> FloatArray:
        coefficients = memory_coefficients(values)
        if stage is MeasuredStage.FULLEST:
            return _joined([peak_memory(s, plans, coefficients) for s, plans in parts])
        which = 0 if stage is MeasuredStage.FIRST else -1
        return _joined([memory_of_stage(s, plans, which, coefficients) for s, plans in parts])

    return model


def time_prior(coefficients: Coefficients, width: float = 1.0) -> LogPrior:
    """Around these coefficients."""
    return LogPrior(
        mean=logs(coefficients.time),
        std=width * np.array(list(TIME_PRIOR_STD.values())),
        noise=coefficients.time_noise,
    )


def memory_prior(coefficients: Coefficients, width: float = 1.0) -> LogPrior:
    """Around these coefficients."""
    return LogPrior(
        mean=logs(coefficients.memory),
        std=width * np.array(list(MEMORY_PRIOR_STD.values())),
        noise=coefficients.memory_noise,
    )


def _time_posterior(
    measured: Sequence[MeasuredPlans], prior: Coefficients, width: float
) -> LogPosterior:
    parts, seconds = _known([(part, part.step_time_s) for part in measured])
    return log_posterior(time_model(parts), np.log(seconds), time_prior(prior, width))


def _memory_posterior(
    measured: Sequence[MeasuredPlans], prior: Coefficients, stage: MeasuredStage, width: float
) -> LogPosterior:
    """An OOM says only that the peak was above what is usable: so it counts where less was said."""
    rows = []
    for part in measured:
        limit = usable_bytes(part.subject.cluster.gpu)
        predicted = needed_memory(part.subject, part.plans, prior.memory)
        above = np.where(predicted < limit, limit * 1.03, np.nan)
        rows.append((part, np.where(part.out_of_memory, above, part.peak_memory_bytes)))
    parts, peaks = _known(rows)
    return log_posterior(memory_model(parts, stage), np.log(peaks), memory_prior(prior, width))


def _known(
    rows: Sequence[tuple[MeasuredPlans, FloatArray]],
) -> tuple[list[tuple[Subject, PlanArrays]], FloatArray]:
    parts, values = [], [np.zeros(0)]
    for part, measured in rows:
        known = np.isfinite(measured) & (measured > 0)
        if known.any():
            parts.append((part.subject, part.plans.kept(known)))
            values.append(measured[known])
    return parts, np.concatenate(values)


def _joined(parts: Sequence[FloatArray]) -> FloatArray:
    return np.log(np.concatenate(parts)) if parts else np.zeros(0)


def _log_std(posterior: LogPosterior, model: Model) -> FloatArray:
    gradient = slopes(model, posterior.mean, model(posterior.mean))
    spread = np.einsum("ij,jk,ik->i", gradient, posterior.covariance, gradient)
    return np.asarray(np.sqrt(spread + posterior.noise**2))


def informative_rows(
    parts: Sequence[tuple[Subject, PlanArrays]],
    count: int,
    allowed: BoolArray,
    prior: Coefficients = DEFAULT,
) -> IntArray:
    """Positions among the parts' plans that would teach most about all of them, in order.

    Greedy: each time the plan whose measurement takes most variance out of the predictions of
    all plans, time and memory weighed by their noise. Nothing measured is looked at.
    """
    gradients, covariances, noises = [], [], []
    for model, before in (
        (time_model(parts), time_prior(prior)),
        (memory_model(parts, MeasuredStage.FULLEST), memory_prior(prior)),
    ):
        gradients.append(slopes(model, before.mean, model(before.mean)))
        covariances.append(np.diag(before.std**2))
        noises.append(before.noise)
    chosen: list[int] = []
    for _ in range(min(count, int(allowed.sum()))):
        score = np.zeros(len(allowed))
        for gradient, covariance, noise in zip(gradients, covariances, noises, strict=True):
            spread = gradient @ covariance
            variance = np.einsum("ij,ij->i", spread, gradient) + noise**2
            taken = np.einsum("ij,jk,ik->i", spread, gradient.T @ gradient, spread) / variance
            score += taken / noise**2
        score[~allowed] = -np.inf
        score[chosen] = -np.inf
        best = int(np.argmax(score))
        chosen.append(best)
        for index, (gradient, noise) in enumerate(zip(gradients, noises, strict=True)):
            spread_of_best = covariances[index] @ gradient[best]
            weight = float(gradient[best] @ spread_of_best) + noise**2
            covariances[index] = (
                covariances[index] - np.outer(spread_of_best, spread_of_best) / weight
            )
    return np.asarray(chosen, dtype=np.int64)
