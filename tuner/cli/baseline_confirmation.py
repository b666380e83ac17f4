"""The largest change from the user's plan to the best, confirmed by trials of its two ends."""

from __future__ import annotations

import time
from functools import partial
from itertools import pairwise

from tuner.cli.baseline_changes import baseline_changes
from tuner.cli.folder_summary import folder_summary
from tuner.finals import full_measurement
from tuner.job import Job
from tuner.plan import ParallelPlan
from tuner.runner import AdjustableRunner, Runner
from tuner.study import StudyListener
from tuner.study_folder import StudyFolder
from tuner.trial import Trial

_WORTH_A_TRIAL = 1.02
"""A change that is predicted to gain less than this would drown in the noise of a trial."""


def confirm_largest_change(
    job: Job, folder: StudyFolder, runner: Runner, listener: StudyListener
) -> None:
    """Tries the plans before and after the change that should gain most, where they were not.

    They become trials of the study, at most two beyond its budget. Nothing is done where the best
    is the user's own, or a single change leads to it: then the speed-up itself is the measure.
    """
    for plan, reason in _untried_ends(job, folder):
        if isinstance(runner, AdjustableRunner):
            runner.measurement = full_measurement(job.measurement)
        number = max(trial.number for trial in folder.trials()) + 1
        listener.trial_started(number, plan, reason)
        started = time.time()
        outcome = runner.run(
            plan,
            folder.trial_folder(number),
            partial(listener.phase_entered, number),
        )
        trial = Trial(
            number=number,
            plan=plan,
            outcome=outcome,
            started_at=started,
            wall_s=time.time() - started,
            reason=reason,
        )
        folder.append(trial)
        listener.trial_ended(trial, folder.trials())


def _untried_ends(job: Job, folder: StudyFolder) -> tuple[tuple[ParallelPlan, str], ...]:
    """Plans with the reason to try them."""
    summary = folder_summary(folder)
    baseline, best = summary.baseline, summary.best
    if baseline is None or baseline.measured is None or best is None:
        return ()
    if best.plan == baseline.given.plan:
        return ()
    changes = baseline_changes(job, baseline.given.plan, best.plan)
    if changes is None or len(changes["steps"]) < 2:
        return ()
    stations = [(baseline.given.plan.to_dict(), changes["predicted_step_time_s"])]
    stations += [(step["plan"], step["predicted_step_time_s"]) for step in changes["steps"]]
    gains = [before_s / after_s for (_, before_s), (_, after_s) in pairwise(stations)]
    largest = max(range(len(gains)), key=gains.__getitem__)
    if gains[largest] < _WORTH_A_TRIAL:
        return ()
    knobs = changes["steps"][largest]["knobs"].items()
    words = ", ".join(f"{name} {was} -> {now}" for name, (was, now) in knobs)
    reason = f"to confirm what {words} bought (predicted {gains[largest]:.2f}x)"
    tried = {trial.plan for trial in summary.trials}
    ends = [ParallelPlan.from_dict(plan) for plan, _ in stations[largest : largest + 2]]
    return tuple((plan, reason) for plan in ends if plan not in tried)
