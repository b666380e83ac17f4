"""`paratune tune` as a user runs it: JSON, exit codes, resume, interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.tiny_job import LLAMA_CONFIG
from tuner.cli.folder_summary import folder_summary
from tuner.cli.main import main
from tuner.cli.report_extras import report_extras
from tuner.study_folder import StudyFolder

MODEL = LLAMA_CONFIG | {"vocab_size": 256, "hidden_size": 32}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A small job on two CPU ranks."""
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    values: dict[str, Any] = {
        "workload": {"model": "config.json", "seq_len": 16, "global_batch": 4},
        "cluster": {"gpu": "cpu", "gpus_per_node": 2},
        "search": {"precision": ["fp32"], "micro_batch": [1, 2]},
        "memory": {"limit": "1GiB"},
        "measure": {"warmup_steps": 1, "steps": 2, "max_steps": 4, "finals": 0},
        "budget": {"trials": 6},
    }
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def tune(job: Path, *options: str) -> int:
    study = str(job.parent / "study")
    return main(["tune", str(job), "--study", study, "--runner", "simulated", *options])


def test_the_json_document_holds_the_contract(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(job, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    best = document["best"]
    assert best["source"] == "simulated"
    low, high = best["step_time_ci_s"]
    assert low <= best["step_time_s"] <= high
    assert best["tokens_per_s_per_gpu"] == pytest.approx(4 * 16 / best["step_time_s"] / 2)
    assert best["peak_memory_bytes"] > 0
    assert len(document["trials"]) == 6
    measured = [t["step_time_s"] for t in document["trials"] if t["outcome"] == "measured"]
    assert min(measured) == best["step_time_s"]
    assert document["waterfall"]["num_legal"] > 6
    assert Path(document["study"]) == job.parent / "study"


def test_running_again_resumes_and_more_trials_are_added(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tune(job, "--json", "--sampler", "random")
    first = json.loads(capsys.readouterr().out)["trials"]
    tune(job, "--json", "--sampler", "random", "--trials", "8")
    second = json.loads(capsys.readouterr().out)["trials"]
    assert second[:6] == first
    assert len(second) == 8


def test_the_best_folder_holds_what_the_winning_trial_ran(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tune(job, "--json")
    number = json.loads(capsys.readouterr().out)["best"]["trial"]
    study = job.parent / "study"
    for path in (study / "trials" / f"{number:04d}" / "launch").iterdir():
        assert (study / "best" / path.name).read_bytes() == path.read_bytes()


def test_a_study_folder_of_another_job_is_refused(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tune(job)
    job.write_text(job.read_text().replace("global_batch: 4", "global_batch: 8"))
    capsys.readouterr()
    assert tune(job) == 2
    said = capsys.readouterr().err
    assert "same job" in said
    assert "--study" in said


def test_simulated_and_measured_trials_do_not_meet_in_a_folder(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tune(job)
    study = str(job.parent / "study")
    assert main(["tune", str(job), "--study", study, "--runner", "local"]) == 2
    assert "simulated" in capsys.readouterr().err


def test_the_report_is_made_again_from_the_folder(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tune(job, "--json")
    told = json.loads(capsys.readouterr().out)
    report = job.parent / "study" / "report.md"
    text = report.read_text()
    report.unlink()
    assert main(["report", str(job.parent / "study"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == told
    assert report.read_text() == text


def test_the_report_shows_what_was_predicted_of_the_trials_beside_what_came_of_them(
    job: Path,
) -> None:
    assert tune(job) == 0
    folder = StudyFolder(job.parent / "study")
    summary = folder_summary(folder)
    extras = report_extras(folder, summary)
    assert extras.predictions.keys() == {trial.number for trial in summary.trials}
    assert all(predicted.step_time_s > 0 for predicted in extras.predictions.values())
    assert extras.terms.keys() == {ranked.number for ranked in summary.ranking}
    assert 'id="predicted"' in (folder.path / "report.html").read_text()


def test_a_report_needs_neither_the_model_file_nor_transformers(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tune(job) == 0
    monkeypatch.delattr("tuner.hf_file.config_read_apart")
    for config in (job.parent / "study").glob("trials/*/launch/config.json"):
        config.unlink()
    assert main(["report", str(job.parent / "study")]) == 0
    assert 'id="predicted"' in (job.parent / "study" / "report.html").read_text()


def test_a_finished_study_is_shown_again_without_a_runner_or_transformers(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(job, "--json") == 0
    told = json.loads(capsys.readouterr().out)

    def refuse(*_: object) -> None:
        raise AssertionError("nothing is left to run")

    monkeypatch.setattr("tuner.cli.tune_command.runner_named", refuse)
    monkeypatch.setattr("tuner.hf_apart.config_read", refuse)
    assert tune(job, "--json") == 0
    assert json.loads(capsys.readouterr().out) == told


def test_when_nothing_is_legal_every_rule_is_named_and_nothing_runs(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = yaml.safe_load(job.read_text())
    values["search"] = {"tp": [3]}
    job.write_text(yaml.safe_dump(values))
    assert tune(job) == 2
    told = capsys.readouterr().err
    assert "tp must divide the GPUs of an NVLink domain (2), got 3; try 1, 2" in told
    assert "leave search.tp auto" in told
    assert not (job.parent / "study").exists()


def test_when_nothing_fits_the_exit_code_is_1_and_the_need_is_named(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job.write_text(job.read_text().replace("1GiB", "1KiB"))
    assert tune(job) == 1
    assert "1.00 KiB" in capsys.readouterr().out


def test_a_second_driver_on_the_same_folder_is_refused(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tuner.study_folder import StudyFolder

    folder = StudyFolder(job.parent / "study")
    folder.create()
    with folder.locked():
        assert tune(job) == 2
    assert str(os.getpid()) in capsys.readouterr().err


def test_a_dry_run_shows_the_files_and_starts_nothing(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(job, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "training.json" in shown
    assert not (job.parent / "study").exists()


@pytest.mark.ray
def test_a_real_study_on_ray_over_all_three_frameworks(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = str(job.parent / "study")
    assert main(["tune", str(job), "--study", study, "--trials", "3", "--no-verify", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [trial["outcome"] for trial in document["trials"]] == ["measured"] * 3
    backends = {trial["plan"]["backend"] for trial in document["trials"]}
    assert backends == {"pytorch", "deepspeed", "megatron"}
    assert document["best"]["source"] == "measured"


def _heed_ctrl_c() -> None:
    """A shell's background job ignores SIGINT, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.ranks
def test_ctrl_c_ends_in_order_and_the_same_command_goes_on(job: Path) -> None:
    study = job.parent / "study"
    command = [sys.executable, "-m", "tuner", "tune", str(job), "--study", str(study)]
    command += ["--runner", "local", "--trials", "1"]
    driver = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=_heed_ctrl_c,
    )
    assert driver.stderr is not None
    assert "trial 0 (1 of 1)" in driver.stderr.readline()
    process = psutil.Process(driver.pid)
    ranks: list[psutil.Process] = []
    while len(ranks) < 2 and driver.poll() is None:
        # Forked from a warm process, which is the driver's own child.
        ranks = [rank for child in process.children() for rank in child.children()]
    driver.send_signal(signal.SIGINT)
    out, _ = driver.communicate(timeout=60)
    assert driver.returncode == 130
    assert "the same command goes on" in " ".join(out.split())
    _, alive = psutil.wait_procs(ranks, timeout=5)
    assert not alive
    again = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    assert len(json.loads(again.stdout)["trials"]) == 1


def test_trials_are_not_run_for_another_stack(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = yaml.safe_load(job.read_text())
    values["stack"] = {"transformer-engine": "2.8"}
    job.write_text(yaml.safe_dump(values))
    study = str(job.parent / "study")
    assert main(["tune", str(job), "--study", study, "--runner", "local"]) == 2
    told = capsys.readouterr().err
    assert "stack.transformer-engine must be what is installed here (none)" in told
    assert "got 2.8" in told
