"""What a trial is told of the best plan so far, so that a slower one need not run to its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tuner.outcome import Measured
from tuner.runner import AdjustableRunner, Runner
from tuner.trial import Trial


def tell_incumbent(runner: Runner, trials: Sequence[Trial]) -> None:
    """Has the runner's next trial end early where it is slower than the best of these for sure."""
    if not isinstance(runner, AdjustableRunner) or runner.measurement.adaptive is None:
        return
    times_s = [t.outcome.step_time_s for t in trials if isinstance(t.outcome, Measured)]
    adaptive = replace(
        runner.measurement.adaptive, incumbent_step_time_s=min(times_s, default=None)
    )
    runner.measurement = replace(runner.measurement, adaptive=adaptive)
