"""What is seen while a study runs: a line that lives on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.status import Status

from tuner.outcome import Failed, Measured, Outcome, OutOfMemory, Phase, Rejected, TimedOut
from tuner.plan import ParallelPlan
from tuner.study import Budget, StudyListener
from tuner.trial import Trial
from tuner.units import size_text, time_text


def outcome_text(outcome: Outcome) -> str:
    """An outcome in a line."""
    match outcome:
        case Measured():
            return (
                f"{time_text(outcome.step_time_s)} a step, {outcome.tokens_per_s:,.0f} tokens/s, "
                f"peak {size_text(outcome.peak_memory_bytes)}"
            )
        case OutOfMemory():
            return f"out of memory on rank {outcome.rank} in phase {outcome.phase}"
        case TimedOut():
            ranks = ", ".join(map(str, outcome.ranks))
            return (
                f"timed out in phase {outcome.phase} after {outcome.limit_s:.0f} s (rank {ranks})"
            )
        case Failed():
            return f"failed on rank {outcome.rank} in phase {outcome.phase}: {outcome.error}"
        case Rejected():
            return f"rejected: {'; '.join(outcome.reasons)}"


class LiveView(StudyListener):
    """Progress on stderr: trial, phase, best so far, time left."""

    def __init__(
        self,
        budget: Budget,
        limit_bytes: int,
        *,
        num_done: int,
        quiet: bool,
        root_lines: Callable[[Trial], Sequence[str]] = lambda _: (),
    ) -> None:
        """Prints nothing yet.

        Args:
            budget: of the study.
            limit_bytes: what a rank may allocate.
            num_done: trials of earlier runs.
            quiet: print nothing at all.
            root_lines: what the rank that failed first said, to be shown below its trial.
        """
        self._root_lines = root_lines
        self._console = Console(stderr=True, quiet=quiet, highlight=False)
        self._budget = budget
        self._limit_bytes = limit_bytes
        self._num_at_start = num_done
        self._started = time.monotonic()
        self._status: Status | None = None
        self._head = ""
        self._tail = ""

    def trial_started(self, number: int, plan: ParallelPlan, reason: str) -> None:
        """Shows which plan is tried, and why."""
        self._head = f"trial {number + 1}/{self._budget.trials}  {plan.label()}"
        if self._console.is_terminal:
            self._status = self._console.status(self._head)
            self._status.start()
        else:
            why = f"  ({reason})" if reason else ""
            self._console.print(f"{self._head}{why}", soft_wrap=True)

    def phase_entered(self, number: int, phase: Phase) -> None:
        """Shows the phase of the slowest rank."""
        if self._status is not None:
            self._status.update(f"{self._head}  [bold]{phase}[/bold]  {self._tail}")

    def trial_ended(self, trial: Trial, trials: Sequence[Trial]) -> None:
        """Prints the outcome as a lasting line, with the best so far."""
        self.stop()
        self._tail = self._progress(trials)
        self._console.print(
            f"{trial.number + 1:>3}/{self._budget.trials}  {trial.plan.label():<58} "
            f"{outcome_text(trial.outcome)}  ({time_text(trial.wall_s)})",
            soft_wrap=True,
        )
        for line in self._root_lines(trial):
            self._console.print(f"        | {line}", soft_wrap=True, markup=False)
        if not self._console.is_terminal:
            self._console.print(f"        {self._tail}", soft_wrap=True)

    def final_run(self, round_number: int, plan: ParallelPlan, outcome: Outcome | None) -> None:
        """Shows a run of the finals: that it starts, then what came of it."""
        if outcome is None:
            self._head = f"finals, round {round_number + 1}  {plan.label()}"
            if self._console.is_terminal:
                self._status = self._console.status(self._head)
                self._status.start()
            return
        self.stop()
        self._console.print(f"{self._head}  {outcome_text(outcome)}", soft_wrap=True)

    def stop(self) -> None:
        """Ends the living line."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _progress(self, trials: Sequence[Trial]) -> str:
        kinds = Counter(trial.outcome.kind for trial in trials)
        times = [t.outcome.step_time_s for t in trials if isinstance(t.outcome, Measured)]
        best = f"best {time_text(min(times))} a step" if times else "nothing measured yet"
        counts = ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in sorted(kinds.items()))
        elapsed_s = time.monotonic() - self._started
        done = len(trials) - self._num_at_start
        left_s = elapsed_s / max(1, done) * (self._budget.trials - len(trials))
        if self._budget.time_s is not None:
            left_s = min(left_s, self._budget.time_s - elapsed_s)
        left = f"; about {time_text(left_s)} left" if left_s > 0 else ""
        return f"{best}; {counts}{left}"
