"""A process that has imported a framework, has no device open, and forks ranks of it on request.

``python -m runners.bench.warm_process --backend B --control FD``. A rank is a fresh process, a copy
of this one from before it has done anything. It starts in milliseconds and shares the memory of the
imports with the others. ``runners.warm_pool`` is the other end of the control socket.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import selectors
import socket
import struct
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

from runners.bench.__main__ import run_and_leave
from runners.bench.frameworks import import_framework
from runners.bench.process import die_with, die_with_supervisor
from tuner.plan import Backend

TOKEN_VARIABLE = "PARATUNE_TRIAL_TOKEN"
"""In the environment of all that a rank starts, so that it is found again even when it has moved
to a session of its own and its rank is gone."""
NO_TOKEN = "-" * 32
"""Holds the place of a token, which is as long, in the environment of this process."""
REQUEST_BYTES = 2**16
NUMBER = struct.Struct("=i")
"""On a rank's status socket: its process id when it starts, its exit code when it has ended."""
NVML_ONLY = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""Asks torch to look for GPUs without opening CUDA, which no forked process could use then."""


def main() -> int:
    """Imports, says whether ranks can be forked, and forks until the control socket is closed."""
    die_with_supervisor()
    parser = argparse.ArgumentParser(prog="python -m runners.bench.warm_process")
    parser.add_argument("--backend", type=Backend, help="only what all need unless given")
    parser.add_argument("--control", type=int, required=True, help="a socket's file descriptor")
    options = parser.parse_args()
    control = socket.socket(fileno=options.control)
    token_address = _token_address()
    _import(options.backend)
    reason = why_no_fork()
    control.send(json.dumps({"unusable": reason}).encode())
    if reason is not None:
        return 1
    ForkServer(control, token_address).serve()
    os._exit(0)


def _import(backend: Backend | None) -> None:
    """Imports with CUDA closed even to libraries that ask for GPUs when they are imported."""
    asked = os.environ.get(NVML_ONLY)
    os.environ[NVML_ONLY] = "1"
    try:
        import runners.bench.rank  # noqa: F401  # what every rank runs

        if backend is not None:
            import_framework(backend)
    finally:
        if asked is None:
            del os.environ[NVML_ONLY]
        else:
            os.environ[NVML_ONLY] = asked


def why_no_fork() -> str | None:
    """What keeps forked copies of this process from being ranks; None where nothing does.

    A thread would be missing in a copy, with the locks that it holds; an opened CUDA cannot be
    used there.
    """
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's
        return "an import has opened the GPU"
    if _forked_copy_cannot_open_cuda():
        return "an import has opened CUDA"
    if (names := [t.name for t in threading.enumerate()]) != [threading.main_thread().name]:
        return f"an import has started threads: {', '.join(names)}"
    if (count := len(os.listdir("/proc/self/task"))) != 1:
        return f"an import has started {count - 1} threads outside Python"
    return None


def _forked_copy_cannot_open_cuda() -> bool:
    """Torch tells a forked process, and only that."""
    import torch

    pid = os.fork()
    if pid == 0:
        os._exit(int(bool(torch.cuda._is_in_bad_fork())))
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) != 0


@dataclass(frozen=True, slots=True)
class _Rank:
    pid: int
    status: socket.socket


@dataclass(slots=True)
class ForkServer:
    """Forks ranks and reaps them; ends when the other end does, and all ranks with it."""

    control: socket.socket
    token_address: int | None
    _ranks: dict[int, _Rank] = field(default_factory=dict)
    """By the pidfd of each."""
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def serve(self) -> None:
        """Until the control socket is closed."""
        self._selector.register(self.control, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self.control:
                    self._reap(key.fd)
                elif not self._take():
                    return

    def _take(self) -> bool:
        """Starts the rank that is asked for; False where nobody will ask any more."""
        text, handles, _, _ = socket.recv_fds(self.control, REQUEST_BYTES, 2)
        if not text:
            return False
        log, status = handles
        request = json.loads(text)
        sys.stdout.flush()
        sys.stderr.flush()
        own_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                self._become_rank(request, own_pid, log, status)
            finally:
                os._exit(1)
        os.close(log)
        pidfd = os.pidfd_open(pid)
        self._ranks[pidfd] = _Rank(pid, socket.socket(fileno=status))
        self._selector.register(pidfd, selectors.EVENT_READ)
        return True

    def _reap(self, pidfd: int) -> None:
        rank = self._ranks.pop(pidfd)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(rank.pid, 0)
        with rank.status:
            _tell(rank.status, os.waitstatus_to_exitcode(status))

    def _become_rank(
        self, request: Mapping[str, Any], parent: int, log: int, status: int
    ) -> NoReturn:
        """In the copy: a session, an output and an environment of its own, then the bench."""
        os.setsid()
        die_with(parent)
        self._let_go()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.close(nothing)
        os.close(log)
        os.environ.update(request["env"])
        if self.token_address is not None:
            token = request["env"][TOKEN_VARIABLE].encode()
            ctypes.memmove(self.token_address, token, len(NO_TOKEN))
        with socket.socket(fileno=status) as told:
            _tell(told, os.getpid())
        run_and_leave(request["arguments"])

    def _let_go(self) -> None:
        """What only the original may use: the copies of the other ranks' handles, too."""
        self._selector.close()
        self.control.close()
        for pidfd, rank in self._ranks.items():
            os.close(pidfd)
            rank.status.close()


def _tell(status: socket.socket, number: int) -> None:
    with suppress(OSError):  # a supervisor that has seen enough does not listen any more
        status.send(NUMBER.pack(number))


def _token_address() -> int | None:
    """Where this process shows its environment to others; a copy writes its own token there.

    What is set later stands elsewhere: /proc shows to the end what a process was started with.
    """
    variable = f"{TOKEN_VARIABLE}=".encode()
    strings = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")
    for index in range(len(os.environ) + 1):
        address: int | None = strings[index]
        if address is None:
            break
        if ctypes.string_at(address, len(variable)) == variable:
            return address + len(variable)
    return None


if __name__ == "__main__":
    sys.exit(main())
