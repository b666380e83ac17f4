"""What the sampler is told before any trial: predictions and the frameworks' defaults."""

from __future__ import annotations

from tuner.cli.setting import Planned, default_plans
from tuner.samplers.plan_sampler import PlanPrior


def plan_prior(job: Planned) -> PlanPrior:
    """Predictions of all legal plans; all equal where nothing is known of the model."""
    limit = float(job.job.memory_limit_bytes)
    predicted, plans = job.predicted, tuple(job.space.plans)
    if predicted is None:
        times, peaks = (1.0,) * len(plans), (limit / 2,) * len(plans)
    else:
        times = tuple(predicted.step_time_s.tolist())
        peaks = tuple(predicted.peak_memory_bytes.tolist())
    return PlanPrior(
        plans=plans,
        step_time_s=times,
        peak_memory_bytes=peaks,
        first=tuple(default_plans(job.space).values()),
        limit_bytes=limit,
    )
