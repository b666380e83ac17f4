"""The rows of the table of all trials: what is shown, and what it is sorted by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reports.study_files import LogTail, StudyFiles
from reports.summary import Summary
from reports.wording import (
    BACKEND_NAMES,
    KIND_NAMES,
    doubt_words,
    outcome_words,
    plan_words,
    trained_words,
)
from tuner.outcome import Measured, Source
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
    extrapolated_step_time: Number
    extrapolated_tokens_per_s: Number
    peak_memory: Number
    took: Number
    reason: str
    message: str
    """Why it did not train, or what is to be known of its numbers."""
    log: LogTail | None
    is_best: bool


def trial_rows(summary: Summary, study: StudyFiles) -> tuple[TrialRow, ...]:
    """All: the fastest first, then those that did not train, by number."""
    ordered = [*(ranked.trial for ranked in summary.ranking), *summary.others]
    return tuple(_row(trial, summary, study) for trial in ordered)


def _row(trial: Trial, summary: Summary, study: StudyFiles) -> TrialRow:
    outcome = trial.outcome
    own = outcome if isinstance(outcome, Measured) else None
    full = summary.full_steps(trial)
    short = own if own is not None and own.source is Source.EXTRAPOLATED else None
    measured = full or own
    return TrialRow(
        number=trial.number,
        label=trial.plan.label(),
        words=plan_words(trial.plan, summary.num_gpus),
        backend=str(trial.plan.backend),
        backend_name=BACKEND_NAMES[trial.plan.backend],
        kind=outcome.kind,
        kind_name=trained_words(measured) if measured else KIND_NAMES[outcome.kind],
        step_time=_step_time(full),
        interval=_interval(measured) if measured else "",
        tokens_per_s=_tokens_per_s(full, summary.num_gpus),
        extrapolated_step_time=_step_time(short),
        extrapolated_tokens_per_s=_tokens_per_s(short, summary.num_gpus),
        peak_memory=_number(measured.peak_memory_bytes, size_text) if measured else Number(),
        took=_number(trial.wall_s, time_text),
        reason=trial.reason,
        message="; ".join(doubt_words(measured)) if measured else outcome_words(outcome),
        log=study.logs.get(trial.number),
        is_best=summary.best is not None and trial.number == summary.best.number,
    )


def _step_time(measured: Measured | None) -> Number:
    return Number() if measured is None else _number(measured.step_time_s, time_text)


def _tokens_per_s(measured: Measured | None, num_gpus: int) -> Number:
    if measured is None:
        return Number()
    return _number(measured.tokens_per_s / num_gpus, "{:,.0f}".format)


def _number(value: float, words: Callable[[float], str]) -> Number:
    return Number(text=words(value), value=value)


def _interval(measured: Measured) -> str:
    low, high = (time_text(seconds) for seconds in measured.step_time_ci_s)
    return f"{low} to {high}"
