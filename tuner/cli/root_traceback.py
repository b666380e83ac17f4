"""What the rank that failed first said at its end: shown while a study runs, kept in full."""

from __future__ import annotations

import json
from typing import Any

from reports.report_facts import root_rank
from reports.study_files import log_end
from tuner.outcome import Failed
from tuner.study_folder import StudyFolder
from tuner.trial import Trial

_LINES = 12
_MAX_CHARS = 4000


def root_traceback(folder: StudyFolder, trial: Trial) -> tuple[str, ...]:
    """The end of its traceback, or of its log, and where all of it is; nothing unless it failed.

    Out of memory is an answer, not a failure: the line of the trial says all.
    """
    rank = root_rank(trial.outcome)
    if rank is None or not isinstance(trial.outcome, Failed):
        return ()
    trial_folder = folder.trial_folder(trial.number)
    log = trial_folder / f"rank-{rank}.log"
    text = _reported(folder, trial.number, rank) or log_end(log, _MAX_CHARS)
    if not text.strip():
        return (trial.outcome.message,)
    return (*text.rstrip().splitlines()[-_LINES:], f"all of it: {log}")


def _reported(folder: StudyFolder, number: int, rank: int) -> str:
    """The traceback in the rank's own report; nothing where it wrote none."""
    path = folder.trial_folder(number) / f"rank-{rank}.json"
    try:
        report: dict[str, Any] = json.loads(path.read_text())
        return str(report["error"]["traceback"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
