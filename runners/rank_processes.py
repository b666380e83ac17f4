"""The rank processes of one node: started in sessions of their own, and all gone afterwards."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from runners.bench.process import SUPERVISOR_VARIABLE
from runners.bench.warm_process import TOKEN_VARIABLE
from runners.diagnosis import RankEnd
from runners.rank_process import RankProcess, RankStarter, StarterLostError

_LOG_TAIL_BYTES = 4000
_KILL_LIMIT_S = 30.0
"""A killed process is gone at once, unless a driver holds it: then the machine is broken."""
_BRIEF_STOP_S = 0.1
"""A rank that is stopped for less, by a tool that looks at it, goes on as if nothing had been."""


def rank_log(trial_folder: Path, rank: int) -> Path:
    """Where a rank's output goes."""
    return trial_folder / f"rank-{rank}.log"


def free_port(address: str) -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRanks:
    """The ranks of one node, and where they meet the others."""

    node: int = 0
    ranks_per_node: int
    num_ranks: int
    master_address: str
    master_port: int

    def environment(self, local_rank: int) -> dict[str, str]:
        """What torchrun would set, and the supervisor's own id."""
        rank = self.node * self.ranks_per_node + local_rank
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(self.num_ranks),
            "LOCAL_WORLD_SIZE": str(self.ranks_per_node),
            "MASTER_ADDR": self.master_address,
            "MASTER_PORT": str(self.master_port),
            SUPERVISOR_VARIABLE: str(os.getpid()),
        }


@dataclass(slots=True)
class RankProcesses:
    """Started ranks of a node, a context manager: leaving it ends them, whatever happened."""

    folder: Path
    node_ranks: NodeRanks
    start: RankStarter
    starter_lost: bool = False
    """What the ranks were forked from is gone: their ends say nothing of the plan."""
    _processes: dict[int, RankProcess] = field(default_factory=dict)
    _ends: dict[int, int] = field(default_factory=dict)
    _ended_at: dict[int, float] = field(default_factory=dict)
    _stopped_since: dict[int, float] = field(default_factory=dict)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _token: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __enter__(self) -> RankProcesses:
        try:
            for local_rank in range(self.node_ranks.ranks_per_node):
                self._start(local_rank)
        except StarterLostError:
            self.starter_lost = True
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _start(self, local_rank: int) -> None:
        own = self.node_ranks.environment(local_rank)
        rank = int(own["RANK"])
        process = self.start(own | {TOKEN_VARIABLE: self._token}, rank_log(self.folder, rank))
        self._processes[rank] = process
        self._selector.register(process.fileno(), selectors.EVENT_READ, rank)

    def wait(self, seconds: float) -> dict[int, int]:
        """Exit codes of the ranks that have ended, after an end or this time at most."""
        for key, _ in self._selector.select(seconds):
            rank = int(key.data)
            self._selector.unregister(key.fd)
            self._ended_at[rank] = time.time()
            self._ends[rank] = self._exit_code(rank, 0)
        self._look_for_stopped()
        return dict(self._ends)

    def _exit_code(self, rank: int, limit_s: float) -> int:
        try:
            return self._processes[rank].wait(limit_s)
        except StarterLostError:
            self.starter_lost = True
            return -signal.SIGKILL

    def _look_for_stopped(self) -> None:
        for rank, process in self._processes.items():
            if rank in self._ends or not _is_stopped(process.pid):
                self._stopped_since.pop(rank, None)
            else:
                self._stopped_since.setdefault(rank, time.time())

    def _stopped_at(self, rank: int) -> float | None:
        since = self._stopped_since.get(rank)
        return since if since is not None and time.time() - since > _BRIEF_STOP_S else None

    @property
    def all_ended(self) -> bool:
        """Whether no rank is running."""
        return len(self._ends) == len(self._processes)

    def ends(self) -> tuple[RankEnd, ...]:
        """What every rank has left behind so far, by rank."""
        return tuple(
            RankEnd(
                rank=rank,
                report=self._report(rank),
                exit_code=self._ends.get(rank),
                log_tail=self._log_tail(rank),
                ended_at=self._ended_at.get(rank),
                stopped_at=self._stopped_at(rank),
            )
            for rank in sorted(self._processes)
        )

    def _report(self, rank: int) -> Mapping[str, Any] | None:
        """The rank's own report; one left by an earlier attempt under this number is not its."""
        path = self.folder / f"rank-{rank}.json"
        if not path.exists():
            return None
        report: dict[str, Any] = json.loads(path.read_text())
        return report if report.get("pid") == self._processes[rank].pid else None

    def _log_tail(self, rank: int) -> str:
        with rank_log(self.folder, rank).open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - _LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")

    def end(self) -> None:
        """Kills what is left of every rank, children that have moved away included.

        Raises:
            RuntimeError: a process does not die.
        """
        running = {rank: p for rank, p in self._processes.items() if rank not in self._ends}
        for process in running.values():
            _kill_group(process.pid)
        for rank, process in running.items():
            try:
                self._exit_code(rank, _KILL_LIMIT_S)
            except TimeoutError as error:
                raise _immortal(f"rank {rank} (pid {process.pid})") from error
        while strays := _processes_with(self._token):
            for stray in strays:
                with suppress(psutil.NoSuchProcess):
                    stray.kill()
            _, alive = psutil.wait_procs(strays, timeout=_KILL_LIMIT_S)
            if alive:
                raise _immortal(f"a process that a rank started (pid {alive[0].pid})")
        self._selector.close()


def _is_stopped(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:  # gone meanwhile
        return False


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _processes_with(token: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(TOKEN_VARIABLE) == token:
                found.append(process)
        except psutil.Error:  # another user's, or gone meanwhile
            continue
    return found


def _immortal(who: str) -> RuntimeError:
    return RuntimeError(
        f"{who} was killed but is still there after {_KILL_LIMIT_S:.0f} s: a driver holds it; "
        "the node needs attention (dmesg, nvidia-smi) before it can go on"
    )
