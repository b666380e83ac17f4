"""A trial: one plan tried once, with its outcome."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.outcome import Amount, Count, Outcome
from tuner.plan import ParallelPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One plan tried once; ``number`` counts from 0 in a study."""

    number: Count
    plan: ParallelPlan
    outcome: Outcome
    started_at: Amount
    """Seconds since the epoch."""
    wall_s: Amount
    reason: str = ""
    """Why this plan was tried now, in words: ``pytorch's default``, ``expected gain 4 %``."""
    beside: Count = 0
    """The most trials that ran at the same time as this one, on devices of their own: what they
    share (network, storage) they disturb for one another."""
