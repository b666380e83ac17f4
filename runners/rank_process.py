"""One rank as its supervisor sees it, however it was started, and the plain way to start one."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tuner.launch import BENCH_MODULE
from tuner.launch_files import launch_folder


class RankProcess(Protocol):
    """A started rank, leader of a session of its own."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    def fileno(self) -> int:
        """Readable once the rank has ended."""
        ...

    def wait(self, limit_s: float) -> int:
        """The exit code, negative for a signal; frees the handle.

        Raises:
            TimeoutError: it has not ended within the limit.
            StarterLostError: it has ended, and nobody can tell how.
        """
        ...


class StarterLostError(Exception):
    """What ranks are forked from is gone, and its ranks with it: no fault of theirs."""


RankStarter = Callable[[Mapping[str, str], Path], RankProcess]
"""Starts a rank, told what only it is told in its environment, and the file for its output."""


class RankSource(Protocol):
    """A way to start the ranks of a trial."""

    def ready(
        self,
        trial_folder: Path,
        env: Mapping[str, str],
        limit_s: float,
        stopped: Callable[[], bool],
    ) -> RankStarter:
        """Prepares what the ranks of this trial have in common.

        Args:
            trial_folder: with the launch files.
            env: what all its ranks are told, on top of this process's own environment.
            limit_s: the longest that preparing may take.
            stopped: whether nobody waits any more.
        """
        ...


UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
"""The last words of a rank that is killed are in its log."""


def bench_arguments(trial_folder: Path) -> tuple[str, ...]:
    """What the bench program is told: the trial's launch files, and where to write."""
    return ("--launch", str(launch_folder(trial_folder)), "--results", str(trial_folder))


def bench_command(trial_folder: Path) -> tuple[str, ...]:
    """What a rank runs."""
    return (sys.executable, "-m", BENCH_MODULE, *bench_arguments(trial_folder))


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdRanks:
    """Every rank starts Python and imports its framework anew."""

    command: tuple[str, ...] | None = None
    """The bench program unless given."""

    def ready(
        self,
        trial_folder: Path,
        env: Mapping[str, str],
        limit_s: float,
        stopped: Callable[[], bool],
    ) -> RankStarter:
        """Nothing is prepared."""
        command = self.command or bench_command(trial_folder)
        common = {**os.environ, **UNBUFFERED, **env}
        return lambda own, log: ColdRank(command, {**common, **own}, log)


class ColdRank:
    """A child of this process."""

    def __init__(self, command: tuple[str, ...], env: Mapping[str, str], log: Path) -> None:
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )
        self._pidfd = os.pidfd_open(self._process.pid)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def fileno(self) -> int:
        """Readable once the rank has ended."""
        return self._pidfd

    def wait(self, limit_s: float) -> int:
        """The exit code."""
        await_death(self._pidfd, limit_s)
        os.close(self._pidfd)
        return self._process.wait()


def await_death(pidfd: int, limit_s: float) -> None:
    """Returns once the process has ended.

    Raises:
        TimeoutError: it has not within the limit.
    """
    poller = select.poll()  # select() itself takes no descriptor above 1023
    poller.register(pidfd, select.POLLIN)
    if not poller.poll(limit_s * 1000):
        raise TimeoutError
