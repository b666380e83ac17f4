"""The seam between the study and whatever carries a plan out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from tuner.launch import LaunchSpec, Measurement, Settings
from tuner.outcome import Outcome, Phase
from tuner.plan import ParallelPlan

PhaseListener = Callable[[Phase], None]
"""Called when the slowest rank of the running trial enters a phase."""


UNBOUNDED = 1_000_000
"""Slots of a runner that occupies nothing."""


class Stopped(Exception):
    """The trial was ended from outside: it has no outcome, and its plan may be tried again."""


@runtime_checkable
class AdjustableRunner(Protocol):
    """A runner whose later trials may be measured otherwise."""

    measurement: Measurement
    """How the next trial is measured; may be set between trials."""


@runtime_checkable
class ConfigurableRunner(Protocol):
    """A runner that can launch with framework settings beside a plan's knobs."""

    settings: Settings
    """Of the next trials; each plan takes those that apply to it. May be set between trials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """How trials are started."""

    count: int = 1
    """So many may run side by side, each on ranks of its own."""
    warm: bool = True
    """Ranks are forked from processes that have done the imports; False: all start anew."""


class Runner(Protocol):
    """Carries plans out; ``run`` may be called from as many threads at once as it has slots."""

    @property
    def num_slots(self) -> int:
        """How many trials it can run at once, each on devices of its own."""
        ...

    def describe(self, plan: ParallelPlan) -> LaunchSpec:
        """What ``run`` would start; starts nothing."""
        ...

    def run(self, plan: ParallelPlan, folder: Path, on_phase: PhaseListener) -> Outcome:
        """Tries the plan once, keeping files, logs and results in ``folder``.

        A plan's own failure is an outcome. When this returns, or raises (KeyboardInterrupt
        included), no process of the trial is left.

        Raises:
            Stopped: ``stop`` was called.
            RuntimeError: the runner itself is broken (no Ray): the study cannot go on.
            OSError: the trial's folder cannot be written.
        """
        ...

    def stop(self) -> None:
        """Has every ``run`` that goes on in another thread end soon; none may be started after."""
        ...

    def close(self) -> None:
        """Frees what the runner holds; may be called twice."""
        ...
