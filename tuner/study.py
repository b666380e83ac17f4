"""The study: asks for plans, has them tried, several at a time where asked to, and resumes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import optuna

from tuner.incumbent import tell_incumbent
from tuner.outcome import Phase
from tuner.plan import ParallelPlan
from tuner.proposals import Proposals
from tuner.runner import Runner
from tuner.search_space import SearchSpace
from tuner.study_folder import StudyFolder
from tuner.study_storage import opened_storage
from tuner.trial import Trial
from tuner.trial_slots import Broken, Ended, PhaseEntered, TrialSlots


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """When a study stops: trials over all its runs, seconds of this run."""

    trials: int
    time_s: float | None = None


class StudyListener:
    """What a study tells of its progress, always from its own thread; does nothing by itself."""

    def trial_started(self, number: int, plan: ParallelPlan, reason: str) -> None:
        """A trial is about to start; others may be running."""

    def phase_entered(self, number: int, phase: Phase) -> None:
        """The slowest rank of the trial enters a phase."""

    def trial_ended(self, trial: Trial, trials: Sequence[Trial]) -> None:
        """A trial is kept; ``trials`` are all so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyEnd:
    """Why a run of a study ended, and all trials of the study."""

    trials: tuple[Trial, ...]
    reason: str
    interrupted: bool = False


@dataclass(slots=True, kw_only=True)
class Study:
    """All trials of one workload on one cluster, kept in a folder."""

    space: SearchSpace
    runner: Runner
    folder: StudyFolder
    sampler: optuna.samplers.BaseSampler
    storage_url: str | None = None
    current: ParallelPlan | None = None
    """The plan that the user has: tried before all others, whatever the sampler."""
    parallel: int = 1
    """How many trials run at the same time; the runner must have so many slots."""
    clock: Callable[[], float] = time.time
    prepare: Callable[[], object] = lambda: None
    """Called from the study's own thread before each trial starts: begins what the runner needs."""

    def run(self, budget: Budget, listener: StudyListener) -> StudyEnd:
        """Tries plans until the budget is spent or no plan is left; Ctrl-C ends it in order.

        Every trial is in the folder the moment it ends, so a study that was ended in any way goes
        on from there.

        Raises:
            RuntimeError: the runner is broken.
            OSError: the study folder cannot be written.
            UserError: the storage cannot be used.
        """
        trials = list(self.folder.trials())
        proposals = Proposals(
            self.space,
            self.sampler,
            opened_storage(self.folder, self.storage_url),
            trials,
            first=self.current,
        )
        slots = TrialSlots(self.runner, self.folder, self.clock)
        try:
            reason = _Run(self, budget, listener, trials, proposals, slots).reason_of_end()
        except KeyboardInterrupt:
            slots.stop()
            kept = self.folder.trials()
            return StudyEnd(trials=kept, reason="it was interrupted", interrupted=True)
        finally:
            slots.stop()
        return StudyEnd(trials=tuple(sorted(trials, key=lambda t: t.number)), reason=reason)


@dataclass(slots=True)
class _Run:
    """One run of a study, as it goes on."""

    study: Study
    budget: Budget
    listener: StudyListener
    trials: list[Trial]
    """In the order in which they ended."""
    proposals: Proposals
    slots: TrialSlots

    def reason_of_end(self) -> str:
        """Runs trials until there is a reason to stop, and none is running any more."""
        deadline = self.study.clock() + (self.budget.time_s or 0.0)
        taken = {trial.number for trial in self.trials}
        while True:
            reason = None
            while reason is None and len(self.slots) < self.study.parallel:
                reason = self._no_more(deadline) or self._started(taken)
            if not len(self.slots):
                assert reason is not None, "a slot is free, and nothing runs"
                return reason
            self._heard()

    def _no_more(self, deadline: float) -> str | None:
        if len(self.trials) + len(self.slots) >= self.budget.trials:
            return f"its {self.budget.trials} trials are done"
        if self.budget.time_s is not None and self.study.clock() >= deadline:
            return "its time is up"
        return self.proposals.stop_reason()

    def _started(self, taken: set[int]) -> str | None:
        """Starts a trial, under the lowest number that is free; else the reason why not."""
        plan = self.proposals.next()
        if plan is None:
            return "the sampler proposes no untried legal plan"
        self.study.prepare()
        number = next(n for n in range(len(taken) + 1) if n not in taken)
        taken.add(number)
        own = plan == self.study.current
        reason = "the plan in use (--baseline)" if own else self.proposals.reason
        self.listener.trial_started(number, plan, reason)
        tell_incumbent(self.study.runner, self.trials)
        self.slots.start(number, plan, reason)
        return None

    def _heard(self) -> None:
        match self.slots.next_event():
            case PhaseEntered(number=number, phase=phase):
                self.listener.phase_entered(number, phase)
            case Ended(trial=trial):
                self.trials.append(trial)
                self.proposals.told(trial)
                self.listener.trial_ended(trial, self.trials)
            case Broken(error=error):
                raise error
