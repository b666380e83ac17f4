"""The largest change from the user's plan to the best is confirmed by a trial."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from search_spaces.enumeration import rejections
from tests.tuner.test_baseline import job, tune, written
from tuner.cli.baseline_changes import explained
from tuner.cli.baseline_confirmation import confirm_largest_change
from tuner.cli.folder_summary import folder_summary
from tuner.cli.found_cluster import found_cluster
from tuner.cli.setting import job_setting
from tuner.job import read_job
from tuner.launch import LaunchSpec
from tuner.outcome import Measured, Outcome, Source
from tuner.plan import ParallelPlan
from tuner.runner import PhaseListener
from tuner.study import StudyListener
from tuner.study_folder import StudyFolder

__all__ = ["job"]
SLOW = "run --micro-batch-size 1 --tensor-model-parallel-size 2 --recompute-granularity full"


class NotingRunner:
    """Every plan takes two seconds."""

    num_slots = 1

    def __init__(self) -> None:
        self.plans: list[ParallelPlan] = []

    def describe(self, plan: ParallelPlan) -> LaunchSpec:
        raise NotImplementedError

    def run(self, plan: ParallelPlan, folder: Path, on_phase: PhaseListener) -> Outcome:
        self.plans.append(plan)
        return Measured(
            step_times_s=(2.0,),
            step_time_s=2.0,
            step_time_ci_s=(1.9, 2.1),
            tokens_per_s=128.0,
            peak_memory_bytes=1,
            peak_memory_bytes_by_rank=(1,),
            source=Source.SIMULATED,
        )

    def stop(self) -> None:
        return None

    def close(self) -> None:
        return None


def test_the_plans_on_both_sides_of_the_largest_change_are_tried_once(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(job, SLOW, "run.sh")
    assert tune(job, "--baseline", file, "--sampler", "random", "--seed", "3", "--json") == 0
    before = json.loads(capsys.readouterr().out)
    changes = before["baseline"]["changes"]
    assert len(changes) > 2
    largest = max(changes, key=lambda change: float(change["predicted_factor"]))
    assert largest["measured_factor"] is None
    read = read_job(job, found_cluster)
    folder, runner = StudyFolder(job.parent / "study"), NotingRunner()
    confirm_largest_change(read, folder, runner, StudyListener())
    assert 1 <= len(runner.plans) <= 2
    assert ParallelPlan.from_dict(largest["plan"]) in runner.plans or largest is changes[-1]
    assert all(rejections(plan, job_setting(read)) == () for plan in runner.plans)
    trials = folder.trials()
    assert len(trials) == len(before["trials"]) + len(runner.plans)
    assert "to confirm what " in trials[-1].reason
    confirmed = explained(read, folder, folder_summary(folder)).baseline
    assert confirmed is not None
    text = ", ".join(f"{name} {was} -> {now}" for name, (was, now) in largest["knobs"].items())
    (one,) = (one for one in confirmed.bought if one.text == text)
    assert one.measured_factor is not None
    again = NotingRunner()
    confirm_largest_change(read, folder, again, StudyListener())
    assert again.plans == []


def test_nothing_is_confirmed_without_a_baseline_or_where_it_is_the_best(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(job, "--trials", "3", "--json") == 0
    best = json.loads(capsys.readouterr().out)["best"]["plan"]
    read, runner = read_job(job, found_cluster), NotingRunner()
    folder = StudyFolder(job.parent / "study")
    confirm_largest_change(read, folder, runner, StudyListener())
    kept = folder.read_json(folder.job_file)
    given = {"plan": best, "file": "x", "format": "deepspeed", "notes": [], "pinned": {}}
    given |= {"unknown_keys": [], "ignored_keys": [], "settings": {}}
    folder.write_json(folder.job_file, kept | {"baseline": given})
    assert folder_summary(folder).baseline is not None
    confirm_largest_change(read, folder, runner, StudyListener())
    assert runner.plans == []
    other = replace(ParallelPlan.from_dict(best), micro_batch=2, tp=2).to_dict()
    folder.write_json(folder.job_file, kept | {"baseline": given | {"plan": other}})
    confirm_largest_change(read, folder, runner, StudyListener())
    assert runner.plans == [], "a baseline that did not train has nothing to be confirmed"
