"""The seam between the study and whatever carries a plan out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from tuner.launch import LaunchSpec, Measurement
from tuner.outcome import Outcome, Phase
from tuner.plan import ParallelPlan

PhaseListener = Callable[[Phase], None]
"""Called when the slowest rank of the running trial enters a phase."""


@runtime_checkable
class AdjustableRunner(Protocol):
    """A runner whose later trials may be measured otherwise."""

    measurement: Measurement
    """How the next trial is measured; may be set between trials."""


class TrialStoppedError(Exception):
    """The trial was ended by ``Runner.stop``: nothing is known of its plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """How trials are started."""

    count: int = 1
    """So many may run side by side, each on ranks of its own."""
    warm: bool = True
    """Ranks are forked from processes that have done the imports; False: all start anew."""


class Runner(Protocol):
    """Carries plans out, as many at a time as it has slots."""

    @property
    def num_slots(self) -> int:
        """So many threads may be in ``run`` at once."""
        ...

    def describe(self, plan: ParallelPlan) -> LaunchSpec:
        """What ``run`` would start; starts nothing."""
        ...

    def run(self, plan: ParallelPlan, folder: Path, on_phase: PhaseListener) -> Outcome:
        """Tries the plan once, keeping files, logs and results in ``folder``.

        A plan's own failure is an outcome. When this returns, or raises (KeyboardInterrupt
        included), no process of the trial is left.

        Raises:
            RuntimeError: the runner itself is broken (no Ray, no disk): the study cannot go on.
            TrialStoppedError: another thread has called ``stop``.
        """
        ...

    def stop(self) -> None:
        """Ends the trials that are running in other threads; later ones are not concerned."""
        ...

    def close(self) -> None:
        """Frees what the runner holds; may be called twice."""
        ...
