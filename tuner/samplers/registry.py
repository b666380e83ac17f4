"""Samplers by name: ours, and Optuna's own over the same knobs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec

import optuna

from tuner.errors import UserError
from tuner.samplers.candidates import Candidates
from tuner.samplers.ordered_sampler import OrderedSampler
from tuner.samplers.plan_belief import Belief
from tuner.samplers.plan_sampler import PlanSampler, Told
from tuner.samplers.seeded_afresh import SeededAfresh

Sampler = optuna.samplers.BaseSampler
SAMPLERS = ("plan", "tpe", "gp", "random", "brute")
_STARTUP_TRIALS = 10
_NEEDED_BY_GP = ("scipy", "torch")


def sampler_named(
    name: str,
    candidates: Candidates,
    belief: Callable[[], Belief],
    *,
    first: Sequence[tuple[int, str]] = (),
    earlier: Sequence[Told] = (),
    seed: int,
) -> Sampler:
    """A sampler over these knobs; ``tpe`` and ``gp`` may propose illegal plans, which cost nothing.

    Raises:
        KeyError: an unknown name; the command line offers only ``SAMPLERS``.
        UserError: the sampler needs a package that is not installed.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    makers: Mapping[str, Callable[[], Sampler]] = {
        "plan": lambda: PlanSampler(candidates, belief(), first=first, earlier=earlier, seed=seed),
        "tpe": lambda: SeededAfresh(_tpe, seed),
        "gp": lambda: _gp(seed),
        "random": lambda: OrderedSampler.shuffled(candidates, seed),
        "brute": lambda: OrderedSampler.exhaustive(candidates),
    }
    return makers[name]()


def _tpe(seed: int) -> Sampler:
    return optuna.samplers.TPESampler(
        seed=seed, n_startup_trials=_STARTUP_TRIALS, multivariate=True
    )


def _gp(seed: int) -> Sampler:
    missing = [name for name in _NEEDED_BY_GP if find_spec(name) is None]
    if missing:
        raise UserError(
            f"the sampler gp needs {' and '.join(missing)}, which is not installed; "
            f"pip install {' '.join(missing)}, or take --sampler plan or tpe"
        )
    return SeededAfresh(
        lambda own: optuna.samplers.GPSampler(seed=own, n_startup_trials=_STARTUP_TRIALS), seed
    )
