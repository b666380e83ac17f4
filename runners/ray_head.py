"""Watches Ray's head: without it nothing can be placed, and Ray's own calls block or kill us.

When the head is gone Ray retries for a minute, then ends this process from C++ with a page of
messages. A watch of ours says it in one sentence, sooner.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable

_LOOK_S = 1.0
_CONNECT_LIMIT_S = 3.0
_SILENT_S = 5.0
"""A head that refuses connections for so long is gone; one that is started anew is another Ray."""
_END_LIMIT_S = 5.0
"""For the study to end in order once that is known; its calls of Ray may block for ever."""


def _end_process(sentence: str) -> None:
    sys.stderr.write(f"paratune: the study cannot go on: {sentence}\n")
    sys.stderr.flush()
    os._exit(1)


class HeadWatch:
    """Looks at the head from a thread of its own until it is closed."""

    def __init__(self, address: str, end_process: Callable[[str], None] = _end_process) -> None:
        """Starts to watch.

        Args:
            address: HOST:PORT of the head's GCS.
            end_process: called where the study has not ended long after the head.
        """
        self._address = address
        self._end_process = end_process
        self._closed = threading.Event()
        self._lost = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ray-head", daemon=True)
        self._thread.start()

    @property
    def sentence(self) -> str:
        """What is said where the head is lost."""
        return (
            f"the head of Ray at {self._address} is gone, for nothing listens there any more, and "
            "the trials that ran with it; start Ray again, and the same command goes on where it "
            "stopped"
        )

    @property
    def is_lost(self) -> bool:
        """Whether it has been silent for too long."""
        return self._lost.is_set()

    def raise_if_lost(self) -> None:
        """Called when Ray has raised; returns at once while the head answers.

        Raises:
            RuntimeError: the head is gone, not only a supervisor or a node.
        """
        deadline = time.monotonic() + _SILENT_S + 2 * _CONNECT_LIMIT_S
        while not answers(self._address) and time.monotonic() < deadline:
            if self._lost.wait(_LOOK_S):
                raise RuntimeError(self.sentence)

    def close(self) -> None:
        """Stops watching."""
        self._closed.set()

    def _watch(self) -> None:
        silent_since: float | None = None
        while not self._closed.wait(_LOOK_S):
            if answers(self._address):
                silent_since = None
                continue
            silent_since = silent_since or time.monotonic()
            if time.monotonic() - silent_since >= _SILENT_S:
                self._lost.set()
                if not self._closed.wait(_END_LIMIT_S):
                    self._end_process(self.sentence)
                return


def answers(address: str) -> bool:
    """Whether something listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_LIMIT_S).close()
    except OSError:
        return False
    return True
