"""Warm processes of one node: imports done, no device open; ranks are forked from them.

One a framework and environment, for whatever number of ranks: what it holds, its ranks share.
"""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runners.bench.process import SUPERVISOR_VARIABLE
from runners.bench.warm_process import NO_TOKEN, NUMBER, TOKEN_VARIABLE
from runners.rank_process import (
    UNBUFFERED,
    ColdRanks,
    RankSource,
    RankStarter,
    StarterLostError,
    await_death,
    bench_arguments,
)
from tuner.launch import LaunchSpec
from tuner.plan import Backend

_LOG = logging.getLogger(__name__)
WARM_MODULE = "runners.bench.warm_process"
MOST_PROCESSES = 4
"""Each holds the imports of a framework, up to 1 GiB; the one that has waited longest goes."""
IDLE_LIMIT_S = 900.0
"""One that no trial has wanted for so long is let go at the next trial."""
_MOST_LOSSES = 1
"""A second time is no accident: little memory, say, in which a large process cannot be forked."""
_LOOK_S = 0.2
_ANSWER_LIMIT_S = 30.0
"""For a fork, and for the exit code of a rank that has ended: both take milliseconds."""
_ANSWER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class _Imports:
    """What a warm process has in memory, and what its imports may have read."""

    backend: Backend | None
    """None: only what all backends need."""
    env: frozenset[tuple[str, str]]


class WarmPool:
    """The warm processes of this node; trials may use it from several threads."""

    def __init__(self, *, most: int = MOST_PROCESSES) -> None:
        """Starts nothing: a process is warmed by the first trial that wants it.

        Warming ahead would take time from the cores while another trial is being measured. All
        of them have the environment that this process has now.
        """
        self._environment = dict(os.environ)
        self._most = most
        self._processes: dict[_Imports, WarmProcess] = {}
        self._unusable: set[_Imports] = set()
        self._lost: Counter[_Imports] = Counter()
        self._lock = threading.Lock()
        # The kernel ends a process with the thread that started it: that of a trial ends earlier.
        self._starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="paratune-warm")

    def process(
        self,
        backend: Backend,
        env: Mapping[str, str],
        limit_s: float,
        stopped: Callable[[], bool],
    ) -> WarmProcess | None:
        """One that has imported the framework, or else torch alone; None where neither can be."""
        whole = frozenset({**self._environment, **env}.items())
        with self._lock:
            self._let_go_of_the_idle()
            for imported in (backend, None):
                imports = _Imports(imported, whole)
                process = self._usable(imports, limit_s, stopped)
                if process is not None or stopped():
                    return process
        return None

    def close(self) -> None:
        """Ends all of them, and the ranks that are left; may be called twice."""
        with self._lock:
            for process in self._processes.values():
                process.end()
            self._processes.clear()
        self._starter.shutdown()

    def _usable(
        self, imports: _Imports, limit_s: float, stopped: Callable[[], bool]
    ) -> WarmProcess | None:
        found = self._processes.pop(imports, None)
        if found is not None and found.is_alive():
            self._processes[imports] = found  # the last in order is the last that was wanted
            return found
        if found is not None:
            self._lost[imports] += 1
        if self._lost[imports] > _MOST_LOSSES:
            self._refuse(imports, f"it was killed {self._lost[imports]} times")
        if imports in self._unusable:
            return None
        self._make_room()
        process = self._starter.submit(WarmProcess, imports.backend, dict(imports.env)).result()
        try:
            reason = process.await_imports(limit_s, stopped)
        except BaseException:
            process.end()
            raise
        if reason is None:
            self._processes[imports] = process
            return process
        process.end()
        if not stopped():
            self._refuse(imports, reason)
        return None

    def _refuse(self, imports: _Imports, reason: str) -> None:
        if imports not in self._unusable:
            what = imports.backend or "torch"
            _LOG.warning("no rank is forked from a process that has imported %s: %s", what, reason)
            self._unusable.add(imports)

    def _make_room(self) -> None:
        while len(self._processes) >= self._most:
            idle = [imports for imports, process in self._processes.items() if process.is_idle]
            if not idle:
                return
            self._processes.pop(idle[0]).end()

    def _let_go_of_the_idle(self) -> None:
        now = time.monotonic()
        for imports, process in list(self._processes.items()):
            if process.is_idle and now - process.wanted_at > IDLE_LIMIT_S:
                self._processes.pop(imports).end()


class WarmProcess:
    """One of them, seen from here."""

    def __init__(self, backend: Backend | None, env: Mapping[str, str]) -> None:
        """Starts it; its imports take seconds."""
        self.wanted_at = time.monotonic()
        self._num_ranks = 0
        self._lock = threading.Lock()
        self._control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            imports = () if backend is None else ("--backend", str(backend))
            self._process = subprocess.Popen(
                (sys.executable, "-m", WARM_MODULE, *imports, "--control", str(other.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={
                    **UNBUFFERED,
                    **env,
                    SUPERVISOR_VARIABLE: str(os.getpid()),
                    TOKEN_VARIABLE: NO_TOKEN,
                },
                pass_fds=(other.fileno(),),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_idle(self) -> bool:
        """Whether no rank of it is running."""
        return self._num_ranks == 0

    def is_alive(self) -> bool:
        """Whether ranks can still be forked from it."""
        return self._process.poll() is None

    def await_imports(self, limit_s: float, stopped: Callable[[], bool]) -> str | None:
        """Why it is of no use, once its imports are done; None where it is."""
        deadline = time.monotonic() + limit_s
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        while not poller.poll(_LOOK_S * 1000):
            if stopped():
                return "nobody waits for it any more"
            if time.monotonic() > deadline:
                return f"its imports have not ended within {limit_s:.0f} s"
        answer = self._control.recv(_ANSWER_BYTES)
        if not answer:
            return "its imports fail"
        unusable: str | None = json.loads(answer)["unusable"]
        return unusable

    def start_rank(self, arguments: tuple[str, ...], env: Mapping[str, str], log: Path) -> WarmRank:
        """Forks a rank that runs the bench program.

        Raises:
            StarterLostError: it is gone, or does not answer.
        """
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = json.dumps({"arguments": arguments, "env": dict(env)}).encode()
        self.wanted_at = time.monotonic()
        try:
            with theirs, log.open("wb") as output, self._lock:
                self._control.settimeout(_ANSWER_LIMIT_S)
                socket.send_fds(self._control, [request], [output.fileno(), theirs.fileno()])
                self._num_ranks += 1
            pid = _number(mine)
        except (OSError, EOFError) as error:
            mine.close()
            self.end()
            raise StarterLostError from error
        return WarmRank(self, pid, mine)

    def rank_ended(self) -> None:
        """One fewer is running."""
        with self._lock:
            self._num_ranks -= 1
            self.wanted_at = time.monotonic()

    def end(self) -> None:
        """Kills it; the kernel kills its ranks."""
        self._process.kill()
        self._process.wait()
        self._control.close()


class WarmRank:
    """A child of a warm process: this process is told its exit code."""

    def __init__(self, parent: WarmProcess, pid: int, status: socket.socket) -> None:
        self._parent = parent
        self._pid = pid
        self._status = status
        self._pidfd: int | None = None
        with suppress(ProcessLookupError):  # it has ended, and its code is on its way
            self._pidfd = os.pidfd_open(pid)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._pid

    def fileno(self) -> int:
        """Readable once the rank has ended."""
        return self._status.fileno() if self._pidfd is None else self._pidfd

    def wait(self, limit_s: float) -> int:
        """The exit code, as its parent has it."""
        if self._pidfd is not None:
            await_death(self._pidfd, limit_s)
            os.close(self._pidfd)
        self._parent.rank_ended()
        with self._status:
            try:
                return _number(self._status)
            except (OSError, EOFError) as error:
                self._parent.end()  # it is gone, or stopped: either way of no use
                raise StarterLostError from error


def _number(status: socket.socket) -> int:
    status.settimeout(_ANSWER_LIMIT_S)
    told = status.recv(NUMBER.size)
    if not told:
        raise EOFError
    return int(NUMBER.unpack(told)[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmRanks:
    """Ranks are forked where they can be, and started anew where not."""

    pool: WarmPool
    backend: Backend

    def ready(
        self,
        trial_folder: Path,
        env: Mapping[str, str],
        limit_s: float,
        stopped: Callable[[], bool],
    ) -> RankStarter:
        """Has the framework imported, unless an earlier trial has."""
        process = self.pool.process(self.backend, env, limit_s, stopped)
        if process is None:
            return ColdRanks().ready(trial_folder, env, limit_s, stopped)
        arguments = bench_arguments(trial_folder.resolve())
        return lambda own, log: process.start_rank(arguments, own, log)


def rank_source(pool: WarmPool | None, spec: LaunchSpec) -> RankSource:
    """How the ranks of this launch are started."""
    return ColdRanks() if pool is None else WarmRanks(pool=pool, backend=spec.plan.backend)
