"""Supervises the ranks of one node from afar: what Ray places there. Knows nothing of Ray itself.

Nodes need not share a file system: launch files come as data, logs and reports go back as data.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runners.environment import check_own_packages, own_version
from runners.placement import PlacedGpu, visible_gpus
from runners.rank_processes import NodeRanks, free_port
from runners.supervisor import NodeEnd, Supervisor
from runners.warm_pool import WarmPool, rank_source
from tuner.launch import LaunchSpec
from tuner.launch_files import launch_folder
from tuner.outcome import Phase

_KEPT_LOG_BYTES = 2**20
"""The end of each rank's log that is sent back, lest a flooded one flood the driver too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What the driver must know of a node before ranks can start there."""

    hostname: str
    cores: int
    gpus: tuple[PlacedGpu, ...]
    """That ranks started here may use, in the order of their local ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLaunch:
    """What a node is to start."""

    attempt: str
    """Unique: tells this launch from those before it."""
    spec: LaunchSpec
    ranks: NodeRanks
    env: Mapping[str, str]
    limits_s: Mapping[Phase, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """How a trial is getting on here."""

    phase: Phase
    """Of the slowest rank."""
    is_failing: bool
    """A rank has ended badly: all other nodes may end theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResult:
    """How it ended there, and what the ranks left behind."""

    end: NodeEnd
    files: tuple[tuple[str, bytes], ...]
    """Name and content of the ranks' reports and logs."""


class NodeSupervisor:
    """Trials of one node, one after the other; while ``run`` goes on the others may be called."""

    def __init__(self, *, warm: bool) -> None:
        self._pool = WarmPool() if warm else None
        self._attempt = ""
        self._phase = Phase.START
        self._supervisor: Supervisor | None = None
        self._stopped: set[str] = set()
        self._failed: set[str] = set()
        self._lock = threading.Lock()

    def check(self, driver_version: str) -> NodeFacts:
        """Makes sure that this node runs the same paratune as the driver.

        Args:
            driver_version: of paratune where the study runs.

        Raises:
            RuntimeError: it does not, or our packages are not ours.
        """
        check_own_packages()
        if own_version() != driver_version:
            raise RuntimeError(
                f"every node must have paratune {driver_version} as the driver has, "
                f"but this one has {own_version()}; install the same version there"
            )
        return NodeFacts(
            hostname=socket.gethostname(),
            cores=len(os.sched_getaffinity(0)),
            gpus=visible_gpus(),
        )

    def port(self, address: str) -> int:
        """A port of this node that was free a moment ago."""
        return free_port(address)

    def run(self, launch: NodeLaunch) -> NodeResult:
        """Runs the ranks to their end, in a temporary folder that is gone afterwards."""
        folder = Path(tempfile.mkdtemp(prefix="paratune-trial-"))
        try:
            files = launch_folder(folder)
            files.mkdir()
            for file in launch.spec.files:
                (files / file.name).write_text(file.text)
            supervisor = Supervisor(
                folder,
                launch.ranks,
                env=launch.env,
                limits_s=launch.limits_s,
                source=rank_source(self._pool, launch.spec),
            )
            self._begin(launch.attempt, supervisor)
            end = supervisor.run(self._enter)
            return NodeResult(end=end, files=_left_behind(folder))
        finally:
            shutil.rmtree(folder)

    def state(self, attempt: str) -> NodeState:
        """Of this launch; where it has not begun yet, nothing of the one before it is told."""
        with self._lock:
            supervisor = self._supervisor_of(attempt)
            if supervisor is None:
                return NodeState(phase=Phase.START, is_failing=False)
            return NodeState(phase=self._phase, is_failing=supervisor.is_failing)

    def fail(self, attempt: str) -> None:
        """Ranks of another node have failed: ours report and are ended, begun yet or not."""
        with self._lock:
            self._failed.add(attempt)
            if (supervisor := self._supervisor_of(attempt)) is not None:
                supervisor.fail()

    def stop(self, attempt: str) -> None:
        """Ends the ranks of this launch, also where it has not begun yet; ``run`` returns soon."""
        with self._lock:
            self._stopped.add(attempt)
            if (supervisor := self._supervisor_of(attempt)) is not None:
                supervisor.stop()

    def _supervisor_of(self, attempt: str) -> Supervisor | None:
        """None where the launch has not begun: calls may overtake the one that begins it."""
        return self._supervisor if attempt == self._attempt else None

    def _begin(self, attempt: str, supervisor: Supervisor) -> None:
        with self._lock:
            self._attempt = attempt
            self._phase = Phase.START
            self._supervisor = supervisor
            if attempt in self._stopped:
                supervisor.stop()
            if attempt in self._failed:
                supervisor.fail()

    def _enter(self, phase: Phase) -> None:
        self._phase = phase


def _left_behind(folder: Path) -> tuple[tuple[str, bytes], ...]:
    reports = [(path.name, path.read_bytes()) for path in sorted(folder.glob("rank-*.json"))]
    logs = [(path.name, _end_of(path)) for path in sorted(folder.glob("rank-*.log"))]
    return (*reports, *logs)


def _end_of(log: Path) -> bytes:
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _KEPT_LOG_BYTES))
        return file.read()
