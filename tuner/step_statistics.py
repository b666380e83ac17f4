"""What step times say: when they have settled, their level, how sure it is, when to stop; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from tuner.outcome import StepsEnd

_MAD_TO_SIGMA = 1.4826
_MEDIAN_OVER_MEAN = 1.2533
"""The median of n normal numbers scatters this many times as much as their mean."""
_CHANGE_Z = 3.5
"""A shift of so many standard errors is a change; noise alone shows one in about 2000 splits."""
_CHANGE_RELATIVE = 0.01
"""A smaller shift is no warm-up: waiting for it would cost more than it could mislead."""
_WARMUP_LOOK = 24
"""Later changes are drift, no warm-up; and the search for one is quadratic."""
_LONG, _LONG_STRIDE = 60, 10
"""A long run is looked at every so many steps: one step more hardly changes what is known."""
_OUTLIER_Z = 5.0
_OUTLIER_RELATIVE = 0.1
_FEW = 6
"""Of fewer steps nothing can be said of how neighbours resemble each other."""
_NORMAL_99 = 2.576
_STUDENT = {
    0.95: (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    0.99: (63.66, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169),
    0.999: (636.6, 31.60, 12.92, 8.610, 6.869, 5.959, 5.408, 5.041, 4.781, 4.587),
}
"""Two-sided Student quantiles for 1, 2, ... degrees of freedom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStatistics:
    """What is known of the step time from these steps."""

    level_s: float
    """The mean, without outliers."""
    interval_s: tuple[float, float]
    """Of the level, with the confidence that was asked for."""
    outliers: tuple[int, ...]
    """Indices of steps far from all others, which the mean leaves out."""
    effective_steps: float
    """As many independent steps would tell as much; neighbours that resemble each other tell
    less."""

    @property
    def relative_half_width(self) -> float:
        """Of the interval, as a part of the level."""
        low, high = self.interval_s
        return max(high - self.level_s, self.level_s - low) / self.level_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsRule:
    """When a trial has seen enough steps."""

    warmup_steps: int
    """Never counted; more are left out where times had not settled."""
    steps: int
    """Counted at least, except by a plan that is clearly slower than the incumbent."""
    max_steps: int
    """Counted at most."""
    relative_half_width: float
    """Of the 99 % interval; when it is this narrow, more steps are not worth their price."""
    incumbent_step_time_s: float | None = None
    """Of the best plan so far."""
    time_s: float = math.inf
    """Once so many seconds went into steps, those that there are must do."""

    @property
    def max_warmup_steps(self) -> int:
        """Where times have not settled by then, they are not waited for any longer."""
        return self.warmup_steps + self.max_steps // 2


def student_quantile(degrees: float, confidence: float = 0.95) -> float:
    """Two-sided, of 0.95, 0.99 or 0.999; for less than 1 degree of freedom as for 1."""
    known = _STUDENT[confidence]
    if degrees > len(known):
        return student_tail((1 + confidence) / 2, degrees)
    return known[max(1, int(degrees)) - 1]


def student_tail(probability: float, degrees: float) -> float:
    """One-sided, by Cornish and Fisher's expansion: right to 1 % from 11 degrees on."""
    z = NormalDist().inv_cdf(probability)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / degrees + second / degrees**2


def settled_from(times_s: Sequence[float]) -> int:
    """Index of the first step after the last change of level; 0 where there is none.

    A change is a split at which the medians of the two sides lie further apart than the scatter
    from step to step explains. The first few steps are usually slower, sometimes in stages
    (compilation, allocator, then clocks), so that the search goes on behind each change. Medians
    keep one slow step in the middle from being taken for a change.
    """
    early = [float(time_s) for time_s in times_s[:_WARMUP_LOOK]]
    start = 0
    while (change := _change(early[start:])) > 0:
        start += change
    return start


def step_statistics(times_s: Sequence[float], confidence: float = 0.95) -> StepStatistics:
    """Mean, interval, outliers of settled steps; or of what short steps say of full ones.

    A training of many steps takes their mean each, and no other level is linear: whether a slow
    micro-batch falls into a short step or a full one, it adds as much to the mean. A median would
    leave it out of the short ones, which seldom have it, and set plans that were extrapolated
    against others by another measure.

    Raises:
        ValueError: there are none, or one is not a positive finite number.
    """
    values = _checked(times_s)
    outliers = _outliers(values)
    kept = np.delete(values, outliers)
    mean, effective = float(np.mean(kept)), effective_steps(kept)
    scatter = float(np.std(kept, ddof=1)) / mean if len(kept) > 1 else 0.0
    factor = _student_factor(scatter, effective, confidence)
    return StepStatistics(
        level_s=mean,
        interval_s=(mean / factor, mean * factor),
        outliers=outliers,
        effective_steps=effective,
    )


def effective_steps(times_s: NDArray[np.float64]) -> float:
    """How many independent steps would say as much about the level.

    Of a first-order autoregression, n (1 - r) / (1 + r); r is corrected for its bias in short
    series, and only a positive one counts.
    """
    n = len(times_s)
    if n < _FEW:
        return float(n)
    median, scale = float(np.median(times_s)), _scale(times_s)
    centred = np.clip(times_s - median, -3 * scale, 3 * scale)
    variance = float(centred @ centred)
    if variance == 0:
        return float(n)
    r = float(centred[1:] @ centred[:-1]) / variance
    r = min(0.9, max(0.0, r + (1 + 4 * r) / n if r > 1.5 / math.sqrt(n) else r))
    return max(2.0, n * (1 - r) / (1 + r))


def steps_end(times_s: Sequence[float], rule: StepsRule) -> tuple[StepsEnd, int] | None:
    """Why a trial may stop now, and its first step that counts; None = it goes on.

    Args:
        times_s: of all steps so far, the warm-up included.
        rule: what is enough.
    """
    timely = sum(times_s) < rule.time_s
    if timely and len(times_s) > _LONG and len(times_s) % _LONG_STRIDE:
        return None
    start = first_counted(times_s, rule)
    counted = times_s[start:]
    late = len(times_s) >= rule.max_warmup_steps + rule.max_steps
    if len(counted) >= 3 and is_slower(counted, rule):
        return StepsEnd.SLOWER, start
    if len(counted) >= rule.steps:
        # The interval is looked at after each step, hence 99 %: of few, some are alike by luck.
        if step_statistics(counted, 0.99).relative_half_width <= rule.relative_half_width:
            return StepsEnd.PRECISE, start
        if len(counted) >= rule.max_steps or late:
            return StepsEnd.MAX_STEPS, start
    if not timely and len(counted) >= min(3, rule.steps):
        return StepsEnd.TIME, start
    return None


def first_counted(times_s: Sequence[float], rule: StepsRule) -> int:
    """Index of the first step after the warm-up."""
    settled = rule.warmup_steps + settled_from(times_s[rule.warmup_steps :])
    return min(settled, rule.max_warmup_steps)


def is_slower(counted: Sequence[float], rule: StepsRule) -> bool:
    """Whether these steps are slower than the incumbent for certain.

    The interval is looked at after each step, and the incumbent looked fast by some luck; with
    99 %, one in twenty of its equals was taken for slower, hence 99.9 %. The warm-up must be over.
    """
    if rule.incumbent_step_time_s is None:
        return False
    return step_statistics(counted, 0.999).interval_s[0] > rule.incumbent_step_time_s


def _checked(times_s: Sequence[float]) -> NDArray[np.float64]:
    values = np.asarray(times_s, dtype=np.float64)
    if not len(values):
        raise ValueError("at least one step time is needed, got none")
    if not np.all(np.isfinite(values)) or np.any(values <= 0):
        bad = values[~(np.isfinite(values) & (values > 0))][0]
        raise ValueError(
            f"a step must take a positive finite time, got {bad:g} s: the clock has jumped, or the "
            "step does nothing"
        )
    return values


def _scale(values: NDArray[np.float64]) -> float:
    """Robust standard deviation; never 0 for numbers that differ."""
    spread = float(np.median(np.abs(values - np.median(values)))) * _MAD_TO_SIGMA
    return spread or float(np.std(values))


def _change(values: list[float]) -> int:
    """Where the level changes most, if it does: index of the first step behind; else 0."""
    n = len(values)
    if n < 3:
        return 0
    best, best_z = 0, _CHANGE_Z
    for split in range(1, n - 1):
        before, behind = _median(values[:split]), _median(values[split:])
        shift = abs(before - behind)
        if shift < _CHANGE_RELATIVE * behind:
            continue
        residuals = [abs(value - before) for value in values[:split]]
        residuals += [abs(value - behind) for value in values[split:]]
        error = _residual_scale(residuals) * math.sqrt(1 / split + 1 / (n - split))
        z = shift / error if error else math.inf
        if z > best_z or (z == math.inf and best == 0):
            best, best_z = split, z
    return best


def _residual_scale(residuals: list[float]) -> float:
    """Scatter of a side's median for one step; of few steps it is known badly, hence more."""
    differing = [residual for residual in residuals if residual]
    robust = _median(differing) if differing else 0.0
    return robust * _MAD_TO_SIGMA * _MEDIAN_OVER_MEAN * _unsure(len(residuals) - 2)


def _unsure(degrees: int) -> float:
    """So many times larger may a scatter be that is known with these degrees of freedom."""
    return student_quantile(degrees, 0.99) / _NORMAL_99


def _median(values: list[float]) -> float:
    """Of a few numbers, where NumPy's takes ten times as long."""
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _outliers(values: NDArray[np.float64]) -> tuple[int, ...]:
    if len(values) < 4:
        return ()
    median = float(np.median(values))
    far = max(_OUTLIER_Z * _scale(values), _OUTLIER_RELATIVE * median)
    return tuple(int(index) for index in np.flatnonzero(np.abs(values - median) > far))


def _student_factor(scatter: float, effective: float, confidence: float) -> float:
    """Of an interval around a level, both ways; ``scatter`` is relative to it.

    On the scale of logs: a step takes some time, however little is known of it.
    """
    quantile = student_quantile(int(effective) - 1, confidence)
    return math.exp(quantile * scatter / math.sqrt(effective))
