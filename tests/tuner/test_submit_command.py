"""`paratune submit` refuses what it can see for itself, in one sentence."""

from __future__ import annotations

import argparse
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runners.ray_jobs import JobState
from tests.tiny_job import job_file
from tuner.cli import submit_command
from tuner.cli.main import main
from tuner.cli.submit_command import PASSED, add_arguments


def test_every_option_of_a_study_goes_along() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    known = set(vars(parser.parse_args(["--address", "http://head:8265"])))
    packed = {"baseline", "baseline_arguments", "warm_start"}
    own = {"job", "address", "study", "remote_study", "attach", "detach", "quiet", "json"}
    assert known == {*PASSED, *packed, *own}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "JOB.yaml, or --attach ID"),
        (["job.yaml", "--attach", "x"], "JOB.yaml, or --attach ID"),
        (["job.yaml", "--runner", "local"], "needs --runner ray"),
        (["job.yaml", "--storage", "postgresql://me:secret@db/x"], "must not hold a password"),
        (["job.yaml", "--remote-study", "here"], "must begin with / or ~"),
        (["job.yaml"], "the job file job.yaml must be a file that can be read"),
    ],
)
def test_a_mistake_of_the_command_line_is_one_sentence(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "--address", "http://127.0.0.1:1", *options]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert "secret" not in message


def test_a_study_of_this_machine_is_not_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = job_file(tmp_path)
    study = str(tmp_path / "study")
    assert main(["tune", str(job), "--study", study, "--runner", "simulated", "--quiet"]) == 0
    before = sorted(Path(study).rglob("*"))
    capsys.readouterr()
    assert main(["submit", str(job), "--study", study, "--address", "http://127.0.0.1:1"]) == 2
    assert "must be new, or one that came back" in capsys.readouterr().err
    assert sorted(Path(study).rglob("*")) == before


class EndedJobs:
    """A cluster on which the job has ended well."""

    address = "http://head:8265"

    def submitted(self, job: str) -> tuple[str, str]:
        return "mine", "~/mine"

    def follow(self, job: str, say: Callable[[str], None]) -> JobState:
        return JobState(job=job, status="SUCCEEDED", exit_code=0, message="", metadata={})

    def study_archive(self, study: str) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_cannot_be_brought_back_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(submit_command, "_connected", lambda _: EndedJobs())
    study = str(tmp_path / "study")
    submit = ["submit", "--attach", "x", "--address", EndedJobs.address, "--study", study]
    assert main(submit) == 1
    said = capsys.readouterr().err
    assert "No space left on device; what is on the cluster stays there, try again with" in said
    assert f"paratune {' '.join(submit[:1])} --address {EndedJobs.address} --attach x" in said
