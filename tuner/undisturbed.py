"""A runner that measures a plan once more where other load disturbed it and it may be the best."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

from tuner.launch import LaunchSpec, Measurement, Settings
from tuner.outcome import Measured, Outcome
from tuner.plan import ParallelPlan
from tuner.runner import AdjustableRunner, ConfigurableRunner, PhaseListener, Runner

_WITHIN = 0.10
"""Behind the best so far by more, a disturbed plan is only marked: load takes as much at most
where it leaves the others undisturbed."""


class UndisturbedRunner:
    """Carries plans out by another runner."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    @property
    def measurement(self) -> Measurement:
        """The other runner's."""
        assert isinstance(self._runner, AdjustableRunner), "every runner of trials is"
        return self._runner.measurement

    @measurement.setter
    def measurement(self, measurement: Measurement) -> None:
        assert isinstance(self._runner, AdjustableRunner), "every runner of trials is"
        self._runner.measurement = measurement

    @property
    def settings(self) -> Settings:
        """The other runner's; a runner that has none gives an AttributeError here too."""
        return cast("ConfigurableRunner", self._runner).settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        cast("ConfigurableRunner", self._runner).settings = settings

    @property
    def num_slots(self) -> int:
        """The other runner's."""
        return self._runner.num_slots

    def describe(self, plan: ParallelPlan) -> LaunchSpec:
        """What ``run`` would start, once or twice."""
        return self._runner.describe(plan)

    def run(self, plan: ParallelPlan, folder: Path, on_phase: PhaseListener) -> Outcome:
        """The outcome; of a second attempt where the first was disturbed and it matters."""
        first = self._runner.run(plan, folder, on_phase)
        if not isinstance(first, Measured) or not may_matter(first, self.measurement):
            return first
        second = self._runner.run(plan, folder, on_phase)
        if not isinstance(second, Measured):
            return second
        return replace(second, attempts=2)

    def stop(self) -> None:
        """Stops the other runner."""
        self._runner.stop()

    def close(self) -> None:
        """Closes the other runner."""
        self._runner.close()


def may_matter(measured: Measured, measurement: Measurement) -> bool:
    """Whether it was disturbed, and might be the best plan without that."""
    if not measured.marks:
        return False
    adaptive = measurement.adaptive
    incumbent_s = None if adaptive is None else adaptive.incumbent_step_time_s
    if incumbent_s is None:
        return True
    return measured.step_time_ci_s[0] <= incumbent_s * (1 + _WITHIN)
