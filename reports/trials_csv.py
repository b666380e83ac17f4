"""The text of ``trials.csv``: one row a trial, every knob a column, base units; pure."""

from __future__ import annotations

import csv
import io

from reports.summary import Summary
from reports.wording import outcome_words
from tuner.outcome import Measured, OutOfMemory
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
    "peak_memory_bytes",
    "wall_s",
    "source",
    "message",
    "reason",
)
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet would compute such a cell."""


def trials_csv(summary: Summary) -> str:
    """The table by trial number; a cell without a number is empty.

    ``source`` is that of the row's numbers, measured or simulated; empty where it has none.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for trial in summary.trials:
        writer.writerow(_row(trial, summary.num_gpus))
    return text.getvalue()


def _row(trial: Trial, num_gpus: int) -> dict[str, object]:
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
    if isinstance(outcome, Measured | OutOfMemory):
        row["source"] = str(outcome.source)
    if not isinstance(outcome, Measured):
        return row | {"message": _text(outcome_words(outcome))}
    low, high = outcome.step_time_ci_s
    return row | {
        "step_time_s": outcome.step_time_s,
        "step_time_ci_low_s": low,
        "step_time_ci_high_s": high,
        "tokens_per_s": outcome.tokens_per_s,
        "tokens_per_s_per_gpu": outcome.tokens_per_s / num_gpus,
        "peak_memory_bytes": outcome.peak_memory_bytes,
    }


def _text(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
