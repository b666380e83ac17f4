"""What a report takes from a study folder beside its trials: logs, launch files, the job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.best_folder import launch_environment
from reports.report_facts import root_rank
from reports.summary import Summary
from tuner.launch import DEEPSPEED_FILE, MEGATRON_FILE, PYTORCH_FILE
from tuner.plan import Backend
from tuner.study_folder import StudyFolder
from tuner.trial import Trial

CONFIGURATION_FILES = {
    Backend.PYTORCH: PYTORCH_FILE,
    Backend.DEEPSPEED: DEEPSPEED_FILE,
    Backend.MEGATRON: MEGATRON_FILE,
}
"""What a user writes for each framework; the other launch files are the same for all."""
TAIL_LINES = 40
_TAIL_CHARS = 6000
_ALL_TAILS_CHARS = 2_000_000
"""Of a report: with plotly.js (4.9 MB) and 1,000 rows it stays below 10 MB."""
_LINE_CHARS = 500
_READ_BYTES = 64 * 1024
_UNPRINTABLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
"""Colours and cursor moves, and what no page may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTail:
    """The end of the log of the rank that says most."""

    rank: int
    file: str
    """Relative to the study folder."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFiles:
    """Read once, for the reports that show it."""

    job: Mapping[str, Any]
    """``job.json``."""
    logs: Mapping[int, LogTail]
    """By trial; a trial without a log is missing."""
    configuration_lines: Mapping[Backend, int]
    """Lines, without blank ones, of the framework's own file of its best plan."""
    best_environment: Mapping[str, str]
    """Variables that the ranks of the best trial had."""

    @classmethod
    def read(cls, folder: StudyFolder, summary: Summary) -> StudyFiles:
        """Reads them.

        Raises:
            UserError: it is no study folder.
        """
        best = summary.best
        launch = None if best is None else folder.winner_launch_folder(best.number, best.run)
        share = _ALL_TAILS_CHARS // max(1, len(summary.trials))
        tails = {t.number: _log_tail(folder, t, min(_TAIL_CHARS, share)) for t in summary.trials}
        lines = {backend: _configuration_lines(folder, summary, backend) for backend in Backend}
        return cls(
            job=folder.read_json(folder.job_file),
            logs={number: tail for number, tail in tails.items() if tail is not None},
            configuration_lines={b: count for b, count in lines.items() if count is not None},
            best_environment={} if launch is None else launch_environment(folder, launch),
        )


def log_end(path: Path, max_chars: int) -> str:
    """The last lines of a log as text that can be shown; empty where there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _READ_BYTES))
            content = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    lines = _UNPRINTABLE.sub("", content).rstrip().splitlines()[-TAIL_LINES:]
    return "\n".join(line[:_LINE_CHARS] for line in lines)[-max_chars:]


def _log_tail(folder: StudyFolder, trial: Trial, max_chars: int) -> LogTail | None:
    rank = root_rank(trial.outcome)
    if rank is None:
        return None
    path = folder.trial_folder(trial.number) / f"rank-{rank}.log"
    text = log_end(path, max_chars)
    file = path.relative_to(folder.path).as_posix()
    return LogTail(rank=rank, file=file, text=text) if text else None


def _configuration_lines(folder: StudyFolder, summary: Summary, backend: Backend) -> int | None:
    best = summary.best_of(backend)
    if best is None:
        return None
    path = folder.launch_folder(best.number) / CONFIGURATION_FILES[backend]
    try:
        return sum(bool(line.strip()) for line in path.read_text(errors="replace").splitlines())
    except OSError:
        return None
