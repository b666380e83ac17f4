"""What every command starts from: the job, its legal plans, and what is predicted of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from runners.backends.launch import launch_for
from search_spaces.enumeration import search_space
from search_spaces.rule import Setting
from tuner.cli.found_cluster import found_cluster
from tuner.cost_model.prediction import Prediction, plan_predictions
from tuner.errors import UserError
from tuner.job import Job, read_job
from tuner.plan import Backend, ParallelPlan, Precision
from tuner.search_space import Removal, SearchSpace
from tuner.stack import installed_stack
from tuner.units import size_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A job with its legal plans and their predictions, in the same order."""

    job: Job
    space: SearchSpace
    predictions: tuple[Prediction | None, ...]


def planned(path: Path) -> Planned:
    """Reads a job file and enumerates; needs no GPU unless the file says ``cluster: auto``."""
    job = read_job(path, found_cluster)
    space = _describable(job, search_space(job_setting(job), job.asked))
    return Planned(
        job=job,
        space=space,
        predictions=plan_predictions(job.workload, job.cluster, space.plans),
    )


def job_setting(job: Job) -> Setting:
    """What the plans of a job are judged against, with the versions that are installed here."""
    return Setting(workload=job.workload, cluster=job.cluster, stack=installed_stack())


def _describable(job: Job, space: SearchSpace) -> SearchSpace:
    """Without the frameworks that cannot build this model; the waterfall says what they said."""
    removals = list(space.waterfall)
    plans = space.plans
    for backend in Backend:
        own = plans.equals("backend", backend)
        if not own.any():
            continue
        try:
            launch_for(plans[int(own.argmax())], job.workload, job.cluster, job.measurement)
        except UserError as error:
            plans = plans.kept(~own)
            sentence = f"{backend} cannot train this model: {error}"
            removals.append(Removal(rule="M-01", removed=int(own.sum()), sentence=sentence))
    return replace(space, plans=plans, waterfall=tuple(removals))


def default_plans(space: SearchSpace) -> dict[Backend, ParallelPlan]:
    """What each framework does unless told otherwise: data parallelism, micro-batch 1.

    In the job's first precision; a framework whose default is not legal here is left out.
    """
    precision = Precision(str(dict(space.knobs)["precision"][0]))
    defaults = {backend: ParallelPlan(backend=backend, precision=precision) for backend in Backend}
    return {backend: plan for backend, plan in defaults.items() if plan in space.plans}


def nothing_legal(planned_job: Planned) -> str:
    """Why no plan is legal: every rule with what it removed, the largest first."""
    space = planned_job.space
    lines = [f"none of the {space.num_combinations} combinations is legal:"]
    for removal in sorted(space.waterfall, key=lambda r: -r.removed):
        lines.append(f"  {removal.rule}: {removal.sentence} ({removal.removed} removed)")
    lines.append("pin fewer knobs under search, or change the batch or the GPUs")
    return "\n".join(lines)


def nothing_fits(planned_job: Planned) -> str:
    """What the smallest plan needs, against the limit."""
    needs = [p.peak_memory_bytes for p in planned_job.predictions if p is not None]
    return (
        f"no plan ran. The smallest is predicted to need {size_text(min(needs))} of the "
        f"{size_text(planned_job.job.memory_limit_bytes)} that a rank may allocate; more GPUs, "
        "a shorter sequence or offload would help"
        if needs
        else "no plan ran; the failures above say why"
    )
