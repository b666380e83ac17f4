"""A study folder as a summary: all that a report is made of lies in the folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.baseline import Baseline
from reports.summary import AfterTrials, Summary, summarize
from tuner.plan import Backend, ParallelPlan
from tuner.study_folder import StudyFolder


def folder_summary(folder: StudyFolder) -> Summary:
    """What came of the study so far.

    Raises:
        UserError: it is no study folder, or a file in it cannot be read.
    """
    job = folder.read_json(folder.job_file)
    defaults = {
        Backend(name): ParallelPlan.from_dict(plan) for name, plan in job["defaults"].items()
    }
    num_gpus = job["num_nodes"] * job["gpus_per_node"]
    return summarize(
        folder.trials(),
        num_gpus=num_gpus,
        defaults=defaults,
        baseline=_baseline(folder, job),
        after=AfterTrials(
            finals=folder.finals(),
            second_pass=folder.second_pass(),
            verification=folder.verification(),
        ),
    )


def _baseline(folder: StudyFolder, job: Mapping[str, Any]) -> Baseline | None:
    if job.get("baseline") is None:
        return None
    changed = folder.baseline_file.exists()
    return Baseline.of_documents(
        job["baseline"], folder.read_json(folder.baseline_file) if changed else None
    )
