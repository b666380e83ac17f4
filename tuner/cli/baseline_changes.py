"""What leads from the user's plan to the best: knob by knob, each change with its prediction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from reports.summary import Summary
from search_spaces.rule import backend_mask
from search_spaces.rule_table import RULES
from tuner.cli.folder_summary import folder_summary
from tuner.cli.setting import job_setting
from tuner.cost_model.prediction import prediction
from tuner.job import Job
from tuner.plan import KNOB_NAMES, ParallelPlan
from tuner.plan_arrays import PlanArrays
from tuner.study_folder import StudyFolder


def explained(job: Job, folder: StudyFolder, summary: Summary) -> Summary:
    """The summary with the way from the baseline to the best, which is kept in the folder."""
    baseline, best = summary.baseline, summary.best
    if baseline is None or best is None or best.plan == baseline.given.plan:
        return summary
    changes = baseline_changes(job, baseline.given.plan, best.plan)
    if changes is None:
        return summary
    folder.write_json(folder.baseline_file, changes)
    return folder_summary(folder)


def baseline_changes(job: Job, start: ParallelPlan, winner: ParallelPlan) -> dict[str, Any] | None:
    """Legal plans from one to the other, each by the change that is predicted to gain most.

    Knobs that are only legal together change together. None for a model of which nothing is known.
    """
    before = prediction(job.workload, job.cluster, start)
    if before is None:
        return None
    steps: list[dict[str, Any]] = []
    plan = start
    while plan != winner:
        was = plan.to_dict()
        names, plan, seconds = _best_change(job, plan, winner)
        now = plan.to_dict()
        steps.append(
            {
                "knobs": {name: [was[name], now[name]] for name in names},
                "plan": now,
                "predicted_step_time_s": seconds,
            }
        )
    return {
        "winner": winner.to_dict(),
        "predicted_step_time_s": before.step_time_s,
        "steps": steps,
    }


def _best_change(
    job: Job, plan: ParallelPlan, winner: ParallelPlan
) -> tuple[tuple[str, ...], ParallelPlan, float]:
    """Of the smallest sets of knobs that lead to a legal plan, the fastest by prediction."""
    was, now = plan.to_dict(), winner.to_dict()
    differing = [name for name in KNOB_NAMES if was[name] != now[name]]
    for size in range(1, len(differing) + 1):
        found = list(_legal_changes(job, plan, winner, list(combinations(differing, size))))
        if found:
            return min(found, key=lambda change: change[2])
    raise AssertionError("the winner is legal, and all knobs together lead to it")


def _legal_changes(
    job: Job, plan: ParallelPlan, winner: ParallelPlan, sets: Sequence[tuple[str, ...]]
) -> Iterator[tuple[tuple[str, ...], ParallelPlan, float]]:
    was, now = plan.to_dict(), winner.to_dict()
    changed = [ParallelPlan.from_dict(was | {n: now[n] for n in names}) for names in sets]
    for names, other, legal in zip(sets, changed, _legal(job, changed), strict=True):
        # The winner was measured: it is where the way ends, whatever the rules say of it now.
        if legal or other == winner:
            predicted = prediction(job.workload, job.cluster, other)
            if predicted is not None:
                yield names, other, predicted.step_time_s


def _legal(job: Job, plans: Sequence[ParallelPlan]) -> list[bool]:
    """All at once: thousands of sets of knobs may have to be tried."""
    setting, arrays = job_setting(job), PlanArrays.of_plans(plans)
    broken = np.zeros(len(arrays), dtype=np.bool_)
    for rule in RULES:
        if rule.binds(setting.stack):
            broken |= backend_mask(arrays, rule.backends) & rule.breaks(arrays, setting)
    return [not one for one in broken.tolist()]
