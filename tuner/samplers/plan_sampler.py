"""The default sampler: ranks all legal plans by what is expected of them, and says why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import erf, exp, inf, log, pi, sqrt
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from tuner.plan import ParallelPlan, PlanValue
from tuner.samplers.plan_posterior import FloatArray, LinearPosterior, plan_features

MEMORY_ATTR = "peak_memory_bytes"
"""User attribute of a told trial: peak bytes of the fullest rank."""
OOM_ATTR = "out_of_memory"
"""User attribute of a told trial that ran out of memory."""
_MEMORY_STD = 0.1
"""Of the log of a peak: what the knobs do not explain, allocator rounding above all."""
_OOM_EXCESS_LOG = 0.2
"""Log of how far above the limit a plan is taken to be that ran out of memory."""
_MIN_FIT_TO_COVER = 0.4
"""A plan less likely to fit than this is not tried merely to see an option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPrior:
    """What is believed of every legal plan before any trial."""

    plans: tuple[ParallelPlan, ...]
    step_time_s: tuple[float, ...]
    """Predicted; all equal where nothing is known of the model."""
    peak_memory_bytes: tuple[float, ...]
    first: tuple[ParallelPlan, ...] = ()
    """Tried before all others, in order: the frameworks' defaults."""
    limit_bytes: float


class PlanSampler(optuna.samplers.BaseSampler):
    """Proposes only legal plans, none twice: defaults, then every option once, then the best bet.

    Usable in any Optuna study that suggests the knobs of ``knobs`` as categoricals. A trial that
    ran out of memory is told as PRUNED with the user attribute ``out_of_memory``.
    """

    def __init__(
        self,
        prior: PlanPrior,
        knobs: Mapping[str, Sequence[PlanValue]],
        *,
        seed: int = 0,
    ) -> None:
        self._prior = prior
        self._distributions = {
            name: CategoricalDistribution(tuple(options)) for name, options in knobs.items()
        }
        self._index = {plan: i for i, plan in enumerate(prior.plans)}
        self._features = plan_features(prior.plans)
        self._log_memory = np.log(np.maximum(prior.peak_memory_bytes, 1.0))
        self._rng = np.random.default_rng(seed)
        self._tie_break = self._rng.random(len(prior.plans)) * 1e-9
        self.reason = ""
        """Why the last plan was proposed, in words."""

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All knobs are sampled together."""
        return dict(self._distributions)

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        """The knobs of the next plan; empty when every legal plan has been tried."""
        states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING)
        told = [t for t in study.get_trials(deepcopy=False, states=states) if t.params]
        chosen = self._chosen(told)
        if chosen is None:
            return {}
        return dict(self._prior.plans[chosen].to_dict())

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Called only when no legal plan is left.

        Raises:
            RuntimeError: always; ask ``exhausted`` first.
        """
        raise RuntimeError("every legal plan has been tried")

    def exhausted(self, tried: Sequence[ParallelPlan]) -> bool:
        """Whether no legal plan is left."""
        return set(self._prior.plans) <= set(tried)

    def _chosen(self, told: Sequence[FrozenTrial]) -> int | None:
        tried = {i for t in told if (i := self._index_of(t)) is not None}
        left = np.array([i for i in range(len(self._prior.plans)) if i not in tried], dtype=int)
        if left.size == 0:
            return None
        for plan in self._prior.first:
            if (index := self._index.get(plan)) is not None and index not in tried:
                self.reason = f"the default of {plan.backend}"
                return index
        mean, std, best = self._time_posterior(told)
        fit = self._fit_probability(told)
        covering = self._covering(left, tried, mean, fit)
        if covering is not None:
            return covering
        return self._improving(left, mean, std, fit, best)

    def _index_of(self, trial: FrozenTrial) -> int | None:
        """Which legal plan a stored trial is of; None for one of other knobs."""
        plan = _plan(trial)
        return None if plan is None else self._index.get(plan)

    def _covering(
        self, left: np.ndarray[Any, Any], tried: set[int], mean: FloatArray, fit: FloatArray
    ) -> int | None:
        """The likely plan that shows most options not yet seen with its backend."""
        seen = self._features[sorted(tried)].any(axis=0)
        news = self._features[left] @ (~seen).astype(float)
        news[fit[left] < _MIN_FIT_TO_COVER] = 0.0
        most = news.max()
        if most <= 0 or len(tried) >= 4 * len(self._prior.first) + 3:
            return None
        rank = mean[left] + self._tie_break[left]
        index = int(left[np.lexsort((rank, -news))[0]])
        self.reason = "to see options not tried yet"
        return index

    def _improving(
        self,
        left: np.ndarray[Any, Any],
        mean: FloatArray,
        std: FloatArray,
        fit: FloatArray,
        best_log: float,
    ) -> int:
        """The plan with the largest expected gain, weighed by its chance to fit."""
        gains = np.array(
            [_expected_gain(best_log - m, s) for m, s in zip(mean[left], std[left], strict=True)]
        )
        score = gains * fit[left] + self._tie_break[left]
        position = int(np.argmax(score))
        gain = 1 - exp(-float(gains[position] * fit[left][position]))
        self.reason = f"expected gain {gain:.1%}, fits with probability {fit[left][position]:.0%}"
        return int(left[position])

    def _time_posterior(self, told: Sequence[FrozenTrial]) -> tuple[FloatArray, FloatArray, float]:
        measured = [
            (i, log(t.value))
            for t in told
            if t.value is not None and (i := self._index_of(t)) is not None
        ]
        prior_log = np.log(np.asarray(self._prior.step_time_s))
        posterior = LinearPosterior(self._features, prior_log)
        logs = np.array([value for _, value in measured])
        mean, std = posterior.mean_and_std([i for i, _ in measured], logs)
        return mean, std, float(logs.min()) if measured else inf

    def _fit_probability(self, told: Sequence[FrozenTrial]) -> FloatArray:
        """Chance of each plan to fit: the prediction, moved by the peaks that trials showed."""
        limit = log(self._prior.limit_bytes)
        peaks = {
            index: log(trial.user_attrs[MEMORY_ATTR])
            for trial in told
            if MEMORY_ATTR in trial.user_attrs and (index := self._index_of(trial)) is not None
        }
        posterior = LinearPosterior(self._features, self._log_memory)
        mean, _ = posterior.mean_and_std(list(peaks), np.array(list(peaks.values())))
        for trial in told:
            index = self._index_of(trial)
            if index is not None and trial.user_attrs.get(OOM_ATTR):
                # It needed more than the limit, how much is not known: at least a little.
                peaks[index] = max(float(mean[index]), limit + _OOM_EXCESS_LOG)
        mean, std = posterior.mean_and_std(list(peaks), np.array(list(peaks.values())))
        margin = (limit - mean) / np.sqrt(std**2 + _MEMORY_STD**2)
        return np.array([0.5 * (1 + erf(z / sqrt(2))) for z in margin])


def _plan(trial: FrozenTrial) -> ParallelPlan | None:
    try:
        return ParallelPlan.from_dict(trial.params)
    except (ValueError, TypeError):
        return None  # a trial of other knobs, by another sampler: it teaches nothing here


def _expected_gain(lead: float, std: float) -> float:
    """Expected improvement of a normal variable that leads by ``lead`` (both in log seconds)."""
    if lead == inf:
        return 1.0
    z = lead / std
    return lead * 0.5 * (1 + erf(z / sqrt(2))) + std * exp(-z * z / 2) / sqrt(2 * pi)
