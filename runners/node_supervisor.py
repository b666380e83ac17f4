"""Supervises the ranks of one node from afar: what Ray places there. Knows nothing of Ray itself.

Nodes need not share a file system: launch files come as data, logs and reports go back as data.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runners.environment import check_own_packages, own_version
from runners.rank_processes import NodeRanks, free_port
from runners.supervisor import NodeEnd, Supervisor
from tuner.launch import LaunchFile
from tuner.outcome import Phase
from tuner.study_folder import launch_folder

_KEPT_LOG_BYTES = 2**20
"""The end of each rank's log that is sent back, lest a flooded one flood the driver too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What the driver must know of a node before its ranks can start."""

    cores: int
    port: int
    """Was free on this node a moment ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLaunch:
    """What a node is to start."""

    files: tuple[LaunchFile, ...]
    ranks: NodeRanks
    env: Mapping[str, str]
    limits_s: Mapping[Phase, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResult:
    """How it ended there, and what the ranks left behind."""

    end: NodeEnd
    files: tuple[tuple[str, bytes], ...]
    """Name and content of the ranks' reports and logs."""


class NodeSupervisor:
    """One trial on one node. ``phase`` and ``stop`` may be called while ``run`` goes on."""

    def __init__(self) -> None:
        self._phase = Phase.START
        self._folder: Path | None = None
        self._supervisor: Supervisor | None = None

    def check(self, driver_version: str, address: str) -> NodeFacts:
        """Makes sure that this node runs the same paratune as the driver.

        Args:
            driver_version: of paratune where the study runs.
            address: of this node, where the other ranks will meet.

        Raises:
            RuntimeError: it does not, or our packages are not ours.
        """
        check_own_packages()
        if own_version() != driver_version:
            raise RuntimeError(
                f"every node must have paratune {driver_version} as the driver has, "
                f"but this one has {own_version()}; install the same version there"
            )
        return NodeFacts(cores=len(os.sched_getaffinity(0)), port=free_port(address))

    def prepare(self, launch: NodeLaunch) -> None:
        """Writes the launch files into a temporary folder of this node; starts nothing."""
        self._folder = Path(tempfile.mkdtemp(prefix="paratune-trial-"))
        files = launch_folder(self._folder)
        files.mkdir()
        for file in launch.files:
            (files / file.name).write_text(file.text)
        self._supervisor = Supervisor(
            self._folder, launch.ranks, env=launch.env, limits_s=launch.limits_s
        )

    def run(self) -> NodeResult:
        """Runs the ranks to their end; the temporary folder is gone afterwards."""
        assert self._supervisor is not None, "prepare comes first"
        assert self._folder is not None, "prepare comes first"
        try:
            end = self._supervisor.run(self._enter)
            return NodeResult(end=end, files=_left_behind(self._folder))
        finally:
            shutil.rmtree(self._folder)

    def phase(self) -> Phase:
        """Where the slowest rank of this node is."""
        return self._phase

    def stop(self) -> None:
        """Ends the ranks; ``run`` returns soon."""
        if self._supervisor is not None:
            self._supervisor.stop()

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
