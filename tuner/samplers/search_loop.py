"""A search over candidates whose outcomes are asked for one by one, in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import optuna

from tuner.samplers.candidates import Candidates
from tuner.samplers.plan_sampler import OOM_ATTR, PlanSampler
from tuner.samplers.telling import tell_infeasible, tell_measured

_MAX_IDLE_ASKS = 300
"""Proposals in a row that are no candidate or already tried; then the sampler has run dry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a candidate."""

    outcome: str
    """``measured``, ``out_of_memory`` or ``failed``."""
    seconds: float | None = None
    """Of a step; None unless it was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """A candidate that was tried, and what came of it."""

    row: int
    answer: Answer
    reason: str
    enough: bool
    """Whether the sampler would have ended a real study before it."""


def searched(
    candidates: Candidates,
    sampler: optuna.samplers.BaseSampler,
    answer_of: Callable[[int], Answer],
    *,
    trials: int,
    seed: int,
) -> list[Try]:
    """Tries candidates in the sampler's order, no one twice, until the trials are spent.

    What a sampler over all combinations of knobs no longer reaches is tried in random order.
    """
    study = optuna.create_study(direction="minimize", sampler=sampler)
    tries: dict[int, Try] = {}
    idle = 0
    enough = False
    while len(tries) < min(trials, len(candidates)) and idle < _MAX_IDLE_ASKS:
        if isinstance(sampler, PlanSampler) and not enough:
            enough = sampler.stop_reason(study) is not None
        asked = study.ask()
        values = {
            name: asked.suggest_categorical(name, options)
            for name, options in candidates.options.items()
        }
        row = candidates.find(values)
        idle = idle + 1 if row is None or row in tries else 0
        if row is None:
            tell_infeasible(study, asked, "illegal")
            continue
        if row not in tries:
            reason = sampler.reason if isinstance(sampler, PlanSampler) else ""
            tries[row] = Try(row=row, answer=answer_of(row), reason=reason, enough=enough)
        _tell(study, asked, tries[row].answer)
    left = [row for row in range(len(candidates)) if row not in tries]
    for row in np.random.default_rng(seed).permutation(left)[: trials - len(tries)].tolist():
        tries[row] = Try(
            row=row, answer=answer_of(row), reason="the sampler had run dry", enough=enough
        )
    return list(tries.values())


def _tell(study: optuna.Study, asked: optuna.Trial, answer: Answer) -> None:
    if answer.seconds is not None:
        tell_measured(study, asked, answer.seconds)
    else:
        why = OOM_ATTR if answer.outcome == "out_of_memory" else answer.outcome
        tell_infeasible(study, asked, why)
