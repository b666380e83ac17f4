"""What was disturbed is measured once more where that may change who is best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.incumbent import tell_incumbent
from tuner.launch import AdaptiveSteps, LaunchSpec, Measurement
from tuner.outcome import Measured, Outcome, OutOfMemory, Phase
from tuner.plan import Backend, ParallelPlan
from tuner.runner import PhaseListener
from tuner.trial import Trial
from tuner.undisturbed import UndisturbedRunner

PLAN = ParallelPlan(backend=Backend.PYTORCH)


def measured(seconds: float, *marks: str) -> Measured:
    return Measured(
        step_times_s=(seconds,),
        step_time_s=seconds,
        step_time_ci_s=(0.98 * seconds, 1.02 * seconds),
        tokens_per_s=1.0,
        peak_memory_bytes=1,
        peak_memory_bytes_by_rank=(1,),
        marks=marks,
    )


class Scripted:
    """Gives these outcomes, one after the other."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.measurement = Measurement(adaptive=AdaptiveSteps())
        self.left = list(outcomes)

    def describe(self, plan: ParallelPlan) -> LaunchSpec:
        return LaunchSpec(plan=plan, num_nodes=1, ranks_per_node=1, files=())

    def run(self, plan: ParallelPlan, folder: Path, on_phase: PhaseListener) -> Outcome:
        return self.left.pop(0)

    @property
    def num_slots(self) -> int:
        return 1

    def stop(self) -> None:
        """Nothing goes on in another thread."""

    def close(self) -> None:
        self.left = []


def run(*outcomes: Outcome, incumbent_s: float | None = 1.0) -> tuple[Outcome, int]:
    """What came of it, and how many attempts it took."""
    scripted = Scripted(outcomes)
    runner = UndisturbedRunner(scripted)
    best = [] if incumbent_s is None else [measured(incumbent_s)]
    tell_incumbent(
        runner,
        [Trial(number=0, plan=PLAN, outcome=o, started_at=0.0, wall_s=1.0) for o in best],
    )
    outcome = runner.run(PLAN, Path("unused"), lambda _: None)
    return outcome, len(outcomes) - len(scripted.left)


@pytest.mark.parametrize("incumbent_s", [None, 1.0])
def test_a_disturbed_plan_that_may_be_the_best_is_measured_again(
    incumbent_s: float | None,
) -> None:
    outcome, attempts = run(measured(1.05, "load"), measured(0.9), incumbent_s=incumbent_s)
    assert outcome == replace(measured(0.9), attempts=2)
    assert attempts == 2


def test_only_once() -> None:
    outcome, attempts = run(measured(1.0, "load"), measured(1.0, "more load"), measured(1.0))
    assert attempts == 2
    assert isinstance(outcome, Measured)
    assert outcome.marks == ("more load",)


def test_a_disturbed_plan_that_is_far_behind_is_only_marked() -> None:
    outcome, attempts = run(measured(1.5, "load"), measured(1.4))
    assert (outcome, attempts) == (measured(1.5, "load"), 1)


@pytest.mark.parametrize(
    "outcome", [measured(0.9), OutOfMemory(rank=0, phase=Phase.MODEL, message="full")]
)
def test_what_was_not_disturbed_is_not_repeated(outcome: Outcome) -> None:
    assert run(outcome, measured(1.0)) == (outcome, 1)
