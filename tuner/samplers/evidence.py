"""What trials have told of candidate plans so far, as arrays of their positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def no_positions() -> IntArray:
    """An empty array of positions."""
    return np.zeros(0, dtype=np.int64)


MAX_MEASURED = 256
"""Measured trials that a belief is fitted to: the fastest half and the latest half of them."""
MAX_FAILED = 1000
"""Trials without a time that a belief is fitted to: the latest."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Evidence:
    """Positions of the candidates that were tried, by what came of them."""

    measured: IntArray = field(default_factory=no_positions)
    seconds: FloatArray = field(default_factory=lambda: np.zeros(0))
    """Of a step, in the order of ``measured``."""
    peaks: Mapping[int, float] = field(default_factory=dict)
    """Peak bytes of the fullest rank, where a trial told them."""
    too_large: IntArray = field(default_factory=no_positions)
    """Said to have run out of memory; some had crashed for another reason."""
    failed: IntArray = field(default_factory=no_positions)
    """Crashed or timed out: says nothing of memory."""
    running: IntArray = field(default_factory=no_positions)

    @property
    def tried(self) -> IntArray:
        """All of them, running ones too."""
        return np.concatenate([self.measured, self.too_large, self.failed, self.running])

    def shortened(self) -> Evidence:
        """The part that a fit can afford, so that the ten-thousandth proposal is no slower."""
        keep = np.arange(len(self.measured))
        if len(keep) > MAX_MEASURED:
            fastest = np.argsort(self.seconds, kind="stable")[: MAX_MEASURED // 2]
            keep = np.union1d(fastest, keep[-(MAX_MEASURED // 2) :])
        return Evidence(
            measured=self.measured[keep],
            seconds=self.seconds[keep],
            peaks=self.peaks,
            too_large=self.too_large[-MAX_FAILED:],
            failed=self.failed[-MAX_FAILED:],
            running=self.running[-MAX_MEASURED:],
        )
