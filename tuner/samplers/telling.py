"""How what came of a trial is told to Optuna, so that every sampler learns from it."""

from __future__ import annotations

from collections.abc import Mapping

import optuna
from optuna.trial import FrozenTrial, TrialState

from tuner.samplers.plan_sampler import MEMORY_ATTR, OOM_ATTR

_CONSTRAINT = "runs"
_INFEASIBLE, _FEASIBLE = 1.0, -1.0


def tell_measured(
    study: optuna.Study, trial: optuna.Trial, seconds: float, peak_bytes: float | None = None
) -> FrozenTrial:
    """It ran; the trial as told."""
    if peak_bytes is not None:
        trial.set_user_attr(MEMORY_ATTR, peak_bytes)
    trial.set_constraint(_CONSTRAINT, _FEASIBLE)
    return study.tell(trial, seconds)


def tell_infeasible(study: optuna.Study, trial: optuna.Trial, why: str) -> FrozenTrial:
    """It did not run, or is no legal plan: PRUNED, because TPE learns nothing from FAIL."""
    trial.set_user_attr("infeasible", why)
    if why == OOM_ATTR:
        trial.set_user_attr(OOM_ATTR, True)
    trial.set_constraint(_CONSTRAINT, _INFEASIBLE)
    return study.tell(trial, state=TrialState.PRUNED)


def constraint_attributes(*, runs: bool) -> Mapping[str, float]:
    """System attributes of a trial that was told, for one that is put together by hand."""
    return {f"constraints:{_CONSTRAINT}": _FEASIBLE if runs else _INFEASIBLE}
