"""The seam between the study and the rules: legal plans, and why the others are not."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.plan import PlanValue
from tuner.plan_arrays import PlanArrays


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """How many plans a rule removed, of those that the rules before it had left."""

    rule: str
    removed: int
    sentence: str
    """What must hold."""
    example: str = ""
    """The same with the numbers of the first plan that it removed, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """The knobs with their options, the legal plans, and the waterfall that led to them."""

    knobs: tuple[tuple[str, tuple[PlanValue, ...]], ...]
    plans: PlanArrays
    """Legal, in a fixed order."""
    waterfall: tuple[Removal, ...]
    num_combinations: int
    """Combinations of options before any rule."""
