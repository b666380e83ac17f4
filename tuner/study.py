"""The study: asks Optuna for plans, has them tried, tells it what came of them, and resumes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from tuner.errors import UserError
from tuner.incumbent import tell_incumbent
from tuner.outcome import (
    Failed,
    Measured,
    Outcome,
    OutOfMemory,
    Phase,
    Rejected,
    TimedOut,
)
from tuner.plan import ParallelPlan, PlanValue
from tuner.runner import Runner
from tuner.samplers.plan_sampler import INTERRUPTED_ATTR, MEMORY_ATTR, OOM_ATTR, PlanSampler
from tuner.samplers.telling import tell_infeasible, tell_measured
from tuner.search_space import SearchSpace
from tuner.study_folder import StudyFolder
from tuner.trial import Trial

_NUMBER_ATTR = "paratune_trial"
"""User attribute: the number of the trial in the study folder."""
_FROM_FOLDER_ATTR = "from_folder"
"""User attribute of a trial that the storage had lost; its options may be of another search."""
_STUDY_NAME = "paratune"
_MAX_IDLE_ASKS = 2000
"""Proposals in a row that are illegal or already tried, after which the sampler has run dry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """When a study stops: trials over all its runs, seconds of this run."""

    trials: int
    time_s: float | None = None


class StudyListener:
    """What a study tells of its progress; does nothing unless overridden."""

    def trial_started(self, number: int, plan: ParallelPlan, reason: str) -> None:
        """A trial is about to start."""

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
    clock: Callable[[], float] = time.time

    def run(self, budget: Budget, listener: StudyListener) -> StudyEnd:
        """Tries plans until the budget is spent or no plan is left; Ctrl-C ends it in order.

        Every trial is in the folder before the next one starts, so a study that was ended in
        any way goes on from there.
        """
        trials = list(self.folder.trials())
        study = self._optuna_study(trials)
        started = self.clock()
        try:
            while True:
                reason = self._stop_reason(study, trials, budget, self.clock() - started)
                if reason is None:
                    plan, asked = self._next_plan(study, trials)
                    reason = "the sampler proposes no untried legal plan" if plan is None else None
                if reason is not None or plan is None:
                    return StudyEnd(trials=tuple(trials), reason=reason or "")
                tell_incumbent(self.runner, trials)
                trials.append(self._tried(plan, len(trials), listener))
                _tell(study, asked, trials[-1])
                listener.trial_ended(trials[-1], trials)
        except KeyboardInterrupt:
            return StudyEnd(
                trials=self.folder.trials(), reason="it was interrupted", interrupted=True
            )

    def _stop_reason(
        self, study: optuna.Study, trials: Sequence[Trial], budget: Budget, elapsed_s: float
    ) -> str | None:
        if len(trials) >= budget.trials:
            return f"its {budget.trials} trials are done"
        if budget.time_s is not None and elapsed_s >= budget.time_s:
            return "its time is up"
        if len({trial.plan for trial in trials if trial.plan in self.space.plans}) >= len(
            self.space.plans
        ):
            return "every legal plan has been tried"
        return self.sampler.stop_reason(study) if isinstance(self.sampler, PlanSampler) else None

    def _next_plan(
        self, study: optuna.Study, trials: Sequence[Trial]
    ) -> tuple[ParallelPlan | None, optuna.Trial | None]:
        """An untried legal plan; what else is proposed is answered at once, without a trial."""
        history = {trial.plan: trial for trial in trials}
        for _ in range(_MAX_IDLE_ASKS):
            asked = study.ask()
            plan = _suggested(asked, self.space.knobs)
            if plan in history:
                _tell(study, asked, history[plan])
            elif plan not in self.space.plans:
                tell_infeasible(study, asked, "illegal")
            else:
                return plan, asked
        return None, None

    def _tried(self, plan: ParallelPlan, number: int, listener: StudyListener) -> Trial:
        reason = self.sampler.reason if isinstance(self.sampler, PlanSampler) else ""
        if plan == self.current:
            reason = "the plan in use (--baseline)"
        listener.trial_started(number, plan, reason)
        started = self.clock()
        outcome = self.runner.run(
            plan,
            self.folder.trial_folder(number),
            lambda phase: listener.phase_entered(number, phase),
        )
        trial = Trial(
            number=number,
            plan=plan,
            outcome=outcome,
            started_at=started,
            wall_s=self.clock() - started,
            reason=reason,
        )
        self.folder.append(trial)
        return trial

    def _optuna_study(self, trials: Sequence[Trial]) -> optuna.Study:
        """The stored study, brought in line with the folder, which is the truth."""
        try:
            study = optuna.create_study(
                storage=self._storage(),
                sampler=self.sampler,
                study_name=_STUDY_NAME if self.storage_url is None else str(self.folder.path),
                load_if_exists=True,
                direction="minimize",
            )
        except (OSError, ValueError, ImportError) as error:
            raise UserError(f"the study's storage cannot be opened: {error}") from error
        known = set()
        _refuse_other_knobs(study, self.space.knobs)
        for stored in study.get_trials(deepcopy=False):
            if stored.state is TrialState.RUNNING:
                study._storage.set_trial_user_attr(stored._trial_id, INTERRUPTED_ATTR, True)
                study.tell(stored.number, state=TrialState.FAIL)
            elif (number := stored.user_attrs.get(_NUMBER_ATTR)) is not None:
                known.add(number)
        for trial in trials:
            if trial.number not in known:
                study.add_trial(_frozen(trial, self.space.knobs))
        if self.current is not None and self.current not in {trial.plan for trial in trials}:
            study.enqueue_trial(self.current.to_dict(), skip_if_exists=True)
        return study

    def _storage(self) -> str | JournalStorage:
        if self.storage_url is not None:
            return self.storage_url
        return JournalStorage(JournalFileBackend(str(self.folder.journal_file)))


def _refuse_other_knobs(
    study: optuna.Study, knobs: Sequence[tuple[str, Sequence[PlanValue]]]
) -> None:
    """A stored study answers for its own search space only.

    Raises:
        UserError: it suggested other knobs or options.
    """
    wanted = {name: tuple(options) for name, options in knobs}
    for stored in study.get_trials(deepcopy=False):
        if not stored.distributions or stored.user_attrs.get(_FROM_FOLDER_ATTR):
            continue
        kept = {
            name: tuple(choices.choices)
            for name, choices in stored.distributions.items()
            if isinstance(choices, CategoricalDistribution)
        }
        differing = next((n for n in {**kept, **wanted} if kept.get(n) != wanted.get(n)), None)
        if differing is not None:
            was, now = _options_text(kept.get(differing)), _options_text(wanted.get(differing))
            raise UserError(
                f"the stored study must be of the same search space, but its knob {differing} was "
                f"{was} and is now {now}; search as before, or start a new study (--study, "
                "--storage) with --warm-start to learn from this one"
            )


def _options_text(options: tuple[Any, ...] | None) -> str:
    return "missing" if options is None else "/".join(str(option) for option in options)


def _suggested(
    trial: optuna.Trial, knobs: Sequence[tuple[str, Sequence[PlanValue]]]
) -> ParallelPlan:
    return ParallelPlan.from_dict(
        {name: trial.suggest_categorical(name, list(options)) for name, options in knobs}
    )


def _tell(study: optuna.Study, asked: optuna.Trial | None, trial: Trial) -> None:
    """Tells an outcome. What did not run is PRUNED, not FAIL, which samplers would ignore."""
    assert asked is not None, "a trial that was run had been asked for"
    asked.set_user_attr(_NUMBER_ATTR, trial.number)
    if isinstance(trial.outcome, Measured):
        tell_measured(
            study, asked, trial.outcome.step_time_s, float(trial.outcome.peak_memory_bytes)
        )
    else:
        tell_infeasible(study, asked, trial.outcome.kind)


def _attributes(trial: Trial) -> Mapping[str, Any]:
    attributes: dict[str, Any] = {_NUMBER_ATTR: trial.number}
    match trial.outcome:
        case Measured(peak_memory_bytes=peak):
            attributes[MEMORY_ATTR] = peak
        case OutOfMemory():
            attributes[OOM_ATTR] = True
        case Rejected() | TimedOut() | Failed():
            pass
        case _:
            assert_never(trial.outcome)
    return attributes


def _frozen(
    trial: Trial, knobs: Sequence[tuple[str, Sequence[PlanValue]]]
) -> optuna.trial.FrozenTrial:
    """A trial of the folder that the storage does not know, as Optuna keeps it."""
    values = trial.plan.to_dict()
    distributions: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(tuple(dict.fromkeys([*options, values[name]])))
        for name, options in knobs
    }
    measured = isinstance(trial.outcome, Measured)
    return optuna.trial.create_trial(
        state=TrialState.COMPLETE if measured else TrialState.PRUNED,
        value=_value(trial.outcome),
        params={name: values[name] for name in distributions},
        distributions=distributions,
        user_attrs={**_attributes(trial), _FROM_FOLDER_ATTR: True},
    )


def _value(outcome: Outcome) -> float | None:
    return outcome.step_time_s if isinstance(outcome, Measured) else None
