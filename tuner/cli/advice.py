"""Why no plan is legal or none fits, and the nearest changes that would help, with their effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search_spaces.enumeration import binding_removals
from tuner.cli.setting import Planned, job_setting, planned_job
from tuner.cluster import Device
from tuner.cost_model.case import subject_of
from tuner.cost_model.prediction import breakdown
from tuner.job import Job
from tuner.outcome import OutOfMemory
from tuner.plan import KNOB_NAMES, ParallelPlan
from tuner.plan_arrays import PlanArrays
from tuner.stack import COMPONENTS
from tuner.trial import Trial
from tuner.units import size_text, time_text

_MAX_CHANGES = 6
"""More than this is no advice."""
_MAX_RULES = 6
_MAX_NEAR = 5
_MAX_DOUBLINGS = 7
"""Up to 128 times the nodes: what needs more will not be had by asking for it."""
_SHORTEST = 512
"""Tokens; a shorter sequence is another job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing to change in the job, and what came of trying it on paper."""

    what: str
    num_legal: int
    num_fitting: int
    best: ParallelPlan
    """Of the plans that fit, the fastest predicted; of an unknown model, any legal one."""
    step_time_s: float | None
    peak_memory_bytes: float | None

    def sentence(self) -> str:
        """The change and its effect."""
        effect = f"{self.num_legal} legal plans"
        if self.step_time_s is not None and self.peak_memory_bytes is not None:
            effect += (
                f", {self.num_fitting} predicted to fit; the fastest of them "
                f"{time_text(self.step_time_s)} a step in {size_text(self.peak_memory_bytes)}"
            )
        return f"{self.what}: {effect} ({self.best.label()})"

    def document(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "change": self.what,
            "num_legal": self.num_legal,
            "num_fitting": self.num_fitting,
            "plan": self.best.to_dict(),
            "predicted_step_time_s": self.step_time_s,
            "predicted_peak_memory_bytes": self.peak_memory_bytes,
        }


def helpful_changes(job: Job) -> tuple[Change, ...]:
    """Changes after which some legal plan is predicted to fit, the smallest changes first.

    Of changes of one kind (more GPUs, a shorter sequence) only the smallest that helps is kept.
    """
    freed = list(_helpful(_freed(job, 1))) or list(_helpful(_freed(job, 2)))[:1]
    others = [_helpful(kind) for kind in (_batches(job), _more_nodes(job), _shorter(job))]
    first = [change for kind in others if (change := next(kind, None)) is not None]
    return (*freed[: _MAX_CHANGES - len(first)], *first)


def _helpful(candidates: Iterable[tuple[str, Job]]) -> Iterator[Change]:
    for what, job in candidates:
        changed = planned_job(job)
        if changed.num_fitting:
            yield _change(what, changed)


def _change(what: str, changed: Planned) -> Change:
    plans, predicted = changed.space.plans, changed.predicted
    fitting = np.arange(len(plans)) if predicted is None else np.flatnonzero(predicted.fits)
    best = int(fitting[0])
    if predicted is not None:
        best = int(fitting[np.argmin(predicted.step_time_s[fitting])])
    return Change(
        what=what,
        num_legal=len(plans),
        num_fitting=len(fitting),
        best=plans[best],
        step_time_s=None if predicted is None else float(predicted.step_time_s[best]),
        peak_memory_bytes=None if predicted is None else float(predicted.peak_memory_bytes[best]),
    )


def _freed(job: Job, num_knobs: int) -> Iterator[tuple[str, Job]]:
    """The job with some of its pinned knobs left automatic."""
    for names in combinations(job.asked, num_knobs):
        kept = {name: options for name, options in job.asked.items() if name not in names}
        knobs = " and ".join(f"search.{name}" for name in names)
        yield f"leave {knobs} auto", replace(job, asked=kept)


def _batches(job: Job) -> Iterator[tuple[str, Job]]:
    """The nearest global batches that some number of the GPUs divides, up and down."""
    batch, gpus = job.workload.global_batch_sequences, job.cluster.num_gpus
    degrees = [d for d in range(1, gpus + 1) if gpus % d == 0]
    near = {batch // d * d for d in degrees} | {(batch // d + 1) * d for d in degrees}
    for size in sorted(near - {0, batch}, key=lambda size: abs(size - batch)):
        workload = replace(job.workload, global_batch_sequences=size)
        yield f"make workload.global_batch {size} (now {batch})", replace(job, workload=workload)


def _more_nodes(job: Job) -> Iterator[tuple[str, Job]]:
    """Twice, four times, ... the nodes; a node whose GPUs are no power of two also cut to one."""
    cluster = job.cluster
    cut = 1 << (cluster.gpus_per_node.bit_length() - 1)
    if cut != cluster.gpus_per_node:
        what = f"use {cut} GPUs a node (now {cluster.gpus_per_node})"
        yield what, replace(job, cluster=replace(cluster, gpus_per_node=cut))
    for doublings in range(1, _MAX_DOUBLINGS + 1):
        nodes = cluster.num_nodes * 2**doublings
        what = f"use {nodes} nodes of {cluster.gpus_per_node} GPUs (now {cluster.num_nodes})"
        yield what, replace(job, cluster=replace(cluster, num_nodes=nodes))


def _shorter(job: Job) -> Iterator[tuple[str, Job]]:
    """Half, a quarter, ... of the sequence."""
    seq_len = job.workload.seq_len
    while seq_len % 2 == 0 and seq_len > _SHORTEST:
        seq_len //= 2
        workload = replace(job.workload, seq_len=seq_len)
        what = f"make workload.seq_len {seq_len} (now {job.workload.seq_len})"
        yield what, replace(job, workload=workload)


def nothing_legal(job: Planned, changes: Sequence[Change]) -> str:
    """Why no plan is legal: the binding rules, or all that removed some; then what would help."""
    space = job.space
    binding = binding_removals(job_setting(job.job), job.job.asked)
    if binding:
        lines = [f"no plan is legal; binding, of {space.num_combinations:,} combinations:"]
        lines += [f"  {removal.rule}: {removal.example}" for removal in binding[:_MAX_RULES]]
    else:
        lines = [f"none of {space.num_combinations:,} combinations is legal; several rules bind:"]
        removals = sorted(space.waterfall, key=lambda removal: -removal.removed)[:_MAX_RULES]
        lines += [f"  {r.rule} removed {r.removed:,}: {r.example}" for r in removals]
    return "\n".join([*lines, *_advice(changes)])


def nothing_measured(job: Planned, trials: Sequence[Trial]) -> str:
    """What became of the trials of a study that measured none, and no more than that is known."""
    kinds = Counter(trial.outcome.kind.replace("_", " ") for trial in trials)
    ends = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    said = f"none of {len(trials)} trials was measured: {ends}" if trials else "no trial has ended"
    out_of_memory = any(isinstance(trial.outcome, OutOfMemory) for trial in trials)
    if (out_of_memory or not trials) and not job.num_fitting:
        return f"{said}\n{nothing_fits(job, helpful_changes(job.job))}"
    return said


def nothing_fits(job: Planned, changes: Sequence[Change]) -> str:
    """What the smallest plan needs against the limit, its largest term, and what would help."""
    predicted = job.predicted
    if predicted is None or not len(job.space.plans):
        return "no plan ran; the failures above say why"
    least = int(predicted.peak_memory_bytes.argmin())
    plan = job.space.plans[least]
    subject = subject_of(job.job.workload, job.job.cluster)
    assert subject is not None, "predicted, so of a model with a shape"
    terms = breakdown(subject, plan).memory_bytes
    largest = max(terms, key=lambda term: terms[term])
    line = (
        f"none of {len(job.space.plans)} legal plans is predicted to fit: the smallest "
        f"({plan.label()}) needs {size_text(float(predicted.peak_memory_bytes[least]))} of the "
        f"{size_text(job.job.memory_limit_bytes)} that a rank may allocate, "
        f"{size_text(terms[largest])} of it {largest.replace('_', ' ')}"
    )
    return "\n".join([line, *_advice(changes)])


def _advice(changes: Sequence[Change]) -> list[str]:
    if not changes:
        return ["no single change of the batch, the nodes or the sequence would help"]
    return ["what would help:", *[f"  {change.sentence()}" for change in changes]]


def nearest_plans(plan: ParallelPlan, job: Planned) -> tuple[ParallelPlan, ...]:
    """The legal plans by how many knobs they differ in: of the same framework, fitting, fast."""
    plans, predicted = job.space.plans, job.predicted
    distance = _distance(plan, plans)
    if predicted is None:
        order = np.argsort(distance, kind="stable")
    else:
        order = np.lexsort((predicted.step_time_s, ~predicted.fits, distance))
    return tuple(plans[int(index)] for index in order[:_MAX_NEAR])


def _distance(plan: ParallelPlan, plans: PlanArrays) -> NDArray[np.int64]:
    """Knobs that differ, shape (n,); another framework counts for more than all others."""
    codes = PlanArrays.of_plans([plan]).columns
    differing = np.zeros(len(plans), dtype=np.int64)
    for name in KNOB_NAMES:
        differing += (plans.columns[name] != codes[name]) * (100 if name == "backend" else 1)
    return differing


def one_knob_away(plan: ParallelPlan, job: Planned) -> tuple[ParallelPlan, ...]:
    """The plans that fit and differ from a plan in one knob, the fastest predicted first."""
    plans, predicted = job.space.plans, job.predicted
    if predicted is None:
        return ()
    near = np.flatnonzero((_distance(plan, plans) == 1) & predicted.fits)
    near = near[np.argsort(predicted.step_time_s[near])][:_MAX_NEAR]
    return tuple(plans[int(index)] for index in near)


def stack_hint(job: Job, sentences: Sequence[str]) -> str | None:
    """That rules spoke of components that are missing here, for a cluster that is elsewhere.

    Args:
        job: what is planned.
        sentences: of the rules that removed plans, or that a plan breaks.
    """
    elsewhere = job.resolved["cluster"] != "auto" and job.cluster.gpu.device is Device.CUDA
    if not elsewhere or any(job.resolved["stack"].values()):
        return None
    missing = [
        name
        for name in COMPONENTS
        if name not in job.stack.versions and any(name in said for said in sentences)
    ]
    if not missing:
        return None
    versions = ", ".join(f'{name}: "VERSION"' for name in missing)
    return (
        f"planned for the packages installed here (no {', no '.join(missing)}); for the "
        f"cluster's own, write stack: {{{versions}}} in the job file"
    )
