"""A study over a runner that only computes, as tests use it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from search_spaces.enumeration import search_space
from tests.tiny_job import cpu_cluster, setting, tiny_workload
from tuner.launch import LaunchSpec
from tuner.outcome import Measured, Outcome, OutOfMemory, Phase
from tuner.plan import Backend, ParallelPlan
from tuner.runner import UNBOUNDED, PhaseListener, Runner
from tuner.samplers.candidates import Candidates
from tuner.samplers.plan_belief import plain_belief
from tuner.samplers.registry import sampler_named
from tuner.search_space import SearchSpace
from tuner.study import Study
from tuner.study_folder import StudyFolder


def measured(seconds: float, peak: int = 100) -> Measured:
    return Measured(
        step_times_s=(seconds,),
        step_time_s=seconds,
        step_time_ci_s=(seconds, seconds),
        tokens_per_s=1 / seconds,
        peak_memory_bytes=peak,
        peak_memory_bytes_by_rank=(peak,),
    )


class ComputedRunner:
    """Answers from a function of the plan, and counts."""

    num_slots = UNBOUNDED

    def __init__(self, outcome_of: Callable[[ParallelPlan], Outcome]) -> None:
        self.outcome_of = outcome_of
        self.plans: list[ParallelPlan] = []

    def describe(self, plan: ParallelPlan) -> LaunchSpec:
        return LaunchSpec(plan=plan, num_nodes=1, ranks_per_node=4, files=())

    def run(self, plan: ParallelPlan, folder: Path, on_phase: PhaseListener) -> Outcome:
        folder.mkdir(parents=True, exist_ok=True)
        on_phase(Phase.STEPS)
        self.plans.append(plan)
        return self.outcome_of(plan)

    def stop(self) -> None:
        return None

    def close(self) -> None:
        return None


def step_time_s(plan: ParallelPlan) -> float:
    """A landscape whose best plan has the largest micro-batch, tp 2 and no recomputation."""
    slow = {"none": 1.0, "selective": 1.1, "full": 1.35}[plan.recompute]
    return slow * (1 + 1 / plan.micro_batch) * (1 + 0.2 * abs(plan.tp - 2)) * (1 + 0.1 * plan.pp)


def outcome_of(plan: ParallelPlan) -> Outcome:
    if plan.micro_batch >= 4 and plan.recompute == "none":
        return OutOfMemory(rank=0, phase=Phase.FIRST_STEP, message="too large")
    return measured(step_time_s(plan), peak=9 * plan.micro_batch)


SPACE = search_space(setting(tiny_workload(), cpu_cluster(4)), {"precision": ("fp32",)})


def study(
    tmp_path: Path,
    runner: Runner,
    *,
    sampler: str = "plan",
    space: SearchSpace = SPACE,
    peak_bytes: Callable[[ParallelPlan], float] = lambda plan: 10.0 * plan.micro_batch,
    parallel: int = 1,
    storage_url: str | None = None,
) -> Study:
    candidates = Candidates.of_plans(space.plans, options=dict(space.knobs))
    defaults = [ParallelPlan(backend=b, precision=space.plans[0].precision) for b in Backend]
    rows = [
        (candidates.find(plan.to_dict()), f"the default of {plan.backend}") for plan in defaults
    ]
    peaks = np.log([peak_bytes(plan) for plan in space.plans])
    folder = StudyFolder(tmp_path / "study")
    folder.create()
    return Study(
        space=space,
        runner=runner,
        folder=folder,
        parallel=parallel,
        storage_url=storage_url,
        sampler=sampler_named(
            sampler,
            candidates,
            lambda: plain_belief(candidates, 100.0, peaks),
            first=[(row, reason) for row, reason in rows if row is not None],
            seed=1,
        ),
    )
