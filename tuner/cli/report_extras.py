"""What the cost model says of a study's trials, for its report: nothing is predicted unasked."""

from __future__ import annotations

from collections.abc import Mapping

from reports.report_facts import PlanTerms, PredictedTrial, ReportExtras
from reports.summary import Summary
from tuner.cli.kept_study import KeptStudy
from tuner.cost_model.case import Subject, subject_of
from tuner.cost_model.prediction import breakdown, predictions
from tuner.errors import UserError
from tuner.plan_arrays import PlanArrays
from tuner.study_folder import StudyFolder
from tuner.workload import HfModel, Workload


def report_extras(folder: StudyFolder, summary: Summary) -> ReportExtras:
    """What is predicted from shapes and datasheets, before any trial; terms of plans that trained.

    A study of an unknown model, or of an older paratune, has none: its report goes without.
    """
    subject = None if summary.best is None else _subject(folder)
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


def _subject(folder: StudyFolder) -> Subject | None:
    """From what the folder keeps: to read the model again would take transformers seconds."""
    try:
        kept = KeptStudy.read(folder)
        section = folder.read_json(folder.job_file)["identity"]["workload"]
        batch, seq_len = section["global_batch"], section["seq_len"]
    except (UserError, KeyError):
        return None  # of an older paratune
    if kept.shape is None:
        return None
    model = HfModel(name=kept.shape.family, config_text="", shape=kept.shape)
    workload = Workload(model=model, seq_len=seq_len, global_batch_sequences=batch)
    return subject_of(workload, kept.cluster)
