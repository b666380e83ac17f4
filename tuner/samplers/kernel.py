"""How alike plans are: what a trial of one says of the unexplained part of another's cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tuner.samplers.candidates import Candidates
from tuner.samplers.evidence import FloatArray, IntArray

REACH = 2.0
"""Doublings of a degree over which the likeness of two plans falls to 1/e."""
CATEGORY_LIKENESS = 0.35
"""Of two plans that differ in the option of a knob without an order, for all else equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectStd:
    """Standard deviations of what is not explained, of the log of a cost."""

    common: float
    """The same for all plans."""
    known_knob: float
    """Of each knob that the cost model knows."""
    unknown_knob: float
    """Of each knob that it does not."""
    together: float
    """Of all knobs together: near plans are alike."""


class Likeness:
    """Covariances between candidates: a common part, one of each knob, one of all together."""

    def __init__(self, candidates: Candidates, stds: EffectStd, known: frozenset[str]) -> None:
        names = candidates.telling()
        self._stds = stds
        columns = [candidates.names.index(name) for name in names]
        self._codes = candidates.codes[:, columns]
        self._tables = [_table(candidates, name) for name in names]
        self._variances = [
            (stds.known_knob if name in known else stds.unknown_knob) ** 2 for name in names
        ]
        self.variance = stds.common**2 + sum(self._variances) + stds.together**2

    def between(self, these: IntArray, those: IntArray) -> FloatArray:
        """Covariances, shape (len(these), len(those))."""
        total = np.full((len(these), len(those)), self._stds.common**2)
        product = np.full_like(total, self._stds.together**2)
        for column, (table, variance) in enumerate(zip(self._tables, self._variances, strict=True)):
            alike = table[np.ix_(self._codes[these, column], self._codes[those, column])]
            total += variance * alike
            product *= alike
        return total + product

    def near(self, these: IntArray, those: IntArray) -> FloatArray:
        """The part of all knobs together, between 0 and 1."""
        product = np.ones((len(these), len(those)))
        for column, table in enumerate(self._tables):
            product *= table[np.ix_(self._codes[these, column], self._codes[those, column])]
        return product

    def knob_effects(self, tried: IntArray, weights: FloatArray) -> FloatArray:
        """Of every candidate: weighted sum of the knobs' own covariances with the tried."""
        total = np.full(len(self._codes), self._stds.common**2 * float(weights.sum()))
        for column, (table, variance) in enumerate(zip(self._tables, self._variances, strict=True)):
            effects = variance * (table[:, self._codes[tried, column]] @ weights)
            total += effects[self._codes[:, column]]
        return total


def _table(candidates: Candidates, name: str) -> FloatArray:
    scale = candidates.scale(name)
    count = len(candidates.options[name])
    if scale is None:
        return np.where(np.eye(count, dtype=bool), 1.0, CATEGORY_LIKENESS)
    return np.asarray(np.exp(-np.abs(scale[:, None] - scale[None, :]) / REACH))
