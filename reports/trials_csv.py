"""The text of ``trials.csv``: one row a trial, every knob a column, base units; pure."""

from __future__ import annotations

import csv
import io

from reports.summary import Summary
from reports.wording import outcome_words
from tuner.outcome import Measured, OutOfMemory, Source
from tuner.plan import KNOB_NAMES
from tuner.trial import Trial

COLUMNS = (
    "trial",
    *KNOB_NAMES,
    "outcome",
    "step_time_s",
    "step_time_ci_low_s",
    "step_time_ci_high_s",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "extrapolated_step_time_s",
    "extrapolated_step_time_ci_low_s",
    "extrapolated_step_time_ci_high_s",
    "extrapolated_tokens_per_s",
    "extrapolated_tokens_per_s_per_gpu",
    "peak_memory_bytes",
    "nearly_out_of_memory",
    "wall_s",
    "source",
    "message",
    "reason",
)
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet would compute such a cell."""


def trials_csv(summary: Summary) -> str:
    """The table by trial number; a cell without a number is empty.

    Extrapolated numbers have columns of their own; who led by one has both. ``source`` says what
    the row rests on: measured, extrapolated or simulated; empty where it has no numbers.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for trial in summary.trials:
        writer.writerow(_row(trial, summary))
    return text.getvalue()


def _row(trial: Trial, summary: Summary) -> dict[str, object]:
    outcome = trial.outcome
    row: dict[str, object] = {
        "trial": trial.number,
        **{
            k: str(v).lower() if isinstance(v, bool) else v for k, v in trial.plan.to_dict().items()
        },
        "outcome": outcome.kind,
        "wall_s": trial.wall_s,
        "reason": _text(trial.reason),
    }
    if isinstance(outcome, OutOfMemory):
        row["source"] = str(outcome.source)
    if not isinstance(outcome, Measured):
        return row | {"message": _text(outcome_words(outcome))}
    full = summary.full_steps(trial)
    if full is not None:
        row |= _times(full, summary.num_gpus, "")
    if outcome.source is Source.EXTRAPOLATED:
        row |= _times(outcome, summary.num_gpus, "extrapolated_")
    known = full or outcome
    return row | {
        "source": str(known.source),
        "peak_memory_bytes": known.peak_memory_bytes,
        "nearly_out_of_memory": str(known.is_nearly_full).lower(),
    }


def _times(measured: Measured, num_gpus: int, prefix: str) -> dict[str, object]:
    low, high = measured.step_time_ci_s
    return {
        f"{prefix}step_time_s": measured.step_time_s,
        f"{prefix}step_time_ci_low_s": low,
        f"{prefix}step_time_ci_high_s": high,
        f"{prefix}tokens_per_s": measured.tokens_per_s,
        f"{prefix}tokens_per_s_per_gpu": measured.tokens_per_s / num_gpus,
    }


def _text(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
