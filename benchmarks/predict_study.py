"""Prints how far predictions are from a study's own trials, once calibrated on five of them.

``python benchmarks/predict_study.py JOB.yaml STUDY [--trials 5]``: the five are chosen by what
their knobs would teach, never by what came of them. Best on a study of ``--sampler random`` that
had the machine to itself.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from tuner.cli.found_cluster import found_cluster
from tuner.cost_model.calibration import MeasuredPlans, calibrated, informative_rows
from tuner.cost_model.case import Subject
from tuner.cost_model.coefficients import DEFAULT, Coefficients
from tuner.cost_model.prediction import predictions
from tuner.job import read_job
from tuner.outcome import Measured
from tuner.plan_arrays import PlanArrays
from tuner.study_folder import StudyFolder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("study", type=Path)
    parser.add_argument("--trials", type=int, default=5)
    options = parser.parse_args()
    job = read_job(options.job, found_cluster)
    shape = job.workload.shape
    assert shape is not None, "the model of the example has a shape"
    subject = Subject(shape=shape, workload=job.workload, cluster=job.cluster)
    trials = [t for t in StudyFolder(options.study).trials() if isinstance(t.outcome, Measured)]
    outcomes = [t.outcome for t in trials if isinstance(t.outcome, Measured)]
    plans = PlanArrays.of_plans([t.plan for t in trials])
    times = np.array([outcome.step_time_s for outcome in outcomes])
    peaks = np.array([float(outcome.peak_memory_bytes) for outcome in outcomes])
    chosen = informative_rows([(subject, plans)], options.trials, np.ones(len(plans), dtype=bool))
    known = MeasuredPlans(
        subject=subject,
        plans=plans.kept(chosen),
        step_time_s=times[chosen],
        peak_memory_bytes=peaks[chosen],
        out_of_memory=np.zeros(len(chosen), dtype=bool),
    )
    rest = np.setdiff1d(np.arange(len(plans)), chosen)
    print(f"{len(plans)} measured trials, calibrated on {len(chosen)}, judged on {len(rest)}")
    for name, coefficients in (
        ("as it is", DEFAULT),
        ("calibrated", calibrated([known]).coefficients),
    ):
        _say(name, subject, plans.kept(rest), coefficients, times[rest], peaks[rest])


def _say(
    name: str,
    subject: Subject,
    plans: PlanArrays,
    coefficients: Coefficients,
    times: np.ndarray,
    peaks: np.ndarray,
) -> None:
    found = predictions(subject, plans, coefficients)
    time_errors = found.step_time_s / times - 1
    memory_errors = found.peak_memory_bytes / peaks - 1
    print(
        f"{name:>10}: step time median error {np.median(np.abs(time_errors)):.1%} "
        f"(bias {np.median(time_errors):+.1%}), memory {np.median(np.abs(memory_errors)):.1%} "
        f"(bias {np.median(memory_errors):+.1%})"
    )
    for plan, time, peak, te, me in zip(
        plans, times, peaks, time_errors, memory_errors, strict=True
    ):
        if name == "calibrated":
            print(f"    {plan.label():60} {time:.3f} s {te:+.0%}  {peak / 2**20:.0f} MiB {me:+.0%}")


if __name__ == "__main__":
    main()
