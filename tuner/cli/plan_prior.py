"""What the sampler is told before any trial: predictions and the frameworks' defaults."""

from __future__ import annotations

from tuner.cli.setting import Planned, default_plans
from tuner.samplers.plan_sampler import PlanPrior


def plan_prior(job: Planned) -> PlanPrior:
    """Predictions of all legal plans; all equal where nothing is known of the model."""
    limit = job.job.memory_limit_bytes
    return PlanPrior(
        plans=tuple(job.space.plans),
        step_time_s=tuple(p.step_time_s if p else 1.0 for p in job.predictions),
        peak_memory_bytes=tuple(p.peak_memory_bytes if p else limit / 2 for p in job.predictions),
        first=tuple(default_plans(job.space).values()),
        limit_bytes=limit,
    )
