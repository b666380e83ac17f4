"""What a process asks of the kernel: an end with the one that started it, and a name."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

SUPERVISOR_VARIABLE = "PARATUNE_SUPERVISOR_PID"
"""Set for what paratune starts; torchrun and a user's own shell set nothing."""
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def die_with_supervisor() -> None:
    """Asks the kernel to kill this process when its supervisor dies, even by SIGKILL."""
    parent = os.environ.get(SUPERVISOR_VARIABLE)
    if parent is not None:
        die_with(int(parent))


def die_with(parent: int) -> None:
    """Asks the kernel to kill this process when ``parent`` dies; ends it if that has happened.

    The kernel goes by the thread that started this process, which must live as long as ``parent``.
    """
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)


def show_as(name: str) -> None:
    """The name in ``ps`` and ``top``, cut to 15 bytes; a forked rank has another's command line."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()))


def _prctl(option: int, value: ctypes.c_ulong | ctypes.c_char_p) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value)
