"""Many plans as arrays, one a knob: what rules are evaluated on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.plan import KNOB_NAMES, ParallelPlan, PlanValue

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PlanArrays:
    """Plans of equal number in every array, shape (n,); words are kept as NumPy strings."""

    columns: Mapping[str, NDArray[np.generic]]

    @classmethod
    def product(cls, options: Mapping[str, Sequence[PlanValue]]) -> PlanArrays:
        """Every combination of the options; all knobs must be there."""
        arrays = [np.asarray(options[name]) for name in KNOB_NAMES]
        grids = np.meshgrid(*[np.arange(len(array)) for array in arrays], indexing="ij")
        return cls(
            columns={
                name: array[grid.ravel()]
                for name, array, grid in zip(KNOB_NAMES, arrays, grids, strict=True)
            }
        )

    @classmethod
    def of_plan(cls, plan: ParallelPlan) -> PlanArrays:
        """One plan."""
        return cls(columns={name: np.asarray([v]) for name, v in plan.to_dict().items()})

    def __len__(self) -> int:
        return len(self.columns["tp"])

    def ints(self, name: str) -> IntArray:
        """A knob that is a number, shape (n,)."""
        return self.columns[name].astype(np.int64)

    def flags(self, name: str) -> BoolArray:
        """A knob that is true or false, shape (n,)."""
        return self.columns[name].astype(np.bool_)

    def equals(self, name: str, *words: str) -> BoolArray:
        """Where a knob is one of these words, shape (n,)."""
        return np.isin(self.columns[name], words)

    def kept(self, keep: BoolArray) -> PlanArrays:
        """The plans where ``keep`` holds."""
        return PlanArrays(columns={name: array[keep] for name, array in self.columns.items()})

    def plans(self) -> tuple[ParallelPlan, ...]:
        """The plans as values, in order."""
        names = list(self.columns)
        rows = zip(*[self.columns[name].tolist() for name in names], strict=True)
        return tuple(ParallelPlan.from_dict(dict(zip(names, row, strict=True))) for row in rows)
