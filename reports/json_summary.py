"""A study as one JSON document: times in seconds, sizes in bytes."""

from __future__ import annotations

from typing import Any

from reports.baseline_wording import baseline_record
from reports.second_pass_wording import second_pass_record
from reports.study_facts import StudyFacts
from reports.summary import MeasuredTrial, Summary
from reports.wording import doubt_words, outcome_words
from tuner.outcome import Measured, Source
from tuner.plan import Backend
from tuner.study_folder import StudyFolder
from tuner.trial import Trial


def study_document(folder: StudyFolder, summary: Summary) -> dict[str, Any]:
    """What ``--json`` prints.

    Raises:
        UserError: a file of the study folder cannot be read.
    """
    facts = StudyFacts.read(folder)
    best = None if summary.best is None else _best_record(summary, summary.best, facts)
    return {
        "best": best,
        "trials": [_trial_record(summary, trial) for trial in summary.trials],
        "waterfall": facts.waterfall,
        "by_backend": {str(b): _backend_record(summary, b) for b in Backend},
        "baseline": baseline_record(summary),
        "second_pass": second_pass_record(summary),
        "counts": dict(summary.counts),
        "num_gpus": summary.num_gpus,
        "study": str(folder.path),
    }


def _best_record(summary: Summary, best: MeasuredTrial, facts: StudyFacts) -> dict[str, Any]:
    return _measured_record(summary, best) | {
        "speedup_over_median": summary.speedup_over_median,
        "speedup_over_default": {str(d.backend): d.speedup for d in summary.defaults},
        "tied_with_trial": summary.ties[0].number if summary.ties else None,
        "tied_with_trials": [ranked.number for ranked in summary.ties],
        "margin": _margin_record(summary),
        "verification": _verification_record(summary),
        "routing": facts.routing,
    }


def _verification_record(summary: Summary) -> dict[str, Any] | None:
    found = summary.verification
    if found is None:
        return None
    return {
        "verdict": str(found.verdict),
        "sentence": found.sentence,
        "blind_to": list(found.blind_to),
    }


def _margin_record(summary: Summary) -> dict[str, Any] | None:
    if summary.margin is None or summary.runner_up is None:
        return None
    much, low, high = summary.margin
    return {
        "trial": summary.runner_up.number,
        "relative": much,
        "interval": [low, high],
        "tie": summary.runner_up in summary.ties,
        "by_finals": bool(summary.finals),
    }


def _backend_record(summary: Summary, backend: Backend) -> dict[str, Any] | None:
    ranked = summary.best_of(backend)
    return None if ranked is None else _measured_record(summary, ranked)


def _measured_record(summary: Summary, ranked: MeasuredTrial) -> dict[str, Any]:
    measured = ranked.measured
    return {
        "plan": ranked.plan.to_dict(),
        "settings": dict(ranked.settings),
        "step_time_s": measured.step_time_s,
        "step_time_ci_s": list(measured.step_time_ci_s),
        "tokens_per_s": measured.tokens_per_s,
        "tokens_per_s_per_gpu": summary.tokens_per_s_per_gpu(ranked),
        "peak_memory_bytes": measured.peak_memory_bytes,
        "headroom_bytes": _headroom_bytes(measured),
        "nearly_out_of_memory": measured.is_nearly_full,
        "notes": list(doubt_words(measured)),
        "trial": ranked.number,
        "source": str(measured.source),
    }


def _headroom_bytes(measured: Measured) -> int | None:
    """Left below what a rank was allowed; None where that is not known."""
    limit_bytes = measured.memory_limit_bytes
    return limit_bytes - measured.peak_memory_bytes if limit_bytes else None


def _trial_record(summary: Summary, trial: Trial) -> dict[str, Any]:
    outcome = trial.outcome
    own = outcome if isinstance(outcome, Measured) else None
    full = summary.full_steps(trial)
    measured = full or own
    extrapolated = own is not None and own.source is Source.EXTRAPOLATED
    return {
        "number": trial.number,
        "plan": trial.plan.to_dict(),
        "outcome": outcome.kind,
        "step_time_s": full.step_time_s if full else None,
        "extrapolated_step_time_s": own.step_time_s if own and extrapolated else None,
        "source": str(measured.source) if measured else None,
        "peak_memory_bytes": measured.peak_memory_bytes if measured else None,
        "headroom_bytes": _headroom_bytes(measured) if measured else None,
        "nearly_out_of_memory": measured.is_nearly_full if measured else None,
        "marks": list(measured.marks) if measured else [],
        "message": None if measured else outcome_words(outcome),
        "wall_s": trial.wall_s,
        "reason": trial.reason,
    }
