"""The end of a study: who led by an extrapolation runs full steps, within the study's time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from reports.summary import AfterTrials, Summary, summarize
from tests.tiny_job import cpu_cluster, tiny_workload
from tuner.cli.deferred_runner import DeferredRunner
from tuner.cli.finals_stage import FinalStage
from tuner.launch import AdaptiveSteps, LaunchSpec, Measurement
from tuner.outcome import Measured, Outcome, Phase, Source
from tuner.plan import Backend, ParallelPlan
from tuner.runner import PhaseListener
from tuner.study_folder import StudyFolder
from tuner.trial import Trial


def measured(seconds: float, source: Source = Source.MEASURED) -> Measured:
    return Measured(
        step_times_s=(seconds,),
        step_time_s=seconds,
        step_time_ci_s=(0.99 * seconds, 1.01 * seconds),
        tokens_per_s=1 / seconds,
        peak_memory_bytes=1,
        peak_memory_bytes_by_rank=(1,),
        source=source,
    )


class FullSteps:
    """Plans' true step times, by micro-batch; notes how each run was measured."""

    def __init__(self, *true_s: float) -> None:
        self.measurement = Measurement(adaptive=AdaptiveSteps(), short_steps=True)
        self.true_s = true_s
        self.runs: list[tuple[int, Measurement]] = []

    def describe(self, plan: ParallelPlan) -> LaunchSpec:
        return LaunchSpec(plan=plan, num_nodes=1, ranks_per_node=1, files=())

    def run(self, plan: ParallelPlan, folder: Path, on_phase: PhaseListener) -> Outcome:
        self.runs.append((plan.micro_batch - 1, self.measurement))
        return measured(self.true_s[plan.micro_batch - 1])

    @property
    def num_slots(self) -> int:
        return 1

    def stop(self) -> None:
        """Nothing goes on in another thread."""

    def close(self) -> None:
        """Nothing is held."""


def folder_of(path: Path, *extrapolated_s: float) -> StudyFolder:
    folder = StudyFolder(path)
    folder.create()
    for number, seconds in enumerate(extrapolated_s):
        plan = ParallelPlan(backend=Backend.PYTORCH, micro_batch=number + 1)
        outcome = measured(seconds, Source.EXTRAPOLATED)
        folder.append(Trial(number=number, plan=plan, outcome=outcome, started_at=0.0, wall_s=1.0))
    return folder


def ended(
    folder: StudyFolder, runner: FullSteps, most: int = 0, *, num_timely: int = 99
) -> Summary:
    """After the finals; time is up after so many runs."""
    FinalStage(
        folder=folder,
        runner=runner,
        listener=lambda *_: None,
        time_left=lambda: len(runner.runs) < num_timely,
    ).run(most)
    return summarize(
        folder.trials(), num_gpus=1, defaults={}, after=AfterTrials(finals=folder.finals())
    )


def test_the_winner_ran_full_steps(tmp_path: Path) -> None:
    runner = FullSteps(1.2, 1.1, 2.0)
    summary = ended(folder_of(tmp_path, 1.0, 1.15, 2.0), runner)
    assert [number for number, _ in runner.runs] == [0, 1]
    assert not any(measurement.short_steps for _, measurement in runner.runs)
    assert summary.best is not None
    assert (summary.best.number, summary.best.measured) == (1, measured(1.1))
    assert [ranked.number for ranked in summary.extrapolated] == [2]


@pytest.mark.ray
def test_finals_on_ray_are_measured_longer_and_kept_as_they_ran(tmp_path: Path) -> None:
    from runners.ray_runner import RayRunner  # the other tests need no Ray

    measurement = Measurement(warmup_steps=1, steps=2, adaptive=AdaptiveSteps(max_steps=3))
    limits_s = dict.fromkeys(Phase, 120.0)
    runner = DeferredRunner(
        lambda: RayRunner(tiny_workload(), cpu_cluster(2), measurement, limits_s, address=None),
        measurement,
    )
    folder = folder_of(tmp_path / "study", 1.0, 1.001)
    runs: list[Outcome] = []
    stage = FinalStage(
        folder=folder,
        runner=runner,
        listener=lambda round_number, plan, outcome: runs.extend([outcome] if outcome else []),
        time_left=lambda: len(runs) < 2,
    )
    try:
        stage.run(2)
    finally:
        runner.close()
    finals = folder.finals()
    assert finals is not None
    assert [(run.trial, run.round) for run in finals.runs] == [(0, 0), (1, 0)]
    assert [run.outcome for run in finals.runs] == runs
    for number, outcome in enumerate(runs):
        assert isinstance(outcome, Measured), outcome
        assert outcome.source is Source.MEASURED
        launch = folder.final_folder(number, 0) / "launch"
        asked = json.loads((launch / "training.json").read_text())["measurement"]
        assert asked["max_steps"] == 4 * 3
        assert asked["incumbent_step_time_s"] is None


def test_one_leader_is_measured_even_where_time_is_up(tmp_path: Path) -> None:
    runner = FullSteps(1.2, 1.1)
    summary = ended(folder_of(tmp_path, 1.0, 1.15), runner, num_timely=0)
    assert [number for number, _ in runner.runs] == [0]
    assert summary.best is not None
    assert summary.best.number == 0
    assert summary.runner_up is not None
    assert summary.is_tie, "the second was not measured, and may well be faster"


def test_what_was_confirmed_is_not_run_again(tmp_path: Path) -> None:
    folder, runner = folder_of(tmp_path, 1.0, 2.0), FullSteps(1.0, 2.0)
    assert ended(folder, runner) == ended(folder, runner)
    assert len(runner.runs) == 1


def test_a_contest_stops_when_time_is_up_and_goes_on_later(tmp_path: Path) -> None:
    folder, runner = folder_of(tmp_path, 1.0, 1.001), FullSteps(1.0, 1.001)
    ended(folder, runner, most=2, num_timely=3)
    assert [number for number, _ in runner.runs] == [0, 1, 1]
    finals = folder.finals()
    assert finals is not None
    assert not finals.is_over
    summary = ended(folder, runner, most=2)
    assert [number for number, _ in runner.runs][:4] == [0, 1, 1, 0]
    assert len(summary.finals) == 2


def test_a_study_of_full_steps_alone_has_nothing_to_confirm(tmp_path: Path) -> None:
    folder, runner = folder_of(tmp_path, 1.0), FullSteps(1.0)
    (only,) = folder.trials()
    folder.append(replace(only, outcome=measured(1.0)))
    ended(folder, runner)
    assert not runner.runs
    assert folder.finals() is None
