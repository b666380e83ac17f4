"""A runner that is made when a plan is about to run: a finished study is shown without Ray."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tuner.launch import LaunchSpec, Measurement, Settings
from tuner.outcome import Outcome
from tuner.plan import ParallelPlan
from tuner.runner import AdjustableRunner, ConfigurableRunner, PhaseListener, Runner


class DeferredRunner:
    """Stands in for a runner until it is needed; it is made once, where it is first asked for."""

    def __init__(self, make: Callable[[], Runner], measurement: Measurement) -> None:
        """Makes nothing yet.

        Args:
            make: the runner, with this measurement; may raise what a runner's constructor does.
            measurement: how the first plan is measured.
        """
        self._make = make
        self._made: Runner | None = None
        self.measurement = measurement
        self.settings: Settings = ()

    def start(self) -> None:
        """Makes the runner; from the main thread, before plans run in others. May be called twice.

        Raises:
            UserError: it cannot be made as it was asked for.
            RuntimeError: Ray does not start.
        """
        if self._made is None:
            self._made = self._make()

    def _ready(self) -> Runner:
        self.start()
        runner = self._made
        assert runner is not None, "it was started"
        if isinstance(runner, AdjustableRunner):
            runner.measurement = self.measurement
        if isinstance(runner, ConfigurableRunner):
            runner.settings = self.settings
        return runner

    @property
    def num_slots(self) -> int:
        """The runner's."""
        return self._ready().num_slots

    def describe(self, plan: ParallelPlan) -> LaunchSpec:
        """What ``run`` would start."""
        return self._ready().describe(plan)

    def run(self, plan: ParallelPlan, folder: Path, on_phase: PhaseListener) -> Outcome:
        """As the runner does it."""
        return self._ready().run(plan, folder, on_phase)

    def stop(self) -> None:
        """Stops the runner, where there is one."""
        if self._made is not None:
            self._made.stop()

    def close(self) -> None:
        """Closes the runner, where there is one."""
        if self._made is not None:
            self._made.close()
