"""How a run of a study ends: whole reports at any interruption, and an explanation that is true."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from reports.write import write_reports
from tests.tiny_job import LLAMA_CONFIG
from tuner.cli import finished_study, tune_command
from tuner.cli.advice import nothing_measured
from tuner.cli.live import LiveView
from tuner.cli.main import main
from tuner.cli.setting import Planned, planned
from tuner.outcome import Failed, Outcome, OutOfMemory, Phase, TimedOut
from tuner.study import Budget, StudyEnd
from tuner.study_folder import StudyFolder
from tuner.trial import Trial

FAILED = Failed(rank=0, phase=Phase.START, error="ValueError", message="no")
TIMED_OUT = TimedOut(ranks=(0,), phase=Phase.START, limit_s=1.0)
OOM = OutOfMemory(rank=0, phase=Phase.FIRST_STEP, message="no memory")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Two CPU ranks."""
    config = LLAMA_CONFIG | {"vocab_size": 256, "hidden_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(config))
    values: dict[str, Any] = {
        "workload": {"model": "config.json", "seq_len": 16, "global_batch": 4},
        "cluster": {"gpu": "cpu", "gpus_per_node": 2},
        "search": {"precision": ["fp32"]},
        "memory": {"limit": "1GiB"},
        "budget": {"trials": 2},
    }
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def tune(job: Path) -> int:
    return main(["tune", str(job), "--study", str(job.parent / "study"), "--runner", "simulated"])


def interrupt(*_: object) -> None:
    """A signal comes now."""
    raise KeyboardInterrupt


def ended(job: Path, runner: str) -> int:
    """The end of a study whose trials are done."""
    assert tune(job) == 0
    folder = StudyFolder(job.parent / "study")
    folder.report_file.unlink()
    options = argparse.Namespace(runner=runner, no_verify=False, json=False, quiet=False)
    view = LiveView(Budget(trials=2), quiet=False)
    end = StudyEnd(trials=folder.trials(), reason="its 2 trials are done")
    return finished_study.finished(planned(job), folder, end, options, view)


def test_a_signal_while_the_winner_is_checked_leaves_reports_and_130(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(finished_study, "verified_winner", interrupt)
    assert ended(job, "local") == 130
    captured = capsys.readouterr()
    assert "checking the winner's losses against one rank" in captured.err
    said = " ".join(captured.out.split())
    assert "interrupted while its winner was checked" in said
    assert "the same command goes on" in said
    assert (job.parent / "study" / "report.md").exists()


def test_a_signal_while_reports_are_written_has_them_written_again(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = [KeyboardInterrupt()]

    def written(*given: Any) -> None:
        if signals and not given[0].report_file.exists():
            raise signals.pop()
        write_reports(*given)

    assert tune(job) == 0
    monkeypatch.setattr(finished_study, "write_reports", written)
    assert ended(job, "simulated") == 130
    assert not signals
    assert (job.parent / "study" / "report.md").exists()


def test_a_signal_before_the_first_trial_has_ended_is_all_that_is_said(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tune_command, "runner_named", interrupt)
    assert tune(job) == 130
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("The study ended because it was interrupted before any trial had ended.")
    assert said.endswith("the same command goes on where it stopped.")


def trials_of(job: Planned, *outcomes: Outcome) -> list[Trial]:
    return [
        Trial(number=number, plan=plan, outcome=outcome, started_at=0.0, wall_s=1.0)
        for number, (plan, outcome) in enumerate(zip(job.space.plans, outcomes, strict=False))
    ]


def test_trials_that_failed_are_not_called_too_large(job: Path) -> None:
    job_of = planned(job)
    said = nothing_measured(job_of, trials_of(job_of, FAILED, TIMED_OUT, FAILED))
    assert said == "none of 3 trials was measured: 2 failed, 1 timed out"


def test_no_prediction_is_blamed_where_plans_were_predicted_to_fit(job: Path) -> None:
    job_of = planned(job)
    said = nothing_measured(job_of, trials_of(job_of, OOM))
    assert said == "none of 1 trials was measured: 1 out of memory"


def test_what_the_smallest_plan_needs_is_said_where_memory_was_short_as_predicted(
    job: Path,
) -> None:
    job.write_text(job.read_text().replace("1GiB", "1KiB"))
    job_of = planned(job)
    assert "is predicted to fit" in nothing_measured(job_of, trials_of(job_of, OOM))
    assert "is predicted to fit" not in nothing_measured(job_of, trials_of(job_of, FAILED))
