"""Many plans as arrays, one a knob: what rules, predictions and samplers work on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.plan import (
    KNOB_NAMES,
    Backend,
    Offload,
    ParallelPlan,
    PlanValue,
    Precision,
    Recompute,
)

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

WORDS: Mapping[str, tuple[str, ...]] = {
    "backend": tuple(str(word) for word in Backend),
    "precision": tuple(str(word) for word in Precision),
    "recompute": tuple(str(word) for word in Recompute),
    "offload": tuple(str(word) for word in Offload),
}
"""Knobs whose options are words; an array holds the position of the word."""
_FLAGS = ("sequence_parallel",)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PlanArrays:
    """Plans in a fixed order: one array a knob, shape (n,) each, words as their position.

    While plans are being enumerated, knobs that are not chosen yet have no array.
    """

    columns: Mapping[str, NDArray[np.integer]]

    @classmethod
    def of_plans(cls, plans: Sequence[ParallelPlan]) -> PlanArrays:
        """These plans, in order."""
        rows = [plan.to_dict() for plan in plans]
        return cls(columns={name: _coded(name, [row[name] for row in rows]) for name in KNOB_NAMES})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> ParallelPlan:
        return ParallelPlan.from_dict(
            {name: _decoded(name, int(array[index])) for name, array in self.columns.items()}
        )

    def __iter__(self) -> Iterator[ParallelPlan]:
        return (self[index] for index in range(len(self)))

    def __contains__(self, plan: object) -> bool:
        return isinstance(plan, ParallelPlan) and self.find(plan) is not None

    def find(self, plan: ParallelPlan) -> int | None:
        """The position of a plan, or None."""
        same = np.ones(len(self), dtype=np.bool_)
        for name, value in plan.to_dict().items():
            same &= self.columns[name] == _code(name, value)
        return int(same.argmax()) if same.any() else None

    def ints(self, name: str) -> IntArray:
        """A knob that is a number, shape (n,)."""
        return self.columns[name].astype(np.int64)

    def flags(self, name: str) -> BoolArray:
        """A knob that is true or false, shape (n,)."""
        return self.columns[name].astype(np.bool_)

    def equals(self, name: str, *words: str) -> BoolArray:
        """Where a knob is one of these words, shape (n,)."""
        codes = [WORDS[name].index(word) for word in words if word in WORDS[name]]
        return np.isin(self.columns[name], codes)

    def options(self, name: str) -> NDArray[Any]:
        """A knob as its options, shape (n,): texts, numbers or truth values."""
        if name in WORDS:
            return np.asarray(WORDS[name])[self.columns[name]]
        return self.flags(name) if name in _FLAGS else self.ints(name)

    def kept(self, keep: BoolArray | IntArray) -> PlanArrays:
        """The plans where ``keep`` holds, or at these positions, in order."""
        return PlanArrays(columns={name: array[keep] for name, array in self.columns.items()})

    def crossed(self, name: str, options: Sequence[PlanValue]) -> PlanArrays:
        """Every plan with every option of one more knob."""
        codes = _coded(name, options)
        if not self.columns:
            return PlanArrays(columns={name: codes})
        columns = {known: np.repeat(a, len(codes)) for known, a in self.columns.items()}
        return PlanArrays(columns=columns | {name: np.tile(codes, len(self))})


def _coded(name: str, values: Sequence[PlanValue]) -> NDArray[np.integer]:
    kind = np.int8 if name in WORDS or name in _FLAGS else np.int32
    return np.asarray([_code(name, value) for value in values], dtype=kind)


def _code(name: str, value: PlanValue) -> int:
    return WORDS[name].index(str(value)) if name in WORDS else int(value)


def _decoded(name: str, code: int) -> PlanValue:
    if name in WORDS:
        return WORDS[name][code]
    return bool(code) if name in _FLAGS else code
