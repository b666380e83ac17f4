"""The rows of the table of all trials: what is shown, and what it is sorted by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reports.study_files import LogTail, StudyFiles
from reports.summary import Summary
from reports.wording import BACKEND_NAMES, KIND_NAMES, outcome_words, plan_words
from tuner.outcome import Measured
from tuner.trial import Trial
from tuner.units import size_text, time_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number as it is shown, and as it is sorted by."""

    text: str = ""
    value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """One trial; the log and all knobs are in a row of their own below it, shown on demand."""

    number: int
    label: str
    words: str
    backend: str
    backend_name: str
    kind: str
    kind_name: str
    step_time: Number
    interval: str
    tokens_per_s: Number
    peak_memory: Number
    took: Number
    reason: str
    message: str
    """Empty for a trial that trained."""
    log: LogTail | None
    is_best: bool


def trial_rows(summary: Summary, study: StudyFiles) -> tuple[TrialRow, ...]:
    """All: the fastest first, then those that did not train, by number."""
    ordered = [*(ranked.trial for ranked in summary.ranking), *summary.others]
    return tuple(_row(trial, summary, study) for trial in ordered)


def _row(trial: Trial, summary: Summary, study: StudyFiles) -> TrialRow:
    outcome = trial.outcome
    measured = outcome if isinstance(outcome, Measured) else None
    return TrialRow(
        number=trial.number,
        label=trial.plan.label(),
        words=plan_words(trial.plan, summary.num_gpus),
        backend=str(trial.plan.backend),
        backend_name=BACKEND_NAMES[trial.plan.backend],
        kind=outcome.kind,
        kind_name=KIND_NAMES[outcome.kind],
        step_time=_number(measured.step_time_s, time_text) if measured else Number(),
        interval=_interval(measured) if measured else "",
        tokens_per_s=_number(measured.tokens_per_s / summary.num_gpus, "{:,.0f}".format)
        if measured
        else Number(),
        peak_memory=_number(measured.peak_memory_bytes, size_text) if measured else Number(),
        took=_number(trial.wall_s, time_text),
        reason=trial.reason,
        message="" if measured else outcome_words(outcome),
        log=study.logs.get(trial.number),
        is_best=summary.best is not None and trial.number == summary.best.number,
    )


def _number(value: float, words: Callable[[float], str]) -> Number:
    return Number(text=words(value), value=value)


def _interval(measured: Measured) -> str:
    low, high = (time_text(seconds) for seconds in measured.step_time_ci_s)
    return f"{low} to {high}"
