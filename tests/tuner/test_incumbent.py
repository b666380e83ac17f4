"""What a runner is told of the best plan so far."""

from __future__ import annotations

from runners.simulated_runner import SimulatedRunner
from tests.tiny_job import cpu_cluster, tiny_workload
from tuner.incumbent import tell_incumbent
from tuner.launch import AdaptiveSteps, Measurement
from tuner.outcome import Measured, Outcome, OutOfMemory, Phase
from tuner.plan import Backend, ParallelPlan
from tuner.trial import Trial


def trial(number: int, outcome: Outcome) -> Trial:
    plan = ParallelPlan(backend=Backend.PYTORCH, micro_batch=number + 1)
    return Trial(number=number, plan=plan, outcome=outcome, started_at=0.0, wall_s=1.0)


def measured(seconds: float) -> Measured:
    return Measured(
        step_times_s=(seconds,),
        step_time_s=seconds,
        step_time_ci_s=(seconds, seconds),
        tokens_per_s=1.0,
        peak_memory_bytes=1,
        peak_memory_bytes_by_rank=(1,),
    )


def runner(measurement: Measurement) -> SimulatedRunner:
    return SimulatedRunner(tiny_workload(), cpu_cluster(2), measurement)


def test_the_fastest_so_far_is_the_incumbent() -> None:
    adaptive = runner(Measurement(adaptive=AdaptiveSteps()))
    full = OutOfMemory(rank=0, phase=Phase.MODEL, message="full")
    tell_incumbent(adaptive, [trial(0, measured(2.0)), trial(1, measured(1.0)), trial(2, full)])
    assert adaptive.measurement.adaptive is not None
    assert adaptive.measurement.adaptive.incumbent_step_time_s == 1.0
    launch = adaptive.describe(ParallelPlan(backend=Backend.PYTORCH))
    assert '"incumbent_step_time_s": 1.0' in launch.files[0].text + launch.files[-1].text


def test_a_fixed_number_of_steps_has_no_incumbent() -> None:
    fixed = runner(Measurement())
    tell_incumbent(fixed, [trial(0, measured(2.0))])
    assert fixed.measurement == Measurement()
