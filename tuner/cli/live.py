"""What is seen while a study runs: lines that live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Lock

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tuner.framework_settings.table import settings_text
from tuner.outcome import Failed, Measured, Outcome, OutOfMemory, Phase, Rejected, Source, TimedOut
from tuner.plan import ParallelPlan
from tuner.second_pass import NextRun
from tuner.study import Budget, StudyListener
from tuner.trial import Trial
from tuner.units import size_text, time_text

_PER_SECOND = 4
"""How often the seconds on a terminal are counted on."""
_LONG_S = 99.5
"""From here on minutes are told, as everywhere; below, seconds that count on need no digits."""


def outcome_text(outcome: Outcome) -> str:
    """An outcome in a line."""
    match outcome:
        case Measured():
            mark = "" if outcome.source is Source.MEASURED else f" ({outcome.source})"
            full = ", nearly out of memory" if outcome.is_nearly_full else ""
            return (
                f"{time_text(outcome.step_time_s)} a step, {outcome.tokens_per_s:,.0f} tokens/s"
                f"{mark}, peak {size_text(outcome.peak_memory_bytes)}{full}"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    """A trial that has not ended."""

    head: str
    reason: str
    started_s: float
    phase: Phase = Phase.START


class LiveView(StudyListener):
    """Progress on stderr: running trials, best so far, ends by kind, time left.

    Any number of trials may run at once; their news may come from any thread.
    """

    def __init__(
        self,
        budget: Budget,
        *,
        quiet: bool,
        num_refused: int = 0,
        root_lines: Callable[[Trial], Sequence[str]] = lambda _: (),
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prints nothing yet.

        Args:
            budget: of the study.
            quiet: print nothing at all.
            num_refused: combinations of knobs that the rules removed before any trial.
            root_lines: what the rank that failed first said, to be shown below its trial.
            console: where to; stderr unless given.
            clock: seconds that go on evenly.
        """
        self._root_lines = root_lines
        self._console = console or Console(stderr=True, quiet=quiet, highlight=False)
        self._budget = budget
        self._num_here = 0
        """Trials that ended in this run; the others are of earlier ones."""
        self._num_refused = num_refused
        self._clock = clock
        self._started_s = clock()
        self._running: dict[int, _Running] = {}
        self._lock = Lock()
        self._trials: tuple[Trial, ...] = ()
        self._final = ""
        self._stage = ""
        self._live: Live | None = None

    def trial_started(self, number: int, plan: ParallelPlan, reason: str) -> None:
        """Shows which plan is tried, and what the search hopes for."""
        head = f"{self._named(number)}  {plan.label()}"
        started = _Running(head=head, reason=reason, started_s=self._clock())
        with self._lock:
            self._running = self._running | {number: started}
        if self._console.is_terminal:
            self._show()
        else:
            why = f"  (why: {reason})" if reason else ""
            self._console.print(f"{head}{why}", soft_wrap=True, markup=False)

    def phase_entered(self, number: int, phase: Phase) -> None:
        """Shows the phase of the slowest rank."""
        with self._lock:
            if number in self._running:
                entered = replace(self._running[number], phase=phase)
                self._running = self._running | {number: entered}

    def trial_ended(self, trial: Trial, trials: Sequence[Trial]) -> None:
        """Prints the outcome as a lasting line, then the best so far and what is left."""
        with self._lock:
            self._running = {n: one for n, one in self._running.items() if n != trial.number}
            self._trials = tuple(trials)
            self._num_here += 1
        self._console.print(
            f"{self._named(trial.number)}  {trial.plan.label():<58} "
            f"{outcome_text(trial.outcome)}  ({time_text(trial.wall_s)})",
            soft_wrap=True,
            markup=False,
        )
        for line in self._root_lines(trial):
            self._console.print(f"        | {line}", soft_wrap=True, markup=False)
        if not self._console.is_terminal:
            left = f"; {left} left" if (left := self._left()) else ""
            news = f"best: {self._best()}; {self._counts()}{left}"
            self._console.print(f"        {news}", soft_wrap=True, markup=False)
        elif not self._running:
            self.stop()

    def final_run(self, round_number: int, plan: ParallelPlan, outcome: Outcome | None) -> None:
        """Shows a run of the finals: that it starts, then what came of it."""
        self._stage_begins("the finals: the best plans run again")
        if outcome is None:
            self._later(f"finals, round {round_number + 1}  {plan.label()}")
            return
        self._later_ended(outcome)

    def second_pass_run(self, number: int, next_run: NextRun, outcome: Outcome | None) -> None:
        """Shows a run of the second pass: that it starts, then what came of it."""
        self._stage_begins("the second pass: the best plan with other framework settings")
        if outcome is None:
            settings = settings_text(next_run.settings) or "no setting changed"
            what = f" ({next_run.setting})" if next_run.setting else ""
            self._later(f"second pass, run {number}{what}  {settings}")
            return
        self._later_ended(outcome)

    def note(self, words: str) -> None:
        """Says what is done now, or what the user should know, as a lasting line."""
        self._console.print(words, soft_wrap=True, markup=False)

    def _stage_begins(self, words: str) -> None:
        if words != self._stage:
            self._stage = words
            self.note(words)

    def _named(self, number: int) -> str:
        """By the number that its folder and the reports have; which one it is of how many."""
        most = self._budget.trials
        return f"trial {number}" + (f" ({number + 1} of {most})" if number < most else "")

    def _later(self, words: str) -> None:
        """A run after the trials is about to start."""
        self._final = words
        if self._console.is_terminal:
            self._show()

    def _later_ended(self, outcome: Outcome) -> None:
        self.stop()
        self._console.print(f"{self._final}  {outcome_text(outcome)}", soft_wrap=True, markup=False)
        self._final = ""

    def stop(self) -> None:
        """Ends the living lines."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _show(self) -> None:
        if self._live is None:
            self._live = Live(
                get_renderable=self.lines,
                console=self._console,
                refresh_per_second=_PER_SECOND,
                transient=True,
            )
            self._live.start(refresh=True)

    def lines(self) -> RenderableType:
        """What lives at the bottom of a terminal, as of now."""
        lines = Table.grid(padding=(0, 2))
        lines.add_column(style="bold", no_wrap=True)
        lines.add_column()
        for one in self._running.values():
            taken = _whole_seconds(self._clock() - one.started_s)
            phase = str(one.phase).replace("_", " ")
            lines.add_row("running", Text.assemble(f"{one.head}  ", (phase, "bold"), f"  {taken}"))
            if one.reason:
                lines.add_row("why", Text(one.reason))
        if self._final:
            lines.add_row("running", Text(self._final))
        lines.add_row("best", Text(self._best()))
        lines.add_row("so far", Text(self._counts()))
        if left := self._left():
            lines.add_row("left", Text(left))
        return lines

    def _best(self) -> str:
        measured = [(t.outcome, t) for t in self._trials if isinstance(t.outcome, Measured)]
        if not measured:
            return "nothing measured yet"
        outcome, trial = min(measured, key=lambda pair: pair[0].step_time_s)
        low, high = outcome.step_time_ci_s
        return (
            f"{time_text(outcome.step_time_s)} a step ({time_text(low)} to {time_text(high)}): "
            f"{trial.plan.label()}"
        )

    def _counts(self) -> str:
        kinds = Counter(trial.outcome.kind for trial in self._trials)
        counts = ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in kinds.most_common())
        of = f"{len(self._trials)} of at most {self._budget.trials} trials"
        refused = f"; {self._num_refused:,} refused by rules" if self._num_refused else ""
        return f"{of}{': ' if counts else ''}{counts}{refused}"

    def _left(self) -> str:
        """From the trials of this run; before the first has ended, only what the budget says."""
        elapsed_s = self._clock() - self._started_s
        bounds = []
        if self._num_here:
            bounds.append(elapsed_s / self._num_here * (self._budget.trials - len(self._trials)))
        if self._budget.time_s is not None:
            bounds.append(self._budget.time_s - elapsed_s)
        left_s = min(bounds, default=0.0)
        return f"at most about {_whole_seconds(left_s)}" if left_s >= 1 else ""


def _whole_seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < _LONG_S else time_text(seconds)
