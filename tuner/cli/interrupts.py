"""Ctrl-C and its like: the first ends a study in order, the second at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import psutil

EXIT_CODE = 130
"""Interrupted, state saved: of Ctrl-C, and of a scheduler's SIGTERM or a closed terminal alike."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ECHO_S = 1.0
"""``timeout`` sends its signal to the command and then to its group: twice, in no time."""
_FIRST = b"\nparatune: ending what runs; once more ends at once (nothing that has ended is lost)\n"
_AT_ONCE = b"\nparatune: ended at once; the same command goes on where it stopped\n"


@contextmanager
def ends_in_order(clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Within, the first signal raises KeyboardInterrupt, the second ends this process.

    The same signal again within a second is the first, heard twice.
    A signal that is ignored (by ``nohup``, or in a shell's background) stays so.
    """
    first: tuple[int, float] | None = None

    def heard(number: int, frame: FrameType | None) -> None:
        nonlocal first
        now = clock()
        if first is not None:
            if number == first[0] and now - first[1] < _ECHO_S:
                return
            end_at_once()
        first = number, now
        with suppress(OSError):
            os.write(2, _FIRST)
        raise KeyboardInterrupt

    heeded = [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, heard) for each in heeded}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def end_at_once() -> None:
    """Kills what this process has started and goes, without any more work.

    Every trial that ended is in the study folder already.
    """
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            process.kill()
    with suppress(OSError):
        os.write(2, _AT_ONCE)
    os._exit(EXIT_CODE)
