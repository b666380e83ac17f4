"""The study folder: the one place that joins its paths, writes its files and reads them back."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from tuner.errors import UserError
from tuner.finals import Finals
from tuner.kept_files import first_line, read_kept, write_atomically
from tuner.launch import TRAINING_FILE, Settings, SettingValue
from tuner.launch_files import launch_folder
from tuner.second_pass import SecondPass
from tuner.study_documents import check_document
from tuner.trial import Trial
from tuner.user_files import too_deep
from tuner.verification import Verification

_TRIAL = TypeAdapter(Trial)
_FINALS = TypeAdapter(Finals)
_SECOND_PASS = TypeAdapter(SecondPass)
_VERIFICATION = TypeAdapter(Verification)
FORMAT = 1
"""Raised when a folder of an older paratune can no longer be gone on with."""
_UNWRITABLE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    *(errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO),
)


class StudyFolder:
    """Where a study is kept: everything that is reported is a function of this folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _inside(self, *parts: str) -> Path:
        """A path of this folder, which a link in it must not lead out of.

        Raises:
            UserError: one does: somebody else's file would be read, or written over.
        """
        path = self.path.joinpath(*parts)
        if not path.resolve().is_relative_to(self.path.resolve()):
            raise UserError(
                f"{path} must lie in the study folder, but links to {path.resolve()}; remove the "
                "link, or give another folder with --study"
            )
        return path

    @property
    def study_file(self) -> Path:
        """Which format this folder has, and its name in storages, JSON."""
        return self._inside("study.json")

    @property
    def study_name(self) -> str:
        """What the study is called where several share a storage: unlike any other folder's."""
        return str(self.read_json(self.study_file)["name"])

    @property
    def job_file(self) -> Path:
        """The job as resolved, JSON."""
        return self._inside("job.json")

    @property
    def environment_file(self) -> Path:
        """Versions and devices, JSON."""
        return self._inside("environment.json")

    @property
    def journal_file(self) -> Path:
        """Optuna's journal."""
        return self._inside("journal.log")

    @property
    def waterfall_file(self) -> Path:
        """What each rule removed, JSON."""
        return self._inside("waterfall.json")

    @property
    def baseline_file(self) -> Path:
        """What leads from the user's own plan to the best, by prediction, JSON."""
        return self._inside("baseline.json")

    @property
    def report_file(self) -> Path:
        """The report for people."""
        return self._inside("report.md")

    @property
    def html_report_file(self) -> Path:
        """The report with charts, one file that opens offline."""
        return self._inside("report.html")

    @property
    def trials_file(self) -> Path:
        """All trials as a table for other programs, CSV."""
        return self._inside("trials.csv")

    @property
    def comparison_files(self) -> tuple[Path, Path]:
        """The comparison with another study, as Markdown and as a page."""
        return self._inside("comparison.md"), self._inside("comparison.html")

    @property
    def soak_file(self) -> Path:
        """What came of the last soak, JSON."""
        return self._inside("soak.json")

    @property
    def soak_folder(self) -> Path:
        """The run of the last soak, laid out as a trial's folder."""
        return self._inside("soak")

    @property
    def finals_file(self) -> Path:
        """The second measurement of the best plans, JSON; missing where there was none."""
        return self._inside("finals.json")

    @property
    def verification_file(self) -> Path:
        """The verdict on the winner, JSON; missing where it was not verified."""
        return self._inside("verification.json")

    @property
    def verification_folder(self) -> Path:
        """The runs that the verdict rests on."""
        return self._inside("verification")

    @property
    def best_folder(self) -> Path:
        """The launch files of the fastest plan, with a README."""
        return self._inside("best")

    def trial_folder(self, number: int) -> Path:
        """One trial: ``launch/``, ``rank-N.json``, ``rank-N.log``, ``trial.json``."""
        return self._inside("trials", f"{number:04d}")

    @property
    def second_pass_file(self) -> Path:
        """Framework settings tried on the winner, JSON; missing where none were."""
        return self._inside("second_pass.json")

    def second_pass_folder(self, run: int) -> Path:
        """One run of the second pass, laid out as a trial's folder."""
        return self._inside("second_pass", f"{run:04d}")

    def final_folder(self, number: int, round_number: int) -> Path:
        """A trial's plan run again in a round of the finals."""
        return self._inside("finals", f"{number:04d}-{round_number}")

    def launch_folder(self, number: int) -> Path:
        """The launch files that the trial ran with."""
        return launch_folder(self.trial_folder(number))

    def winner_launch_folder(self, number: int, run: int | None) -> Path:
        """The launch files of a trial, or of the second pass's run that went on from it.

        Where the trial's plan ran once more in the finals, those of there: with full steps.
        """
        if run is not None:
            return launch_folder(self.second_pass_folder(run))
        again = launch_folder(self.final_folder(number, 0))
        return again if again.is_dir() else self.launch_folder(number)

    def asked_settings(self, launch: Path) -> Settings:
        """The framework settings that a launch asked for; none in that of an older paratune.

        Raises:
            UserError: its files are missing.
        """
        asked: dict[str, SettingValue] = self.read_json(launch / TRAINING_FILE).get("settings", {})
        return tuple(asked.items())

    def create(self) -> None:
        """Makes the folder where it is missing.

        Raises:
            UserError: the path is a file, cannot be written, or is of another format.
        """
        try:
            (self.path / "trials").mkdir(parents=True, exist_ok=True)
            if not self.study_file.exists():
                self.write_json(
                    self.study_file, {"format": FORMAT, "name": _new_name(self.path.resolve().name)}
                )
            with (self.path / "lock").open("a"):
                pass
        except OSError as error:
            raise UserError(
                f"the study folder {self.path} must be a folder that can be written: {error}; "
                "give another one with --study"
            ) from error
        self.check_format()

    def check_format(self) -> None:
        """Makes sure that this version can read the folder; one without a mark is of this format.

        Raises:
            UserError: it cannot.
        """
        if not self.study_file.exists():
            return
        found = self.read_json(self.study_file).get("format")
        if found != FORMAT:
            raise UserError(
                f"the study folder {self.path} must be of format {FORMAT}, which this paratune "
                f"writes, got {found}; go on with the version that wrote it, or give another "
                "folder with --study"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the folder for one driver; the lock goes with the process.

        Raises:
            UserError: another driver holds it.
        """
        with (self.path / "lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                lock.seek(0)
                raise UserError(
                    f"the study folder {self.path} must have one driver, but process "
                    f"{lock.read().strip() or 'unknown'} is using it; wait for it, or give "
                    "another folder with --study"
                ) from error
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield

    def append(self, trial: Trial) -> None:
        """Keeps a trial; done before the next one starts."""
        write_atomically(
            self.trial_folder(trial.number) / "trial.json", _TRIAL.dump_json(trial, indent=2)
        )

    def trials(self) -> tuple[Trial, ...]:
        """All trials that ended, by number.

        Raises:
            UserError: a trial's file cannot be read.
        """
        self.check_format()
        found = []
        for path in self.path.glob("trials/*/trial.json"):
            try:
                found.append(_trial_of(path))
            except (ValueError, OSError) as error:
                raise UserError(
                    f"{path} must be a trial as paratune writes it, but it cannot be read "
                    f"({first_line(error)}); move that trial's folder away to go on without it"
                ) from error
        return tuple(sorted(found, key=lambda trial: trial.number))

    def keep_finals(self, finals: Finals) -> None:
        """Keeps the finals as far as they have come."""
        write_atomically(self.finals_file, _FINALS.dump_json(finals, indent=2))

    def finals(self) -> Finals | None:
        """The finals; None where there were none.

        Raises:
            UserError: their file cannot be read.
        """
        return read_kept(self.finals_file, _FINALS, "finals as paratune writes them")

    def keep_second_pass(self, found: SecondPass) -> None:
        """Keeps the second pass as far as it has come."""
        write_atomically(self.second_pass_file, _SECOND_PASS.dump_json(found, indent=2))

    def second_pass(self) -> SecondPass | None:
        """The second pass; None where there was none.

        Raises:
            UserError: its file cannot be read.
        """
        return read_kept(self.second_pass_file, _SECOND_PASS, "a second pass as paratune writes it")

    def keep_verification(self, found: Verification) -> None:
        """Keeps the verdict on the winner."""
        write_atomically(self.verification_file, _VERIFICATION.dump_json(found, indent=2))

    def verification(self) -> Verification | None:
        """The verdict on the winner; None where there is none.

        Raises:
            UserError: its file cannot be read.
        """
        return read_kept(
            self.verification_file,
            _VERIFICATION,
            "a verdict as paratune writes it",
            way_out="make it again with paratune verify",
        )

    def write_json(self, path: Path, value: Mapping[str, Any]) -> None:
        """Writes a JSON file of this folder at once."""
        write_atomically(path, json.dumps(value, indent=2).encode())

    def read_json(self, path: Path) -> dict[str, Any]:
        """Reads a JSON file of this folder.

        Raises:
            UserError: it is missing or is not JSON.
        """
        try:
            value = json.loads(path.read_text())
            check_document(path.name, value)
        except (FileNotFoundError, NotADirectoryError) as error:
            if self.path.exists() and not self.path.is_dir():
                raise UserError(
                    f"{self.path} must be a study folder, but it is a file; give the folder that "
                    "paratune tune named at its end (studies/NAME-OF-THE-JOB)"
                ) from error
            raise UserError(
                f"{self.path} must be a study folder, but it has no {path.relative_to(self.path)}; "
                "give the folder that paratune tune named at its end (studies/NAME-OF-THE-JOB)"
            ) from error
        except RecursionError:
            raise too_deep(path) from None
        except (OSError, ValueError) as error:
            raise UserError(
                f"{path} must be JSON as paratune writes it, but it cannot be read "
                f"({first_line(error)}); is {self.path} a study folder?"
            ) from error
        if not isinstance(value, dict):
            raise UserError(f"{path} must hold a JSON object, got {type(value).__name__}")
        return value


@contextmanager
def said_where_unwritable(folder: StudyFolder) -> Iterator[None]:
    """Within, a disk that is full or read-only ends the study with a sentence.

    Raises:
        RuntimeError: in place of the OSError.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        kept = sum(1 for _ in folder.path.glob("trials/*/trial.json"))
        raise RuntimeError(
            f"the study folder {folder.path} must have room and be writable, but writing to it "
            f"failed ({error.strerror}: {error.filename or 'its journal'}); the {kept} trials that "
            "ended are kept: make room, and the same command goes on"
        ) from error


def _trial_of(path: Path) -> Trial:
    trial = _TRIAL.validate_json(path.read_bytes())
    if path.parent.name != f"{trial.number:04d}":
        raise ValueError(f"it is of trial {trial.number}")
    return trial


def _new_name(folder_name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", folder_name)[:60]
    return f"{plain}-{secrets.token_hex(4)}"
