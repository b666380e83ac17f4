"""Ray Jobs: starts a study on a far cluster, follows its log, and fetches its folder."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import shlex
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from ray.exceptions import AuthenticationError
from ray.job_submission import JobSubmissionClient

from runners.environment import DISTRIBUTION, own_version
from runners.ray_token import token_sentence
from tuner.errors import UserError

STUDY_KEY, NAME_KEY = "paratune_study", "paratune_name"
"""In a job's metadata: the study folder on the cluster, and what the study is called."""
_REQUEST_LIMIT_S = (5.0, 120.0)
"""To connect, and for each answer."""
_SILENCE_LIMIT_S = 60.0
"""How long a dashboard may not answer while a job is followed: it, or the network, may restart."""
_FETCH_LIMIT_S = 180.0
_LOOK_S = 0.5
_SLOW_LOOK_BYTES_PER_S = 2**20
"""A log is read as a whole each time: a long one is read less often."""
_ENTRY_MODULE = "runners.ray_job_entry"
_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


class _Client(JobSubmissionClient):  # type: ignore[misc]  # Ray is not typed
    """Ray's client waits for ever where nobody answers, and raises whatever its library does."""

    def _do_request(self, method: str, endpoint: str, **more: Any) -> Any:
        try:
            return super()._do_request(method, endpoint, timeout=_REQUEST_LIMIT_S, **more)
        except OSError as error:  # all errors of a connection
            raise RuntimeError(f"{self._address} does not answer: {_reason(error)}") from error

    def ray_version(self) -> str:
        return str(self._do_request("GET", "/api/version").json()["ray_version"])


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """Where a submitted job is."""

    job: str
    status: str
    exit_code: int | None
    """Of the command; None while it runs, and where it was not started or was stopped."""
    message: str
    metadata: Mapping[str, str]

    @property
    def ended(self) -> bool:
        """Whether it runs no more."""
        return self.status in _ENDED


class RayJobs:
    """The job server of one cluster."""

    entry_file = Path(__file__).with_name("ray_job_entry.py")
    """The program that a package must hold at its top."""

    def __init__(self, address: str) -> None:
        """Asks the dashboard whether it is one, and of a Ray that paratune runs on.

        Raises:
            UserError: it is not, or does not answer, or wants a token.
        """
        _check_address(address)
        self.address = address.rstrip("/")
        self._client, version = _connected(self.address)
        supported = _supported_ray()
        if not supported.contains(version, prereleases=True):
            raise UserError(
                f"the cluster at {self.address} must run Ray {supported} for paratune "
                f"{own_version()}, but it runs {version}; start it with another Ray"
            )

    def submit(self, name: str, study: str, tune: Sequence[str], package: Path) -> str:
        """Starts a study on the cluster's head; the id of its job.

        Args:
            name: of the study.
            study: its folder on the head; the home folder may be written as ``~``.
            tune: arguments of ``paratune tune``, beside its study and Ray.
            package: a zip that becomes the current folder; it holds ``entry_file``.
        """
        entry = ["python", self.entry_file.name, "--study", study, "--paratune", own_version()]
        columns = str(os.get_terminal_size().columns) if os.isatty(2) else "80"
        command = [*entry, "--columns", columns, "--", *tune]
        return self._submit(
            f"paratune-{_word(name)}-{uuid.uuid4().hex[:8]}",
            command,
            {STUDY_KEY: study, NAME_KEY: name},
            {"working_dir": str(package)},
        )

    def running(self, study: str) -> str | None:
        """The job that is busy with this study folder of the cluster."""
        for details in self._client.list_jobs():
            kept = details.metadata or {}
            if kept.get(STUDY_KEY) == study and str(details.status.value) not in _ENDED:
                return str(details.submission_id)
        return None

    def state(self, job: str) -> JobState:
        """Where a job is.

        Raises:
            UserError: the cluster has no such job.
        """
        try:
            details = self._client.get_job_info(job)
        except RuntimeError as error:
            if not _is_not_found(error):
                raise RuntimeError(_one_line(error)) from error
            raise UserError(
                f"the cluster at {self.address} must have the job, got {job}; {self._known_jobs()}"
            ) from error
        return JobState(
            job=job,
            status=str(details.status.value),
            exit_code=details.driver_exit_code,
            message=details.message or "",
            metadata=details.metadata or {},
        )

    def _known_jobs(self) -> str:
        found = [
            d.submission_id for d in self._client.list_jobs() if NAME_KEY in (d.metadata or {})
        ]
        return f"it has {', '.join(sorted(found))}" if found else "it has none of paratune's"

    def submitted(self, job: str) -> tuple[str, str]:
        """Name and folder on the cluster of the study that a job runs.

        Raises:
            UserError: there is no such job, or it is none of paratune's.
        """
        kept = self.state(job).metadata
        if STUDY_KEY not in kept or NAME_KEY not in kept:
            raise UserError(
                f"the job must be one that paratune submitted, got {job}; {self._known_jobs()}"
            )
        return kept[NAME_KEY], kept[STUDY_KEY]

    def follow(self, job: str, say: Callable[[str], None]) -> JobState:
        """Passes on the lines of the log, from its beginning, until the job has ended.

        Raises:
            RuntimeError: the dashboard has not answered for long; the job goes on.
        """
        num_said = 0
        heard = time.monotonic()
        while True:
            length = 0
            try:
                state = self.state(job)
                text = self._client.get_job_logs(job)
            except (OSError, RuntimeError, UserError) as error:
                if time.monotonic() - heard > _SILENCE_LIMIT_S:
                    raise RuntimeError(
                        f"{self.address} has not answered for {_SILENCE_LIMIT_S:.0f} s: "
                        f"{_reason(error)}"
                    ) from error
            else:
                heard, length = time.monotonic(), len(text)
                whole = length if state.ended else text.rfind("\n") + 1
                for line in text[num_said:whole].splitlines():
                    say(line)
                num_said = max(num_said, whole)
                if state.ended:
                    return state
            time.sleep(max(_LOOK_S, length / _SLOW_LOOK_BYTES_PER_S))

    def study_archive(self, study: str) -> str:
        """The log of a small job that sends a study folder: ``runners.ray_job_entry`` wrote it.

        Raises:
            RuntimeError: the job does not end.
        """
        command = ["python", "-m", _ENTRY_MODULE, "--study", study]
        job = self._submit(f"paratune-fetch-{uuid.uuid4().hex[:8]}", command, {}, {})
        deadline = time.monotonic() + _FETCH_LIMIT_S
        while not self.state(job).ended:
            if time.monotonic() > deadline:
                self._client.stop_job(job)
                raise RuntimeError(f"the job that sends it took more than {_FETCH_LIMIT_S:.0f} s")
            time.sleep(_LOOK_S)
        text = str(self._client.get_job_logs(job))
        with suppress(RuntimeError):  # what it sent is here
            self._client.delete_job(job)
        return text

    def _submit(
        self,
        job: str,
        command: Sequence[str],
        metadata: Mapping[str, str],
        runtime_env: Mapping[str, Any],
    ) -> str:
        try:
            self._client.submit_job(
                entrypoint=shlex.join(command),
                submission_id=job,
                metadata=dict(metadata),
                runtime_env=dict(runtime_env),
            )
        except (RuntimeError, ValueError) as error:
            raise RuntimeError(f"the cluster does not take the job: {_one_line(error)}") from error
        return job


def _check_address(address: str) -> None:
    try:
        parts = urlsplit(address)
        _ = parts.port  # found wrong only here
    except ValueError as error:
        raise UserError(
            "--address must be http://HOST:PORT of a Ray dashboard, but what was given is no URL"
        ) from error
    if parts.password is not None:
        raise UserError("--address must not hold a password; see docs/ray.md for Ray's token")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        near = f"; try http://{address}" if "://" not in address else ""
        raise UserError(
            f"--address must be http://HOST:PORT of a Ray dashboard, got {address}{near}"
        )


def _connected(address: str) -> tuple[_Client, str]:
    """A client, and the version of Ray that answers it."""
    for name in ("dashboard_sdk", "job.sdk"):
        logging.getLogger(f"ray.dashboard.modules.{name}").setLevel(logging.ERROR)
    try:
        with _no_address_of_the_environment():
            client = _Client(address)
        return client, client.ray_version()
    except AuthenticationError as error:
        found = "invalid" in str(error)  # of a token that was sent; else Ray found none
        sentence = token_sentence(f"the cluster at {address}", found=found)
        raise UserError(sentence) from error
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise UserError(
            f"--address must be http://HOST:PORT of a Ray dashboard (port 8265 unless chosen), got "
            f"{address}: {_reason(error)}; `ray start --head` prints it"
        ) from error


@contextmanager
def _no_address_of_the_environment() -> Iterator[None]:
    """Ray lets these win over the address that it is given."""
    names = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


def _supported_ray() -> SpecifierSet:
    """As this distribution declares it."""
    declared = map(Requirement, importlib.metadata.requires(DISTRIBUTION) or [])
    return next(one.specifier for one in declared if one.name == "ray")


def _reason(error: BaseException) -> str:
    """In a few words: of a refused connection the innermost error says most."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"it answers {response.status_code} {response.reason}"
    if isinstance(error, (ValueError, KeyError)) or _is_not_found(error):
        return "what answers there is no Ray dashboard"
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return getattr(error, "strerror", None) or _one_line(error)


def _is_not_found(error: BaseException) -> bool:
    """By Ray's words: an address may hold that number too."""
    return any(words in str(error) for words in ("status code 404", "returned 404"))


def _word(name: str) -> str:
    """What a job's id may hold of a name."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in name)[:40]


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:400] or type(error).__name__
