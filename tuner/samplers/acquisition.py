"""Which candidate to try next: the largest expected gain, weighed by the chance to run."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log

import numpy as np

from tuner.samplers.evidence import FloatArray
from tuner.samplers.normal import expected_gain
from tuner.samplers.plan_belief import Outlook


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A candidate, and what is expected of trying it."""

    row: int
    gain: float
    """Expected share by which the best step time falls; 1 while nothing has run."""
    fit: float
    """Probability to run."""
    seconds: float
    """Expected step time."""
    spread: float = 0.0
    """Standard deviation of the step time, as a share of it."""


def proposal(
    outlook: Outlook, best_s: float | None, tie_break: FloatArray | None = None
) -> Proposal:
    """The best bet of these candidates; ``best_s`` is None while nothing has run."""
    if best_s is None:
        # The expected speed: a plan that does not run has none.
        gains = np.ones(len(outlook.rows))
        score = np.log(np.maximum(outlook.fit, 1e-12)) - outlook.mean
    else:
        gains = expected_gain(log(best_s) - outlook.mean, outlook.std) * outlook.fit
        # Where no gain is expected at all, the fastest that fits.
        score = gains + 1e-9 * (outlook.fit - outlook.mean)
    if tie_break is not None:
        score = score + 1e-12 * tie_break[outlook.rows]
    at = int(np.argmax(score))
    return Proposal(
        row=int(outlook.rows[at]),
        gain=1.0 if best_s is None else 1 - exp(-float(gains[at])),
        fit=float(outlook.fit[at]),
        seconds=exp(float(outlook.mean[at])),
        spread=float(outlook.std[at]),
    )
