"""The finals: the best plans measured again, in turns, and what may be said of them then; pure.

Without a contest among the best, at least whoever leads by an extrapolation alone is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuner.launch import Measurement
from tuner.outcome import Measured, Outcome, Source
from tuner.plan import ParallelPlan
from tuner.step_statistics import student_quantile, student_tail
from tuner.trial import Trial

MIN_ROUNDS = 2
"""One run cannot show how much runs differ."""
MAX_ROUNDS = 8
MAX_CONFIRMED = 5
"""Where each leader falls behind the next once it is measured, this many are."""
_EQUAL_ENOUGH = 0.01
"""Once it is certain that a plan is not faster than the fastest by this, it needs no more rounds:
whoever of the two wins, is within it."""
_FIRST_ROUND, _SECOND_ROUND = 4, 2
"""So many times as many plans as may go on run in the first two rounds."""
_EQUAL_RELATIVE = 0.005
"""Of plans that cannot be told apart and are this close, the one that needs less is better."""
_CONFIDENCE = 0.95
_INTERVAL_Z = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalRun:
    """One plan run once more."""

    round: int
    """From 0; in a round each plan that is still in the finals runs once, one after the other."""
    trial: int
    """The trial of the study that tried this plan first."""
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Finals:
    """All runs of the finals, so far."""

    trials: tuple[int, ...]
    """Numbers of the trials whose plans are in the finals, the fastest first."""
    most: int = 3
    """After the first two rounds, which qualify, so many go on."""
    runs: tuple[FinalRun, ...] = ()
    is_over: bool = False
    max_rounds: int = MAX_ROUNDS
    equal_enough: float = _EQUAL_ENOUGH

    @property
    def is_contest(self) -> bool:
        """Whether plans run in turns; else each leader is confirmed alone, once."""
        return self.most > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """What the finals say of one plan."""

    trial: int
    measured: Measured
    """Of its runs in the finals taken together."""
    behind: tuple[float, float] | None
    """95 % interval of how much longer its step takes than the fastest's, as a part of that;
    None of the fastest itself."""

    @property
    def may_be_fastest(self) -> bool:
        """Whether noise leaves it open."""
        return self.behind is None or self.behind[0] <= 0


def finalists(trials: Sequence[Trial], most: int) -> tuple[Trial, ...]:
    """The best trials that noise does not tell apart, the fastest first; none where it is clear.

    Up to four times as many as ``most``: where many are close, the best of them need not be among
    the first few by one noisy trial. Trials that ran beside others disturbed one another by more
    than their own intervals show: then the first ``most`` are in the finals whatever these say.

    Simulated trials have no noise, and nothing that could be run again.
    """
    ran = [
        (trial.outcome.step_time_s, trial, trial.outcome)
        for trial in trials
        if isinstance(trial.outcome, Measured) and trial.outcome.source is not Source.SIMULATED
    ]
    ran.sort(key=lambda entry: (entry[0], entry[1].number))
    if not ran:
        return ()
    limit_s = ran[0][2].step_time_ci_s[1]
    sure = most if any(trial.beside for trial in trials) else 0
    close = [
        trial
        for place, (_, trial, measured) in enumerate(ran)
        if place < sure or measured.step_time_ci_s[0] <= limit_s
    ]
    return tuple(close[: _FIRST_ROUND * most]) if min(len(close), most) > 1 else ()


def confirmed(finals: Finals | None) -> dict[int, Measured]:
    """What full steps said of trials that had led by an extrapolation."""
    if finals is None or finals.is_contest:
        return {}
    return {r.trial: r.outcome for r in finals.runs if isinstance(r.outcome, Measured)}


def leader_to_confirm(trials: Sequence[Trial], finals: Finals) -> Trial | None:
    """The fastest trial where only an extrapolation says so; None where full steps do."""
    if len(finals.runs) >= MAX_CONFIRMED:
        return None
    again, failed = confirmed(finals), failed_finalists(finals)
    known = [
        (again.get(trial.number, trial.outcome), trial)
        for trial in trials
        if isinstance(trial.outcome, Measured) and trial.number not in failed
    ]
    measured, trial = min(known, key=lambda entry: entry[0].step_time_s, default=(None, None))
    leads_unseen = measured is not None and measured.source is Source.EXTRAPOLATED
    return trial if leads_unseen else None


def full_measurement(measurement: Measurement) -> Measurement:
    """How a leader is confirmed: as other trials, but with full steps and to the end."""
    if measurement.adaptive is None:
        return replace(measurement, short_steps=False)
    adaptive = replace(measurement.adaptive, incumbent_step_time_s=None)
    return replace(measurement, adaptive=adaptive, short_steps=False)


def finals_measurement(measurement: Measurement) -> Measurement:
    """How finals are measured: with full steps, longer, and to the end."""
    full = full_measurement(measurement)
    if full.adaptive is None:
        return full
    adaptive = replace(
        full.adaptive,
        max_steps=4 * full.adaptive.max_steps,
        relative_half_width=full.adaptive.relative_half_width / 2,
    )
    return replace(full, adaptive=adaptive)


def next_runs(finals: Finals, plans: dict[int, ParallelPlan]) -> tuple[int, ...]:
    """Trials whose plans the next round runs, in its order; none when the finals are over.

    A round that was broken off is finished first. Every other round runs backwards, so that a
    machine that grows slower or faster favours none.
    """
    num_rounds = 1 + max((run.round for run in finals.runs), default=0)
    done = {run.trial for run in finals.runs if run.round == num_rounds - 1}
    contenders = _contenders(finals, num_rounds - 1, plans)
    if left := [trial for trial in contenders if trial not in done]:
        return tuple(left)
    contenders = _contenders(finals, num_rounds, plans)
    if num_rounds >= finals.max_rounds or len(contenders) < 2:
        return ()
    return tuple(contenders[::-1] if num_rounds % 2 else contenders)


def _contenders(finals: Finals, num_rounds: int, plans: dict[int, ParallelPlan]) -> list[int]:
    """Who may still win after so many whole rounds."""
    runs = tuple(run for run in finals.runs if run.round < num_rounds)
    failed = {run.trial for run in runs if not isinstance(run.outcome, Measured)}
    alive = [trial for trial in finals.trials if trial not in failed]
    if num_rounds == 0 or not alive:
        return alive
    standing = standings(replace(finals, runs=runs), plans)
    if num_rounds < MIN_ROUNDS:
        half = {finalist.trial for finalist in standing[: _SECOND_ROUND * finals.most]}
        return [trial for trial in alive if trial in half]
    longest = max(sum(run.trial == trial for run in runs) for trial in alive)
    open_ones = [
        finalist
        for finalist in sorted(standing, key=lambda finalist: finalist.measured.step_time_s)
        if (finalist.behind is None or finalist.behind[0] < -finals.equal_enough)
        and sum(run.trial == finalist.trial for run in runs) == longest
    ]
    going_on = {finalist.trial for finalist in open_ones[: finals.most]}
    return [trial for trial in alive if trial in going_on]


def standings(finals: Finals, plans: dict[int, ParallelPlan]) -> tuple[Finalist, ...]:
    """The finalists that ran, the winner first.

    The fastest wins; of plans that cannot be told apart from it and are within 0.5 %, the one
    that needs less memory, then the one with fewer knobs turned.
    """
    runs = _runs_by_trial(finals)
    if not runs:
        return ()
    scatter, degrees = _scatter(runs)
    longest = max(len(of_trial) for of_trial in runs.values())
    to_the_end = [trial for trial in runs if len(runs[trial]) == longest]
    fastest = min(to_the_end, key=lambda trial: _log_time(runs[trial]))
    found = [
        Finalist(
            trial=trial,
            measured=_together(of_trial, scatter, _simultaneous(degrees, len(to_the_end))),
            behind=None if trial == fastest else _behind(of_trial, runs[fastest], scatter, degrees),
        )
        for trial, of_trial in runs.items()
    ]
    best_s = next(each.measured.step_time_s for each in found if each.behind is None)

    def order(finalist: Finalist) -> tuple[float, ...]:
        measured = finalist.measured
        near = measured.step_time_s <= best_s * (1 + _EQUAL_RELATIVE)
        if near and finalist.may_be_fastest:
            return (0, measured.peak_memory_bytes, knobs_turned(plans[finalist.trial]))
        return (1 if finalist.trial in to_the_end else 2, measured.step_time_s, finalist.trial)

    return tuple(sorted(found, key=order))


def failed_finalists(finals: Finals) -> tuple[int, ...]:
    """Trials whose plan trained once and did not in the finals."""
    return tuple(dict.fromkeys(r.trial for r in finals.runs if not isinstance(r.outcome, Measured)))


def knobs_turned(plan: ParallelPlan) -> int:
    """How many knobs differ from what the framework does by itself: fewer is simpler."""
    plain = ParallelPlan(backend=plan.backend, precision=plan.precision).to_dict()
    return sum(value != plain[name] for name, value in plan.to_dict().items())


def _runs_by_trial(finals: Finals) -> dict[int, dict[int, Measured]]:
    """Measured runs by trial and round, of trials none of whose runs failed."""
    failed = failed_finalists(finals)
    found: dict[int, dict[int, Measured]] = {}
    for run in finals.runs:
        if isinstance(run.outcome, Measured) and run.trial not in failed:
            found.setdefault(run.trial, {})[run.round] = run.outcome
    return found


def _log_time(runs: dict[int, Measured]) -> float:
    return float(np.mean([math.log(measured.step_time_s) for measured in runs.values()]))


def _scatter(runs: dict[int, dict[int, Measured]]) -> tuple[float, float]:
    """Standard deviation of a run's log time, between runs or as its own interval has it.

    The larger of both, with its degrees of freedom: runs of the same plan may differ by more than
    their steps show (placement, clocks), and two or three runs may agree by chance.
    """
    squares, degrees = 0.0, 0
    for of_trial in runs.values():
        logs = np.log([measured.step_time_s for measured in of_trial.values()])
        squares += float(np.sum((logs - logs.mean()) ** 2))
        degrees += len(logs) - 1
    between = squares / degrees if degrees else 0.0
    within = float(
        np.mean([_own_variance(m) for of_trial in runs.values() for m in of_trial.values()])
    )
    return (math.sqrt(between), degrees) if between > within else (math.sqrt(within), math.inf)


def _own_variance(measured: Measured) -> float:
    low, high = measured.step_time_ci_s
    return ((high - low) / (2 * _INTERVAL_Z * measured.step_time_s)) ** 2


def _simultaneous(degrees: float, num_plans: int) -> float:
    """The quantile of intervals that hold for so many plans at once.

    The winner is the plan that looked fastest, often with some luck: an interval for a plan named
    beforehand would hold the winner's truth too rarely. Bonferroni's; between few degrees of
    freedom the ratio of two quantiles follows from Cornish and Fisher's expansion.
    """
    one, all_of_them = (
        student_tail(1 - (1 - _CONFIDENCE) / (2 * number), degrees) for number in (1, num_plans)
    )
    return student_quantile(degrees) * all_of_them / one


def _together(runs: dict[int, Measured], scatter: float, quantile: float) -> Measured:
    """One plan's runs as one measurement."""
    each = [runs[number] for number in sorted(runs)]
    seconds = math.exp(_log_time(runs))
    half = quantile * scatter / math.sqrt(len(each))
    return replace(
        each[-1],
        step_times_s=tuple(time for measured in each for time in measured.step_times_s),
        step_time_s=seconds,
        step_time_ci_s=(seconds * math.exp(-half), seconds * math.exp(half)),
        tokens_per_s=each[-1].tokens_per_s * each[-1].step_time_s / seconds,
        peak_memory_bytes=max(measured.peak_memory_bytes for measured in each),
        allocator_retries=sum(measured.allocator_retries for measured in each),
        marks=tuple(dict.fromkeys(mark for measured in each for mark in measured.marks)),
        outlier_steps=(),
    )


def _behind(
    runs: dict[int, Measured], fastest: dict[int, Measured], scatter: float, degrees: float
) -> tuple[float, float]:
    """Over the rounds that both ran: what slows a whole round falls out."""
    common = sorted(runs.keys() & fastest.keys())
    difference = float(
        np.mean([math.log(runs[r].step_time_s / fastest[r].step_time_s) for r in common])
    )
    half = student_quantile(degrees) * scatter * math.sqrt(2 / len(common))
    return math.expm1(difference - half), math.expm1(difference + half)
