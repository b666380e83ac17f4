"""Which plan comes next: an Optuna study in memory, made of the trials that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial

from tuner.errors import UserError
from tuner.outcome import Measured
from tuner.plan import ParallelPlan
from tuner.samplers.plan_sampler import PlanSampler
from tuner.samplers.telling import tell_infeasible, tell_measured
from tuner.search_space import SearchSpace
from tuner.study_storage import StudyStorage
from tuner.trial import Trial
from tuner.trial_records import FROM_FOLDER_ATTR, NUMBER_ATTR, frozen_trial, plan_of

_MAX_IDLE_ASKS = 2000
"""Proposals in a row that are illegal or already tried, after which the sampler has run dry."""


class Proposals:
    """Asks a sampler for plans and tells it what came of them.

    The sampler sees what the storage keeps, as far as the study folder agrees: a function of both,
    so that a study that was ended in any way is proposed what it would have been.
    """

    def __init__(
        self,
        space: SearchSpace,
        sampler: optuna.samplers.BaseSampler,
        storage: StudyStorage,
        trials: Sequence[Trial],
        *,
        first: ParallelPlan | None = None,
    ) -> None:
        """Brings sampler, storage and folder in line.

        Args:
            space: the legal plans.
            sampler: over its knobs.
            storage: what Optuna's tools see of the study.
            trials: of the study folder, which is the truth.
            first: a plan to try before all others.

        Raises:
            UserError: the storage is of another search space.
        """
        self._space, self._sampler, self._storage = space, sampler, storage
        self._study = optuna.create_study(sampler=sampler, direction="minimize")
        self._distributions: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(tuple(options)) for name, options in space.knobs
        }
        self._asked: dict[ParallelPlan, optuna.Trial] = {}
        self._known = {trial.plan: trial for trial in trials}
        self._num_legal = sum(plan in space.plans for plan in self._known)
        self._remember(storage.read(), trials)
        if first is not None and first not in self._known:
            self._study.enqueue_trial(first.to_dict())

    @property
    def reason(self) -> str:
        """Why the last plan was proposed, in words."""
        return self._sampler.reason if isinstance(self._sampler, PlanSampler) else ""

    def stop_reason(self) -> str | None:
        """Why no plan is to be proposed; None while one may be."""
        if self._num_legal + len(self._asked) >= len(self._space.plans):
            return "every legal plan has been tried"
        if isinstance(self._sampler, PlanSampler):
            return self._sampler.stop_reason(self._study)
        return None

    def next(self) -> ParallelPlan | None:
        """A legal plan that is neither tried nor running; what else comes is answered at once."""
        for _ in range(_MAX_IDLE_ASKS):
            asked = self._study.ask(self._distributions)
            plan = ParallelPlan.from_dict(asked.params)
            if plan in self._known:
                self._tell(asked, self._known[plan])
            elif plan in self._asked:
                self._study.tell(asked, state=optuna.trial.TrialState.FAIL)
            elif plan not in self._space.plans:
                self._storage.add(tell_infeasible(self._study, asked, "illegal"))
            else:
                self._asked[plan] = asked
                return plan
        return None

    def told(self, trial: Trial) -> None:
        """What came of a plan that was proposed."""
        self._known[trial.plan] = trial
        self._num_legal += 1
        self._tell(self._asked.pop(trial.plan), trial)

    def _tell(self, asked: optuna.Trial, trial: Trial) -> None:
        """Tells an outcome. What did not run is PRUNED, not FAIL, which samplers would ignore."""
        asked.set_user_attr(NUMBER_ATTR, trial.number)
        outcome = trial.outcome
        if isinstance(outcome, Measured):
            peak = float(outcome.peak_memory_bytes)
            told = tell_measured(self._study, asked, outcome.step_time_s, peak)
        else:
            told = tell_infeasible(self._study, asked, outcome.kind)
        self._storage.add(told)

    def _remember(self, stored: Sequence[FrozenTrial], trials: Sequence[Trial]) -> None:
        """What is stored, where the folder says the same; then what the storage had missed."""
        kept = {trial.number: trial.plan for trial in trials}
        told = set()
        for record in stored:
            self._refuse_other_knobs(record)
            number = record.user_attrs.get(NUMBER_ATTR)
            if number is None or kept.get(number) == plan_of(record):
                told.add(number)
                self._study.add_trial(record)
        for trial in trials:
            if trial.number not in told:
                record = frozen_trial(trial, self._space.knobs)
                self._study.add_trial(record)
                self._storage.add(record)

    def _refuse_other_knobs(self, record: FrozenTrial) -> None:
        """A stored study answers for its own search space only.

        Raises:
            UserError: it suggested other knobs or options.
        """
        if record.user_attrs.get(FROM_FOLDER_ATTR):
            return
        wanted = {name: tuple(options) for name, options in self._space.knobs}
        kept = {
            name: tuple(choices.choices)
            for name, choices in record.distributions.items()
            if isinstance(choices, CategoricalDistribution)
        }
        if kept == wanted:
            return
        differing = next(n for n in {**kept, **wanted} if kept.get(n) != wanted.get(n))
        was, now = _options_text(kept.get(differing)), _options_text(wanted.get(differing))
        raise UserError(
            f"the stored study must be of the same search space, but its knob {differing} was "
            f"{was} and is now {now}; search as before, or start a new study (--study, "
            "--storage) with --warm-start to learn from this one"
        )


def _options_text(options: tuple[Any, ...] | None) -> str:
    return "missing" if options is None else "/".join(str(option) for option in options)
