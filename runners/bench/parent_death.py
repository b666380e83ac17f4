"""A process that does not outlive the one that started it, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

SUPERVISOR_VARIABLE = "PARATUNE_SUPERVISOR_PID"
"""Set for what paratune starts; torchrun and a user's own shell set nothing."""
_PR_SET_PDEATHSIG = 1


def die_with_supervisor() -> None:
    """Asks the kernel to kill this process when its supervisor dies, even by SIGKILL."""
    parent = os.environ.get(SUPERVISOR_VARIABLE)
    if parent is not None:
        die_with(int(parent))


def die_with(parent: int) -> None:
    """Asks the kernel to kill this process when ``parent`` dies; ends it if that has happened.

    The kernel goes by the thread that started this process, which must live as long as ``parent``.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
