"""How sure predictions are: how far off a step time or a peak may be, and whether a plan fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

import numpy as np

from tuner.cost_model.calibration import Calibration
from tuner.cost_model.case import Subject
from tuner.cost_model.layout import FloatArray
from tuner.cost_model.prediction import needed_memory
from tuner.plan_arrays import PlanArrays

SURE = 0.98
"""Chance from which a plan is taken to fit, or not to."""
_Z95 = NormalDist().inv_cdf(0.975)


class FitZone(StrEnum):
    """How sure a fit is."""

    FITS = "fits"
    UNCERTAIN = "uncertain"
    TOO_LARGE = "too large"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sureness:
    """Of one prediction, which is log-normal around what is predicted."""

    time_factor: float
    """The step time is within this factor of the prediction, both ways, with 95 %."""
    memory_factor: float
    """The same of the peak."""
    fit_probability: float

    @property
    def zone(self) -> FitZone:
        """Of the chance to fit, in words."""
        if self.fit_probability >= SURE:
            return FitZone.FITS
        return FitZone.TOO_LARGE if self.fit_probability <= 1 - SURE else FitZone.UNCERTAIN

    def document(self) -> dict[str, float | str]:
        """For JSON, beside the prediction."""
        return {
            "predicted_step_time_within_factor": self.time_factor,
            "predicted_peak_memory_within_factor": self.memory_factor,
            "fit_probability": self.fit_probability,
            "fit_zone": str(self.zone),
        }


def sureness(
    calibration: Calibration, subject: Subject, plans: PlanArrays, usable_bytes: float
) -> Sequence[Sureness]:
    """Of the predictions of plans, in order.

    Args:
        calibration: what the predictions were made with.
        subject: what is trained on what.
        plans: n of them.
        usable_bytes: what tensors may take at their peak, see ``fit.py``.
    """
    time_std = calibration.time_log_std(subject, plans)
    memory_std = calibration.memory_log_std(subject, plans)
    needed = needed_memory(subject, plans, calibration.coefficients.memory)
    room: FloatArray = np.log(usable_bytes / np.maximum(needed, 1.0)) / memory_std
    return [
        Sureness(
            time_factor=float(np.exp(_Z95 * time)),
            memory_factor=float(np.exp(_Z95 * memory)),
            fit_probability=NormalDist().cdf(float(z)),
        )
        for time, memory, z in zip(time_std, memory_std, room, strict=True)
    ]
