"""Samplers that learn nothing: every candidate once, in an order that is known beforehand."""

from __future__ import annotations

from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial

from tuner.samplers.candidates import Candidates
from tuner.samplers.evidence import IntArray


class OrderedSampler(optuna.samplers.BaseSampler):
    """Proposes the first candidate of its order that no other trial has.

    Of one seed and the same trials the proposal is the same, in whichever process.
    """

    def __init__(self, candidates: Candidates, order: IntArray) -> None:
        self._candidates = candidates
        self._order = order.tolist()
        self._rows: dict[int, int | None] = {}
        """Candidate of each Optuna trial."""

    @classmethod
    def shuffled(cls, candidates: Candidates, seed: int) -> OrderedSampler:
        """At random: as drawing until a legal plan comes that was not tried, without the misses."""
        return cls(candidates, np.random.default_rng(seed).permutation(len(candidates)))

    @classmethod
    def exhaustive(cls, candidates: Candidates) -> OrderedSampler:
        """One after the other, as they are enumerated."""
        return cls(candidates, np.arange(len(candidates)))

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All knobs are proposed together."""
        return {
            name: CategoricalDistribution(options)
            for name, options in self._candidates.options.items()
        }

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The knobs of the next candidate; empty when every one has been tried."""
        for other in study.get_trials(deepcopy=False):
            if other.number not in self._rows and other.number != trial.number:
                values = other.params or other.system_attrs.get("fixed_params", {})
                self._rows[other.number] = self._candidates.find(values)
        taken = set(self._rows.values())
        row = next((row for row in self._order if row not in taken), None)
        if row is None:
            return {}
        self._rows[trial.number] = row
        return dict(self._candidates.values(row))

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Called only when no candidate is left.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("every candidate has been tried")
