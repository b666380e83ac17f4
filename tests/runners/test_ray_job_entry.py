"""What runs on the head says in one sentence why it cannot run the study there."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from runners import ray_job_entry
from runners.environment import own_version
from runners.ray_job_entry import LOWEST_PYTHON, unsuitable


def test_the_python_that_submits_would_do() -> None:
    assert unsuitable(own_version()) is None


def test_the_lowest_python_is_that_of_the_distribution() -> None:
    lowest = importlib.metadata.metadata("paratune")["Requires-Python"]
    assert lowest == f">={'.'.join(map(str, LOWEST_PYTHON))}"


def test_another_paratune_is_named_with_both_versions() -> None:
    said = unsuitable("9.9.9")
    assert said is not None
    assert "9.9.9" in said
    assert f"has {own_version()}" in said


def test_an_old_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_job_entry, "LOWEST_PYTHON", (3, 99))
    said = unsuitable(own_version())
    assert said is not None
    assert said.startswith("the cluster must have Python 3.99 or newer")
    assert sys.executable in said


def test_a_missing_paratune_ends_it_with_one_sentence_and_code_2(tmp_path: Path) -> None:
    entry = tmp_path / "entry.py"  # alone, as it arrives there
    entry.write_text(Path(ray_job_entry.__file__).read_text())
    command = [sys.executable, "-I", "-S", str(entry)]  # without the installed packages
    arguments = ["--study", "~/x", "--paratune", "1.2.3", "--", "job.yaml", "--trials", "3"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("paratune: paratune 1.2.3 must be installed on every node")
    assert len(done.stderr.splitlines()) == 1
