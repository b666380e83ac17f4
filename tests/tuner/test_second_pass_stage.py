"""The second pass of a study: its runs, its folder, what is reported and emitted of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from reports.write import write_reports
from runners.backends.launch import launch_for
from tests.tuner.test_tune_command import job, tune
from tuner.cli import verify_command
from tuner.cli.folder_summary import folder_summary
from tuner.cli.found_cluster import found_cluster
from tuner.cli.kept_study import KeptStudy
from tuner.cli.main import main
from tuner.cli.second_pass_stage import SecondPassStage
from tuner.job import read_job
from tuner.launch import LaunchSpec, Measurement, Settings
from tuner.launch_files import launch_folder, write_launch_files
from tuner.outcome import Measured, Outcome, Source
from tuner.plan import ParallelPlan
from tuner.runner import PhaseListener
from tuner.second_pass import NextRun
from tuner.study_folder import StudyFolder

__all__ = ["job"]


class SettingRunner:
    """A step of a second; with one setting it takes less."""

    num_slots = 1

    def __init__(self, job_file: Path, faster: str) -> None:
        self._job = read_job(job_file, found_cluster)
        self._faster = faster
        self.measurement: Measurement = self._job.measurement
        self.settings: Settings = (("round_robin_gradients", True),)
        self.asked: list[Settings] = []
        self.early: list[bool] = []

    def describe(self, plan: ParallelPlan) -> LaunchSpec:
        return launch_for(
            plan, self._job.workload, self._job.cluster, self.measurement, self.settings
        )

    def run(self, plan: ParallelPlan, folder: Path, on_phase: PhaseListener) -> Outcome:
        self.asked.append(self.settings)
        adaptive = self.measurement.adaptive
        self.early.append(adaptive is not None and adaptive.incumbent_step_time_s is not None)
        write_launch_files(self.describe(plan), launch_folder(folder))
        seconds = 0.8 if self._faster in dict(self.settings) else 1.0
        return Measured(
            step_times_s=(seconds,),
            step_time_s=seconds,
            step_time_ci_s=(seconds * 0.995, seconds * 1.005),
            tokens_per_s=64 / seconds,
            peak_memory_bytes=1,
            peak_memory_bytes_by_rank=(1, 1),
            source=Source.SIMULATED,
        )

    def stop(self) -> None:
        return None

    def close(self) -> None:
        return None


@pytest.fixture
def study(job: Path) -> StudyFolder:
    """A simulated study whose winner is DDP, with a bucket size, a view and a static graph."""
    text = job.read_text().replace("micro_batch:\n  - 1\n  - 2", "micro_batch: [2]")
    text = text.replace("search:", "search:\n  backend: [pytorch]\n  zero_stage: [0]\n  tp: [1]")
    job.write_text(text.replace("search:", "search:\n  pp: [1]\n  recompute: [none]"))
    assert tune(job, "--trials", "1") == 0
    return StudyFolder(job.parent / "study")


def passed(
    study: StudyFolder, job: Path, most: int = 50, faster: str = "ddp_static_graph"
) -> tuple[SettingRunner, list[NextRun]]:
    runner, started = SettingRunner(job, faster), list[NextRun]()
    stage = SecondPassStage(
        folder=study,
        runner=runner,
        measurement=runner.measurement,
        listener=lambda number, run, outcome: started.append(run) if outcome is None else None,
    )
    stage.run(most)
    return runner, started


def test_the_winner_is_run_with_each_setting_and_the_runner_left_as_it_was(
    study: StudyFolder, job: Path
) -> None:
    runner, started = passed(study, job)
    assert runner.settings == (("round_robin_gradients", True),)
    assert runner.asked[0] == ()
    assert {name for settings in runner.asked for name, _ in settings} >= {
        "ddp_gradient_as_bucket_view",
        "ddp_static_graph",
    }
    assert [run.settings for run in started] == runner.asked
    assert runner.early[0] is False
    assert runner.early[1] is True, "an option's first run may end early"
    assert runner.early[-1] is False, "runs in turns go to their end"
    found = study.second_pass()
    assert found is not None
    assert found.is_over
    assert found.changes_kept == (("ddp_static_graph", True),)


def test_the_winner_is_reported_with_what_was_kept_and_its_files_are_those_of_that_run(
    study: StudyFolder, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = folder_summary(study).best
    assert before is not None
    passed(study, job)
    found, best = study.second_pass(), folder_summary(study).best
    assert found is not None
    assert best is not None
    assert best.run is not None
    assert best.settings == (("ddp_static_graph", True),)
    assert best.measured.step_time_s == pytest.approx(0.8)
    ran = launch_folder(study.second_pass_folder(best.run))
    capsys.readouterr()
    assert main(["report", str(study.path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["best"]["settings"] == {"ddp_static_graph": True}
    assert document["second_pass"]["settings"] == {"ddp_static_graph": True}
    assert document["second_pass"]["gain"][0] > 0.2
    kept = [one for one in document["second_pass"]["tried"] if one["kept"]]
    assert [one["setting"] for one in kept] == ["ddp_static_graph"]
    for file in ran.iterdir():
        assert (study.best_folder / file.name).read_bytes() == file.read_bytes()
    assert "ddp_static_graph = true" in (study.best_folder / "pytorch.toml").read_text()


def test_the_reports_have_the_settings_and_every_option_that_was_tried(
    study: StudyFolder, job: Path
) -> None:
    passed(study, job)
    write_reports(study, folder_summary(study))
    text = study.report_file.read_text()
    assert "- Settings: ddp_static_graph=true (a step without takes +" in text
    assert "| ddp_static_graph | false | ddp_static_graph=true |" in text
    page = (study.path / "report.html").read_text()
    assert "Framework settings of the winner" in page


def test_the_winner_is_emitted_as_it_ran_last_and_a_named_trial_as_it_ran(
    study: StudyFolder, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    passed(study, job)
    best = folder_summary(study).best
    assert best is not None
    assert best.run is not None
    ran = launch_folder(study.second_pass_folder(best.run))
    assert main(["emit", str(study.path), "--format", "torchrun"]) == 0
    emitted = study.path / "emitted" / "torchrun"
    assert (emitted / "pytorch.toml").read_bytes() == (ran / "pytorch.toml").read_bytes()
    assert "with ddp_static_graph=true" in (emitted / "launch.sh").read_text()
    assert main(["emit", str(study.path), "--format", "torchrun", "--trial", "0"]) == 0
    assert "ddp_static_graph" not in (emitted / "pytorch.toml").read_text()
    assert main(["emit", str(study.path), "--format", "torchtitan"]) == 2
    assert "ddp_static_graph must be false, got true" in capsys.readouterr().err


def test_nothing_kept_leaves_the_trials_own_files_and_says_so(
    study: StudyFolder, job: Path
) -> None:
    passed(study, job, faster="nothing")
    summary = folder_summary(study)
    assert summary.best is not None
    assert summary.best.run is None
    write_reports(study, summary)
    assert "tried none is faster for certain" in study.report_file.read_text()


def test_it_goes_on_where_it_stopped_and_begins_anew_with_another_winner(
    study: StudyFolder, job: Path
) -> None:
    first, _ = passed(study, job, most=2)
    assert len(first.asked) == 2
    rest, _ = passed(study, job)
    whole = study.second_pass()
    assert whole is not None
    assert len(whole.runs) == 2 + len(rest.asked)
    over, _ = passed(study, job)
    assert over.asked == []
    study.keep_second_pass(replace(whole, plan=replace(whole.plan, zero_stage=3)))
    assert folder_summary(study).second_pass is None, "it is of another plan"
    again, _ = passed(study, job)
    assert len(again.asked) == len(whole.runs)


def test_the_winner_is_verified_with_what_was_kept_and_the_verdict_is_of_that(
    study: StudyFolder, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed(study, job)
    runner = SettingRunner(job, "nothing")
    runner.settings = ()

    def run(plan: ParallelPlan, folder: Path, on_phase: PhaseListener) -> Outcome:
        outcome = SettingRunner.run(runner, plan, folder, on_phase)
        assert isinstance(outcome, Measured)
        facts = {"is_deterministic": True, "first_losses": {}, "later_losses": {}}
        (folder / "rank-0.json").write_text(json.dumps({"result": {"effective": facts}}))
        return replace(outcome, losses=(3.0, 2.0, 1.0))

    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setattr(verify_command, "runner_named", lambda *_, **__: runner)
    found = verify_command.verified_winner(KeptStudy.read(study))
    assert found is not None
    assert found.settings == (("ddp_static_graph", True),)
    assert runner.asked[0] == (), "the one rank that it is held against has no settings"
    assert runner.asked[1:] == [(("ddp_static_graph", True),)]
    assert folder_summary(study).verification == found
    study.second_pass_file.unlink()
    assert folder_summary(study).verification is None, "it is of other settings"


def test_no_runs_are_made_unless_they_are_asked_for(study: StudyFolder, job: Path) -> None:
    runner, _ = passed(study, job, most=0)
    assert runner.asked == []
    assert study.second_pass() is None


def test_simulated_trials_have_no_second_pass(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(job, "--second-pass", "5") == 2
    assert "--second-pass needs real trials" in capsys.readouterr().err
