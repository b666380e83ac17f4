"""A trial as Optuna keeps it, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, assert_never

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from tuner.outcome import Failed, Measured, OutOfMemory, Rejected, TimedOut
from tuner.plan import ParallelPlan, PlanValue
from tuner.samplers.plan_sampler import MEMORY_ATTR, OOM_ATTR
from tuner.samplers.telling import constraint_attributes
from tuner.trial import Trial

NUMBER_ATTR = "paratune_trial"
"""User attribute: the number of the trial in the study folder; missing where nothing was run."""
FROM_FOLDER_ATTR = "from_folder"
"""User attribute of a trial that the storage had missed; its options may be of another search."""


def plan_of(record: FrozenTrial) -> ParallelPlan | None:
    """The plan of a stored trial; None where its knobs are not those of a plan."""
    try:
        return ParallelPlan.from_dict(record.params)
    except (ValueError, TypeError):
        return None


def frozen_trial(trial: Trial, knobs: Sequence[tuple[str, Sequence[PlanValue]]]) -> FrozenTrial:
    """A trial of the study folder that the storage does not know."""
    values = trial.plan.to_dict()
    distributions: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(tuple(dict.fromkeys([*options, values[name]])))
        for name, options in knobs
    }
    outcome = trial.outcome
    measured = isinstance(outcome, Measured)
    return optuna.trial.create_trial(
        state=TrialState.COMPLETE if measured else TrialState.PRUNED,
        value=outcome.step_time_s if isinstance(outcome, Measured) else None,
        params={name: values[name] for name in distributions},
        distributions=distributions,
        user_attrs={**_attributes(trial), FROM_FOLDER_ATTR: True},
        system_attrs=dict(constraint_attributes(runs=measured)),
    )


def _attributes(trial: Trial) -> Mapping[str, Any]:
    attributes: dict[str, Any] = {NUMBER_ATTR: trial.number}
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
