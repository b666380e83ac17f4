"""Whether a predicted peak fits a GPU: what is usable of its memory, and how sure that is."""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from tuner.cluster import Device, Gpu
from tuner.cost_model.layout import FloatArray
from tuner.plan_arrays import BoolArray

CONTEXT_BYTES = 1.2e9
"""CUDA context and NCCL's own buffers, outside the allocator: 0.5 GB and about as much again."""
FRAGMENTATION = 1.10
"""What the allocator holds over what tensors need at the peak: up to 1.08 over the ranks of a
B200 sweep with static shapes, and about 1.1 where an 80 GB sweep of an eager program ends."""


def usable_bytes(gpu: Gpu) -> float:
    """What tensors may take at their peak."""
    if gpu.device is Device.CPU:
        return float(gpu.memory_bytes)
    return (gpu.memory_bytes - CONTEXT_BYTES) / FRAGMENTATION


def usable_within(gpu: Gpu, limit_bytes: float) -> float:
    """What tensors may take at their peak where the allocator may hold no more than a limit."""
    if gpu.device is Device.CPU:
        return float(limit_bytes)
    return min(usable_bytes(gpu), limit_bytes / FRAGMENTATION)


def fits(peak_bytes: FloatArray, gpu: Gpu) -> BoolArray:
    """Whether each peak is below what is usable, shape (n,)."""
    return np.asarray(peak_bytes <= usable_bytes(gpu))


class FitZone(StrEnum):
    """How sure a fit is."""

    FITS = "fits"
    UNCERTAIN = "uncertain"
    TOO_LARGE = "too large"


SURE = 0.98
"""Probability from which a plan is taken to fit, or not to."""


def fit_probability(needed_bytes: FloatArray, log_std: FloatArray | float, gpu: Gpu) -> FloatArray:
    """Chance of each plan to fit, its need being log-normal around the prediction; shape (n,)."""
    limit = np.log(usable_bytes(gpu))
    return _normal_below((limit - np.log(np.maximum(needed_bytes, 1.0))) / log_std)


def fit_zone(probability: float) -> FitZone:
    """In words."""
    if probability >= SURE:
        return FitZone.FITS
    return FitZone.TOO_LARGE if probability <= 1 - SURE else FitZone.UNCERTAIN


def _normal_below(z: FloatArray) -> FloatArray:
    """The normal distribution function to 1e-7 (Abramowitz and Stegun, 26.2.17)."""
    t = 1 / (1 + 0.2316419 * np.abs(z))
    tail = np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    series = 0.319381530 + t * (
        -0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))
    )
    tail = tail * t * series
    return np.asarray(np.where(z >= 0, 1 - tail, tail))
