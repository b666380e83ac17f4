"""What the cost model says of a study's trials, for its report: nothing is predicted unasked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from reports.report_facts import PlanTerms, PredictedTrial, ReportExtras
from reports.summary import Summary
from tuner.cluster import Cluster
from tuner.cost_model.case import Subject
from tuner.cost_model.prediction import breakdown
from tuner.errors import UserError
from tuner.hf_config import hf_model
from tuner.job_cluster import ClusterSection, described_cluster
from tuner.launch import MODEL_FILE
from tuner.study_folder import StudyFolder
from tuner.workload import Workload


def report_extras(folder: StudyFolder, summary: Summary) -> ReportExtras:
    """Predictions that the trials were kept with, and terms of the plans that trained.

    A study of an unknown model, or of an older paratune, has none: its report goes without.
    """
    return ReportExtras(
        predictions=_kept_predictions(folder, summary), terms=_terms(folder, summary)
    )


def _kept_predictions(folder: StudyFolder, summary: Summary) -> Mapping[int, PredictedTrial]:
    """Of the trials whose record holds what was predicted when they were chosen."""
    kept = {}
    for trial in summary.trials:
        record = folder.read_json(folder.trial_folder(trial.number) / "trial.json")
        match record.get("prediction"):
            case {"step_time_s": float(seconds), "peak_memory_bytes": float() | int() as size}:
                kept[trial.number] = PredictedTrial(step_time_s=seconds, peak_memory_bytes=size)
    return kept


def _terms(folder: StudyFolder, summary: Summary) -> Mapping[int, PlanTerms]:
    if summary.best is None:
        return {}
    job = folder.read_json(folder.job_file)
    try:
        workload = _workload(folder, summary.best.number, job)
        cluster = _cluster(job)
    except (UserError, ValidationError, KeyError):
        return {}  # a user's own module, or a cluster that is described no longer
    shape = workload.shape
    assert shape is not None, "a config.json gives one"
    subject = Subject(shape=shape, workload=workload, cluster=cluster)
    found = {ranked.number: breakdown(subject, ranked.plan) for ranked in summary.ranking}
    return {
        number: PlanTerms(time_s=terms.time_s, memory_bytes=terms.memory_bytes)
        for number, terms in found.items()
    }


def _workload(folder: StudyFolder, number: int, job: Mapping[str, Any]) -> Workload:
    """The job's, with the model as the trial was launched with: its file may have moved."""
    section = job["identity"]["workload"]
    path = folder.launch_folder(number) / MODEL_FILE
    return Workload(
        model=hf_model(path, named=str(path)),
        seq_len=section["seq_len"],
        global_batch_sequences=section["global_batch"],
    )


def _cluster(job: Mapping[str, Any]) -> Cluster:
    """As the job describes it; one that was found then is now known by its GPUs' name."""
    described = job["job"]["cluster"]
    values = job["identity"]["cluster"] if described == "auto" else described
    return described_cluster(
        ClusterSection.model_validate(values), job["memory_limit_bytes"], named="cluster"
    )
