"""A sampler whose proposal is a function of its seed and the trials before it, also after a crash.

Optuna's own draw from one stream of random numbers, which a new process starts from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

Maker = Callable[[int], optuna.samplers.BaseSampler]


class SeededAfresh(optuna.samplers.BaseSampler):
    """Makes its sampler anew for every trial, with a seed of that trial's own."""

    def __init__(self, make: Maker, seed: int) -> None:
        self._make, self._seed = make, seed
        self._sampler = make(seed)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """The first question of every trial."""
        sequence = np.random.SeedSequence([abs(self._seed), trial.number])
        self._sampler = self._make(int(sequence.generate_state(1)[0]))
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """As the sampler has it."""
        return self._sampler.sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """As the sampler has it."""
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """As the sampler has it."""
        self._sampler.after_trial(study, trial, state, values)
