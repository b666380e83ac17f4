"""What the sampler knows before any trial: physics, the frameworks' defaults, earlier studies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tuner.cli.kept_study import cluster_identity
from tuner.cli.setting import Planned, default_plans
from tuner.cost_model.case import subject_of
from tuner.cost_model.fit import usable_within
from tuner.errors import UserError
from tuner.outcome import Measured, OutOfMemory
from tuner.samplers.candidates import Candidates
from tuner.samplers.plan_belief import Belief, physical_belief, plain_belief
from tuner.samplers.plan_sampler import Told
from tuner.samplers.registry import Sampler, sampler_named
from tuner.study_folder import StudyFolder
from tuner.sweep_table import SweepGroup, read_sweep
from tuner.trial import Trial


def job_sampler(
    job: Planned,
    name: str,
    *,
    seed: int,
    warm_start: Sequence[Path] = (),
) -> Sampler:
    """The sampler of this name over the legal plans of a job.

    The frameworks' defaults are tried first, for comparison, where they are likely to run.
    ``warm_start`` names study folders and measured tables (CSV).

    Raises:
        UserError: a warm start is not of this model, batch and cluster.
    """
    candidates = Candidates.of_plans(job.space.plans, options=dict(job.space.knobs))
    rows = [
        (candidates.find(plan.to_dict()), f"the default of {backend}")
        for backend, plan in default_plans(job.space).items()
    ]
    earlier = [told for path in warm_start for told in earlier_trials(job, candidates, path)]
    return sampler_named(
        name,
        candidates,
        lambda: job_belief(job, candidates),
        first=[(row, reason) for row, reason in rows if row is not None],
        earlier=earlier,
        seed=seed,
    )


def job_belief(job: Planned, candidates: Candidates) -> Belief:
    """From the cost model; of a user's own module nothing is known."""
    limit = job.job.memory_limit_bytes
    subject = subject_of(job.job.workload, job.job.cluster)
    if subject is None:
        return plain_belief(candidates, float(limit))
    usable = usable_within(job.job.cluster.gpu, limit)
    return physical_belief(candidates, [subject], job.space.plans, usable)


def earlier_trials(job: Planned, candidates: Candidates, path: Path) -> list[Told]:
    """What a study folder or a measured table tells of the legal plans of this job.

    Raises:
        UserError: it is neither, or none of it is of this model, batch and cluster.
    """
    told = _of_study(job, path) if path.is_dir() else _of_table(job, path)
    found = [
        Told(row=row, seconds=seconds, peak_bytes=peak, out_of_memory=lost)
        for values, seconds, peak, lost in told
        if (row := candidates.find(values)) is not None
    ]
    if not found:
        raise UserError(
            f"--warm-start {path} must hold trials of plans that are legal here, got none of "
            f"{len(candidates)}; leave it out"
        )
    return found


_Row = tuple[dict[str, Any], float | None, float | None, bool]
"""Knobs, seconds, peak bytes, whether it ran out of memory."""


def _of_study(job: Planned, path: Path) -> list[_Row]:
    folder = StudyFolder(path)
    if not folder.job_file.exists():
        raise UserError(f"--warm-start {path} must be a study folder or a CSV file")
    kept = folder.read_json(folder.job_file).get("identity", {})
    here = {
        "workload": {k: v for k, v in job.job.resolved["workload"].items() if k != "seed"},
        "cluster": cluster_identity(job.job.cluster),
        "measure": {"routing": job.job.measurement.routing},
    }
    unsaid = {"routing": "learned"}  # by studies from before there was a choice
    for name, value in here.items():
        there = unsaid | {k: v for k, v in kept.get(name, {}).items() if k != "seed"}
        differing = [key for key in value if there.get(key) != value[key]]
        if differing:
            raise UserError(
                f"--warm-start {path} must be of the same {name}, but its {differing[0]} was "
                f"{there.get(differing[0])} and is now {value[differing[0]]}"
            )
    return [_of_trial(trial) for trial in folder.trials() if _telling(trial)]


def _telling(trial: Trial) -> bool:
    return isinstance(trial.outcome, Measured | OutOfMemory)


def _of_trial(trial: Trial) -> _Row:
    outcome = trial.outcome
    if isinstance(outcome, Measured):
        return trial.plan.to_dict(), outcome.step_time_s, float(outcome.peak_memory_bytes), False
    return trial.plan.to_dict(), None, None, True


def _of_table(job: Planned, path: Path) -> list[_Row]:
    sweep = read_sweep(path)
    rows: list[_Row] = []
    for group in sweep.groups:
        if _same_work(job, group):
            for row, plan in zip(group.rows, group.plans, strict=True):
                found = sweep.measurement(row)
                seconds = found.step_time_s if found.outcome == "measured" else None
                lost = found.outcome == "out_of_memory"
                if seconds is not None or lost:
                    rows.append((plan.to_dict(), seconds, None, lost))
    if not rows:
        raise UserError(
            f"--warm-start {path} must hold rows of this job (hidden size, layers, GPUs, sequence "
            f"length and global batch alike), got {_workloads(sweep.groups)}; leave it out"
        )
    return rows


def _same_work(job: Planned, group: SweepGroup) -> bool:
    subject, work = group.subjects[0], job.job.workload
    shape = work.shape
    return (
        shape is not None
        and (shape.hidden, shape.num_layers) == (subject.shape.hidden, subject.shape.num_layers)
        and work.seq_len == subject.workload.seq_len
        and work.global_batch_sequences == subject.workload.global_batch_sequences
        and job.job.cluster.num_gpus == subject.cluster.num_gpus
        and job.job.cluster.gpu.name == subject.cluster.gpu.name
    )


def _workloads(groups: Iterable[SweepGroup]) -> str:
    names = ["/".join(group.key.values()) for group in groups]
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
