"""Samplers by name: ours, and Optuna's own over the same knobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import optuna

from tuner.plan import PlanValue
from tuner.samplers.plan_sampler import PlanPrior, PlanSampler

SAMPLERS = ("plan", "tpe", "gp", "random", "brute")


def sampler_named(
    name: str, prior: PlanPrior, knobs: Mapping[str, Sequence[PlanValue]], *, seed: int
) -> optuna.samplers.BaseSampler:
    """A sampler over these knobs; all but ``plan`` may propose illegal plans, which cost nothing.

    Raises:
        KeyError: an unknown name; the command line offers only ``SAMPLERS``.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    makers: Mapping[str, Callable[[], optuna.samplers.BaseSampler]] = {
        "plan": lambda: PlanSampler(prior, knobs, seed=seed),
        "tpe": lambda: optuna.samplers.TPESampler(seed=seed, n_startup_trials=10),
        "gp": lambda: optuna.samplers.GPSampler(seed=seed),
        "random": lambda: optuna.samplers.RandomSampler(seed=seed),
        "brute": lambda: optuna.samplers.BruteForceSampler(seed=seed),
    }
    return makers[name]()
