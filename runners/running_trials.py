"""The trials that a runner has running, so that another thread can end them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tuner.runner import Stopped


class RunningTrials:
    """Knows how to stop each of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stops: set[Callable[[], None]] = set()
        self._stopped = False

    @contextmanager
    def including(self, stop: Callable[[], None]) -> Iterator[None]:
        """While the block runs, ``stop`` of this object calls ``stop``.

        Raises:
            Stopped: it has been called, before the block or meanwhile.
        """
        with self._lock:
            self._refuse_if_stopped()
            self._stops.add(stop)
        try:
            yield
        finally:
            with self._lock:
                self._stops.discard(stop)
        self._refuse_if_stopped()

    def stop(self) -> None:
        """Asks all trials that are running to end, and lets none start; returns at once."""
        with self._lock:
            self._stopped = True
            for stop in self._stops:
                stop()

    def _refuse_if_stopped(self) -> None:
        if self._stopped:
            raise Stopped
