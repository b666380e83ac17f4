"""What Optuna's own tools see of a study: its finished trials, in a journal file or a database.

The study folder is the truth: what is stored is made of it, and lags behind it at the worst.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Protocol

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial

from tuner.study_folder import StudyFolder

STUDY_NAME = "paratune"
"""Of the only study of a journal file."""
_logger = logging.getLogger(__name__)


class StudyStorage(Protocol):
    """Keeps finished trials."""

    def read(self) -> list[FrozenTrial]:
        """All that are kept, in the order in which they were added."""
        ...

    def add(self, trial: FrozenTrial) -> None:
        """Keeps one more."""
        ...


class JournalFile:
    """Optuna's journal in the study folder: a line a trial."""

    def __init__(self, folder: StudyFolder) -> None:
        """Opens it, or begins one; a line that a crash has cut off is dropped.

        Raises:
            OSError: it cannot be written.
        """
        path = folder.journal_file
        _mend(path)
        try:
            self._study = _journal_study(path)
        except (ValueError, KeyError, AssertionError, TypeError) as error:
            aside = path.with_name(f"{path.name}.damaged")
            path.replace(aside)
            _logger.warning(
                "%s must be a journal as Optuna writes it, but it cannot be read (%s); it is kept "
                "as %s and made again from the trials of the study folder",
                path,
                " ".join(str(error).split())[:200] or type(error).__name__,
                aside.name,
            )
            self._study = _journal_study(path)

    def read(self) -> list[FrozenTrial]:
        """All trials that ended; earlier versions kept running ones too."""
        return [t for t in self._study.get_trials(deepcopy=False) if _is_told(t)]

    def add(self, trial: FrozenTrial) -> None:
        """Appends a line; written to the disk before this returns."""
        self._study.add_trial(trial)


def _is_told(trial: FrozenTrial) -> bool:
    return trial.state in (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)


def _journal_study(path: Path) -> optuna.Study:
    return optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(path), lock_obj=_HeldAlready(str(path)))),
        study_name=STUDY_NAME,
        load_if_exists=True,
        direction="minimize",
    )


class _HeldAlready(JournalFileSymlinkLock):
    """The study folder is locked; a lock of the journal's own would outlive a killed driver."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        return None


def _mend(path: Path) -> None:
    """Cuts off a last line that is not whole."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    last = content[content.rfind(b"\n", 0, max(0, whole - 1)) + 1 : whole]
    if last:
        try:
            json.loads(last)
        except ValueError:
            whole -= len(last)
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)


def check_storage(url: str | None) -> None:
    """Refuses a database that cannot be reached, before a study folder is made for it.

    Raises:
        UserError: the URL leads to no database that can be used.
    """
    if url is not None:
        from tuner.database_storage import check_reachable  # SQLAlchemy takes half a second

        check_reachable(url)


def opened_storage(folder: StudyFolder, url: str | None) -> StudyStorage:
    """The storage at a URL, or the journal of the study folder.

    Raises:
        UserError: the URL leads to no database that can be used.
    """
    if url is None:
        return JournalFile(folder)
    from tuner.database_storage import Database  # SQLAlchemy takes half a second

    return Database.opened(url, folder.study_name)
