"""What a report shows beside the summary: fronts, worth of knobs, what is predicted; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from statistics import median, quantiles
from typing import Any, assert_never

from reports.summary import MeasuredTrial
from tuner.outcome import Failed, Measured, Outcome, OutOfMemory, Rejected, TimedOut
from tuner.plan import KNOB_NAMES, ParallelPlan, PlanValue
from tuner.trial import Trial
from tuner.units import size_text

_ROUNDING = 1e-6
"""Of the whole: a smaller term cannot be seen, and may be below zero by rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedTrial:
    """What the cost model said of a plan before it was tried."""

    step_time_s: float
    peak_memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTerms:
    """Where the cost model says that a plan's time and memory go, term by term."""

    time_s: Mapping[str, float]
    """Seconds of one step."""
    memory_bytes: Mapping[str, float]
    """Of the fullest rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportExtras:
    """What a report can show only where someone predicted; all by the number of the trial."""

    predictions: Mapping[int, PredictedTrial] = field(default_factory=dict)
    terms: Mapping[int, PlanTerms] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionEffect:
    """The plans of one option of a knob, and how it does where nothing else differs."""

    option: PlanValue
    num_plans: int
    median_s: float
    quartiles_s: tuple[float, float]
    fastest_s: float
    num_pairs: int
    """Pairs of plans that differ in this knob alone, one with this option, one with the first."""
    pair_speedup: float | None
    """Geometric mean over the pairs: how many times as fast as with the first option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobEffect:
    """What a knob is worth: its options, in their order."""

    knob: str
    options: tuple[OptionEffect, ...]

    @property
    def spread(self) -> float:
        """The slowest option's median over the fastest's."""
        medians = [option.median_s for option in self.options]
        return max(medians) / min(medians)


def pareto_front(ranking: Sequence[MeasuredTrial]) -> tuple[MeasuredTrial, ...]:
    """Those than which no other is both faster and smaller, the smallest first."""
    front: list[MeasuredTrial] = []
    by_size = sorted(
        ranking, key=lambda r: (r.measured.peak_memory_bytes, r.measured.step_time_s, r.number)
    )
    for ranked in by_size:
        if not front or ranked.measured.step_time_s < front[-1].measured.step_time_s:
            front.append(ranked)
    return tuple(front)


def best_so_far(trials: Iterable[Trial]) -> tuple[tuple[int, float], ...]:
    """The shortest step time after each trial, from the first that trained on."""
    steps: list[tuple[int, float]] = []
    for trial in trials:
        if isinstance(trial.outcome, Measured):
            best = min(trial.outcome.step_time_s, steps[-1][1] if steps else float("inf"))
            steps.append((trial.number, best))
        elif steps:
            steps.append((trial.number, steps[-1][1]))
    return tuple(steps)


def knob_effects(timed: Sequence[tuple[ParallelPlan, float]]) -> tuple[KnobEffect, ...]:
    """What each knob of which several options have a time is worth, the widest spread first.

    Args:
        timed: plans with their step times in seconds, all measured or all predicted.
    """
    rows = [(plan.to_dict(), seconds) for plan, seconds in timed]
    effects = [effect for knob in KNOB_NAMES if (effect := _knob_effect(knob, rows)) is not None]
    return tuple(sorted(effects, key=lambda effect: -effect.spread))


def _knob_effect(
    knob: str, rows: Sequence[tuple[Mapping[str, PlanValue], float]]
) -> KnobEffect | None:
    times: dict[PlanValue, list[float]] = defaultdict(list)
    twins: dict[tuple[PlanValue, ...], dict[PlanValue, float]] = defaultdict(dict)
    for values, seconds in rows:
        times[values[knob]].append(seconds)
        rest = tuple(value for name, value in values.items() if name != knob)
        twins[rest][values[knob]] = seconds
    if len(times) < 2:
        return None
    options = sorted(times)
    first = options[0]
    pairs = {
        option: [
            both[first] / both[option] for both in twins.values() if {first, option} <= set(both)
        ]
        for option in options[1:]
    }
    return KnobEffect(
        knob=knob,
        options=tuple(_option_effect(o, times[o], pairs.get(o, [])) for o in options),
    )


def _option_effect(option: PlanValue, times: list[float], speedups: list[float]) -> OptionEffect:
    low, _, high = quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
    mean = exp(sum(log(speedup) for speedup in speedups) / len(speedups)) if speedups else None
    return OptionEffect(
        option=option,
        num_plans=len(times),
        median_s=median(times),
        quartiles_s=(low, high),
        fastest_s=min(times),
        num_pairs=len(speedups),
        pair_speedup=mean,
    )


def shown_terms(values: Sequence[Mapping[str, float]]) -> tuple[str, ...]:
    """Names of the terms that are more than rounding in some plan, in their order."""
    largest = max((sum(terms.values()) for terms in values), default=0.0)
    names = dict.fromkeys(name for terms in values for name in terms)
    return tuple(
        name
        for name in names
        if any(terms.get(name, 0.0) > _ROUNDING * largest for terms in values)
    )


def flattened(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """A nested record as names and texts, the names joined by points."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            yield prefix + name, ", ".join(str(item) for item in value) or "none"
        elif name.endswith("_bytes") and isinstance(value, int):
            yield prefix + name.removesuffix("_bytes"), size_text(value)
        else:
            yield prefix + name, "none" if value is None else str(value)


def root_rank(outcome: Outcome) -> int | None:
    """The rank whose log says most: the one that failed first, else the first; None: none ran."""
    match outcome:
        case OutOfMemory(rank=rank) | Failed(rank=rank):
            return rank
        case TimedOut(ranks=ranks):
            return ranks[0] if ranks else 0
        case Measured():
            return 0
        case Rejected():
            return None
    assert_never(outcome)
