"""What the command line refuses: in one sentence, with exit 2, and before a folder is made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.tiny_job import job_file
from tuner.cli.main import main
from tuner.cli.replay_rows import _clauses
from tuner.errors import UserError
from tuner.sweep_table import _number


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--storage", ""], "--storage must be the URL"),
        (["--storage", "x"], "--storage must be the URL"),
        (["--storage", "sqlite://"], "outlives the command"),
        (["--storage", "sqlite:///"], "outlives the command"),
        (["--storage", "sqlite:///:memory:"], "outlives the command"),
        (["--seed", "-1"], "--seed must be a whole number from 0"),
        (["--seed", str(2**32)], "--seed must be a whole number from 0"),
        (["--storage", "sqlite:////nowhere/at/all.db"], "unable to open database file"),
        (["--storage", "postgresql://127.0.0.1:1/x"], "Connection refused"),
        (["--warm-start", "nope"], "nope must be a table"),
    ],
)
def test_a_refused_study_leaves_no_folder(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study"
    command = ["tune", str(job_file(tmp_path)), "--runner", "simulated", "--study", str(study)]
    assert main([*command, *options]) == 2
    assert said in capsys.readouterr().err
    assert not study.exists()


@pytest.mark.parametrize("seed", ["-1", str(2**32)])
def test_a_replay_takes_the_same_seeds(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "x.csv", "--seed", seed]) == 2
    assert "--seed must be a whole number from 0" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["http://[::1", "http://host:port"])
def test_an_address_that_is_no_url_is_refused(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = str(job_file(tmp_path))
    study = str(tmp_path / "study")
    assert main(["submit", job, "--address", address, "--study", study]) == 2
    assert "--address must be http://HOST:PORT" in capsys.readouterr().err


def test_a_file_is_no_study_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("report", "verify", "soak"):
        assert main([command, str(job_file(tmp_path))]) == 2
        assert "must be a study folder, but it is a file" in capsys.readouterr().err


def test_a_column_is_asked_for_once() -> None:
    with pytest.raises(UserError, match="'tp' twice"):
        _clauses("tp=1,tp=2")


@pytest.mark.parametrize("cell", ["inf", "1e400", "nan", "0", "-1"])
def test_a_time_that_is_none_is_no_number(cell: str) -> None:
    assert _number(cell) is None


SWEEP = Path(__file__).parents[2] / "examples/sweeps/gpt-3.6b-64xa100.csv"


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay", str(SWEEP), "--trials", "2", "--json"],
        ["--help"],
        ["tune", "--help"],
        ["--version"],
    ],
    ids=["document", "help", "help of a command", "version"],
)
@pytest.mark.parametrize("buffer_chars", [-1, 1], ids=["at the end", "at once"])
def test_a_full_standard_output_is_said_in_one_sentence(
    arguments: list[str],
    buffer_chars: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Path("/dev/full").open("w", buffering=buffer_chars) as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(arguments) == 1
    said = capsys.readouterr().err
    assert "standard output must be writable" in said
    assert "Traceback" not in said
