"""The trials that a runner has running, so that another thread can end them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tuner.runner import TrialStoppedError


class RunningTrials:
    """Knows how to stop each of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stops: dict[Callable[[], None], bool] = {}
        """Whether it was called, by the function that stops the trial."""

    @contextmanager
    def including(self, stop: Callable[[], None]) -> Iterator[None]:
        """While the block runs, ``stop`` of this object calls ``stop``.

        Raises:
            TrialStoppedError: at the end of the block, if it was called.
        """
        with self._lock:
            self._stops[stop] = False
        try:
            yield
        finally:
            with self._lock:
                stopped = self._stops.pop(stop)
        if stopped:
            raise TrialStoppedError("the trial was stopped")

    def stop(self) -> None:
        """Asks all trials that are running to end; returns at once."""
        with self._lock:
            for stop in self._stops:
                self._stops[stop] = True
                stop()
