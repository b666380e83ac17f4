"""Trials that run: each in a thread of its own, kept in the study folder the moment it ends."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from tuner.outcome import Failed, Phase
from tuner.plan import ParallelPlan
from tuner.runner import Runner
from tuner.study_folder import StudyFolder
from tuner.trial import Trial

STOP_LIMIT_S = 90.0
"""For trials that were told to stop: ranks are killed at once, Ray takes its time."""
_FULL_BYTES = 64 * 1024
"""A disk with less room is full: what failed meanwhile failed for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEntered:
    """The slowest rank of a running trial enters a phase."""

    number: int
    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A trial ended and is kept."""

    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A trial came to no outcome: the runner is broken, or the folder cannot be written."""

    number: int
    error: BaseException


Event = PhaseEntered | Ended | Broken


class TrialSlots:
    """Runs trials side by side; what happens is told, in order, by ``next_event``.

    Ctrl-C meets only the thread that waits here: no trial that has ended is lost by it.
    """

    def __init__(
        self, runner: Runner, folder: StudyFolder, clock: Callable[[], float] = time.time
    ) -> None:
        self._runner, self._folder, self._clock = runner, folder, clock
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._threads: dict[int, threading.Thread] = {}
        self._beside: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._threads)

    def start(self, number: int, plan: ParallelPlan, reason: str) -> None:
        """Runs a plan; its trial is told of later."""
        thread = threading.Thread(
            target=self._run, args=(number, plan, reason), name=f"trial-{number}", daemon=True
        )
        self._threads[number] = thread
        for running in self._threads:
            others = len(self._threads) - 1
            self._beside[running] = max(self._beside.get(running, 0), others)
        thread.start()

    def next_event(self) -> Event:
        """Waits for what happens next to one of the running trials."""
        event = self._events.get()
        if not isinstance(event, PhaseEntered):
            number = event.trial.number if isinstance(event, Ended) else event.number
            self._threads.pop(number).join()
        return event

    def stop(self) -> None:
        """Ends the running trials in order; bounded.

        Raises:
            RuntimeError: one does not end.
        """
        if not self._threads:
            return
        self._runner.stop()
        deadline = time.monotonic() + STOP_LIMIT_S
        for number, thread in self._threads.items():
            if thread.ident is None:  # Ctrl-C came before it was started
                continue
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                raise RuntimeError(
                    f"trial {number} was told to end but is still there after {STOP_LIMIT_S:.0f} s"
                )
        self._threads.clear()
        while True:
            try:
                self._events.get_nowait()
            except Empty:
                return

    def _run(self, number: int, plan: ParallelPlan, reason: str) -> None:
        try:
            trial = self._tried(number, plan, reason)
        except BaseException as error:  # the study's thread raises it again
            self._events.put(Broken(number=number, error=error))
        else:
            self._events.put(Ended(trial=trial))

    def _tried(self, number: int, plan: ParallelPlan, reason: str) -> Trial:
        def entered(phase: Phase) -> None:
            self._events.put(PhaseEntered(number=number, phase=phase))

        started = self._clock()
        outcome = self._runner.run(plan, self._folder.trial_folder(number), entered)
        if isinstance(outcome, Failed):
            _check_room(self._folder)
        trial = Trial(
            number=number,
            plan=plan,
            outcome=outcome,
            started_at=started,
            wall_s=self._clock() - started,
            reason=reason,
            beside=self._beside[number],
        )
        self._folder.append(trial)
        return trial


def _check_room(folder: StudyFolder) -> None:
    """A plan is not to blame where its ranks could not write.

    Raises:
        OSError: the disk of the study folder is full.
    """
    if shutil.disk_usage(folder.path).free < _FULL_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder.path))
