"""Prints how far predictions are from a study's own trials, once calibrated on five of them.

``python benchmarks/predict_study.py JOB.yaml STUDY [--trials 5]``: the five are chosen by what
their knobs would teach, never by what came of them; beside it what five drawn at random make of it,
twenty times. The step times of trials that say themselves
that other load disturbed them are not read without ``--disturbed``. Best on a study of
``--sampler random``.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tuner.cli.found_cluster import found_cluster
from tuner.cost_model.calibration import MeasuredPlans, calibrated, informative_rows
from tuner.cost_model.case import Subject
from tuner.cost_model.coefficients import DEFAULT, Coefficients
from tuner.cost_model.fit import usable_within
from tuner.cost_model.prediction import needed_memory, predictions
from tuner.job import read_job
from tuner.outcome import Measured, OutOfMemory
from tuner.plan_arrays import PlanArrays
from tuner.study_folder import StudyFolder

NUM_DRAWS = 20


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Trials:
    """Of a study, those that trained; NaN where a step time was disturbed."""

    plans: PlanArrays
    times_s: NDArray[np.float64]
    peaks_bytes: NDArray[np.float64]
    lost: PlanArrays
    """Those that ran out of memory."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("study", type=Path)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--disturbed", action="store_true", help="read disturbed step times too")
    options = parser.parse_args()
    job = read_job(options.job, found_cluster)
    shape = job.workload.shape
    assert shape is not None, "the model of the example has a shape"
    subject = Subject(shape=shape, workload=job.workload, cluster=job.cluster)
    trials = trials_of(options.study, with_disturbed=options.disturbed)
    undisturbed = np.isfinite(trials.times_s)
    chosen = informative_rows([(subject, trials.plans)], options.trials, undisturbed)
    rest = np.setdiff1d(np.arange(len(trials.plans)), chosen)
    if not len(chosen) or not len(rest):
        parser.error(
            f"{options.study} must hold more than --trials trials that trained, {len(chosen)} of "
            f"{len(trials.plans)} of them can be fitted to; measure more, or --disturbed"
        )
    print(
        f"{len(trials.plans)} measured trials, in {int((~undisturbed).sum())} of them other load "
        f"disturbed the step time; calibrated on {len(chosen)}, judged on {len(rest)}"
    )
    left = kept(trials, rest)
    fitted = fitted_to(subject, kept(trials, chosen))
    say("as it is", subject, left, DEFAULT)
    say("calibrated", subject, left, fitted)
    say_draws(subject, trials, options.trials)
    list_rows(subject, left, fitted)
    say_memory(subject, trials, fitted, usable_within(job.cluster.gpu, job.memory_limit_bytes))


def trials_of(study: Path, *, with_disturbed: bool) -> Trials:
    """Of the study's folder."""
    trials = StudyFolder(study).trials()
    ran = [(t.plan, t.outcome) for t in trials if isinstance(t.outcome, Measured)]
    lost = [t.plan for t in trials if isinstance(t.outcome, OutOfMemory)]
    return Trials(
        plans=PlanArrays.of_plans([plan for plan, _ in ran]),
        times_s=np.array(
            [np.nan if o.marks and not with_disturbed else o.step_time_s for _, o in ran]
        ),
        peaks_bytes=np.array([float(o.peak_memory_bytes) for _, o in ran]),
        lost=PlanArrays.of_plans(lost),
    )


def kept(trials: Trials, rows: NDArray[np.int64]) -> Trials:
    """Only these of those that trained."""
    return replace(
        trials,
        plans=trials.plans.kept(rows),
        times_s=trials.times_s[rows],
        peaks_bytes=trials.peaks_bytes[rows],
    )


def fitted_to(subject: Subject, trials: Trials) -> Coefficients:
    """Calibrated on these trials, whose step times are all there."""
    known = MeasuredPlans(
        subject=subject,
        plans=trials.plans,
        step_time_s=trials.times_s,
        peak_memory_bytes=trials.peaks_bytes,
        out_of_memory=np.zeros(len(trials.plans), dtype=bool),
    )
    return calibrated([known]).coefficients


def errors_of(
    subject: Subject, trials: Trials, coefficients: Coefficients
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of the step times that are there, and of all peaks; relative."""
    found = predictions(subject, trials.plans, coefficients)
    times = (found.step_time_s / trials.times_s - 1)[np.isfinite(trials.times_s)]
    return times, found.peak_memory_bytes / trials.peaks_bytes - 1


def say_draws(subject: Subject, trials: Trials, num_trials: int) -> None:
    """The median errors where the trials to calibrate on are drawn at random."""
    rows = np.flatnonzero(np.isfinite(trials.times_s))
    if len(rows) <= num_trials:
        return
    errors = []
    for seed in range(NUM_DRAWS):
        chosen = np.random.default_rng(seed).choice(rows, num_trials, replace=False)
        fitted = fitted_to(subject, kept(trials, chosen))
        left = kept(trials, np.setdiff1d(rows, chosen))
        errors.append([np.median(np.abs(each)) for each in errors_of(subject, left, fitted)])
    time, memory = np.median(errors, axis=0)
    print(
        f"calibrated on trials drawn at random, {NUM_DRAWS} times: "
        f"median error of step time {time:.1%}, of memory {memory:.1%}"
    )


def say(name: str, subject: Subject, trials: Trials, coefficients: Coefficients) -> None:
    """The median errors."""
    times, peaks = errors_of(subject, trials, coefficients)
    print(f"{name:>10}: step time {_errors(times)}, memory {_errors(peaks)}")


def _errors(errors: NDArray[np.float64]) -> str:
    if len(errors) == 0:
        return "of none"
    return (
        f"median error {np.median(np.abs(errors)):.1%} of {len(errors)} "
        f"(bias {np.median(errors):+.1%})"
    )


def list_rows(subject: Subject, trials: Trials, coefficients: Coefficients) -> None:
    """Every trial with its errors."""
    found = predictions(subject, trials.plans, coefficients)
    for index, plan in enumerate(trials.plans):
        time_s, peak = trials.times_s[index], trials.peaks_bytes[index]
        off = found.step_time_s[index] / time_s - 1
        time = "disturbed     " if np.isnan(time_s) else f"{time_s:6.3f} s {off:+.0%}"
        more = found.peak_memory_bytes[index] / peak - 1
        print(f"    {plan.label():60} {time}  {peak / 2**20:.0f} MiB {more:+.0%}")


def say_memory(subject: Subject, trials: Trials, coefficients: Coefficients, limit: float) -> None:
    """Which ends were foreseen."""
    refused, foreseen = (
        int((needed_memory(subject, plans, coefficients.memory) > limit).sum()) if len(plans) else 0
        for plans in (trials.plans, trials.lost)
    )
    print(
        f"   of {len(trials.lost)} trials out of memory {foreseen} foreseen, "
        f"of {len(trials.plans)} that trained {refused} predicted not to fit"
    )


if __name__ == "__main__":
    main()
