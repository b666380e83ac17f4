"""What the cost model says of a study's trials, for its report: nothing is predicted unasked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from reports.report_facts import PlanTerms, PredictedTrial, ReportExtras
from reports.summary import Summary
from tuner.cluster import Cluster
from tuner.cost_model.case import Subject
from tuner.cost_model.prediction import breakdown, predictions
from tuner.errors import UserError
from tuner.hf_file import hf_model
from tuner.job_cluster import ClusterSection, described_cluster
from tuner.launch import MODEL_FILE
from tuner.plan_arrays import PlanArrays
from tuner.study_folder import StudyFolder
from tuner.workload import Workload


def report_extras(folder: StudyFolder, summary: Summary) -> ReportExtras:
    """What is predicted from shapes and datasheets, before any trial; terms of plans that trained.

    A study of an unknown model, or of an older paratune, has none: its report goes without.
    """
    subject = _subject(folder, summary)
    if subject is None:
        return ReportExtras(predictions={}, terms={})
    return ReportExtras(predictions=_predictions(subject, summary), terms=_terms(subject, summary))


def _predictions(subject: Subject, summary: Summary) -> Mapping[int, PredictedTrial]:
    found = predictions(subject, PlanArrays.of_plans([trial.plan for trial in summary.trials]))
    return {
        trial.number: PredictedTrial(step_time_s=float(seconds), peak_memory_bytes=float(size))
        for trial, seconds, size in zip(
            summary.trials, found.step_time_s, found.peak_memory_bytes, strict=True
        )
    }


def _terms(subject: Subject, summary: Summary) -> Mapping[int, PlanTerms]:
    found = {ranked.number: breakdown(subject, ranked.plan) for ranked in summary.ranking}
    return {
        number: PlanTerms(time_s=terms.time_s, memory_bytes=terms.memory_bytes)
        for number, terms in found.items()
    }


def _subject(folder: StudyFolder, summary: Summary) -> Subject | None:
    if summary.best is None:
        return None
    job = folder.read_json(folder.job_file)
    try:
        workload = _workload(folder, summary.best.number, job)
        cluster = _cluster(job)
    except (UserError, ValidationError, KeyError):
        return None  # a user's own module, or a cluster that is described no longer
    shape = workload.shape
    assert shape is not None, "a config.json gives one"
    return Subject(shape=shape, workload=workload, cluster=cluster)


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
        ClusterSection.model_validate(_given(values)), job["memory_limit_bytes"], named="cluster"
    )


def _given(values: Any) -> Any:
    """Without the keys that the user left out, which were kept as null."""
    if not isinstance(values, Mapping):
        return values
    return {key: _given(value) for key, value in values.items() if value is not None}
