"""A study whose folder cannot be written: a sentence, nothing lost, and it goes on later."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tiny_job import LLAMA_CONFIG
from tuner.cli.main import main
from tuner.kept_files import write_atomically


def tune(work: Path, study: Path, trials: int) -> int:
    (work / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    values: dict[str, Any] = {
        "workload": {"model": "config.json", "seq_len": 16, "global_batch": 4},
        "cluster": {"gpu": "cpu", "gpus_per_node": 2},
        "search": {"precision": ["fp32"], "micro_batch": [1, 2]},
        "memory": {"limit": "1GiB"},
    }
    (work / "job.yaml").write_text(yaml.safe_dump(values))
    words = ["tune", str(work / "job.yaml"), "--study", str(study), "--runner", "simulated"]
    return main([*words, "--sampler", "random", "--trials", str(trials), "--quiet", "--json"])


def trials_of(study: Path) -> list[dict[str, Any]]:
    paths = sorted(study.glob("trials/*/trial.json"))
    return [json.loads(path.read_text()) for path in paths]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 100 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    options = "size=100k,mode=700"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def remount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)


def test_a_full_disk_ends_the_study_and_room_lets_it_go_on(
    tmp_path: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = small_disk / "study"
    assert tune(tmp_path, study, 20) == 1
    told = capsys.readouterr().err
    assert "No space left on device" in told
    assert "make room, and the same command goes on" in told
    assert "Traceback" not in told
    kept = trials_of(study)
    assert 0 < len(kept) < 20
    assert f"the {len(kept)} trials that ended are kept" in told
    remount(small_disk, "size=20m")
    assert tune(tmp_path, study, 20) == 0
    whole = trials_of(study)
    assert whole[: len(kept)] == kept
    assert tune(tmp_path, tmp_path / "undisturbed", 20) == 0
    undisturbed = trials_of(tmp_path / "undisturbed")
    assert [trial["plan"] for trial in whole] == [trial["plan"] for trial in undisturbed]


def test_a_read_only_folder_is_refused_in_a_sentence(
    tmp_path: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = small_disk / "study"
    remount(small_disk, "size=20m")
    assert tune(tmp_path, study, 3) == 0
    remount(small_disk, "ro")
    capsys.readouterr()
    assert tune(tmp_path, study, 5) == 2
    told = capsys.readouterr().err
    assert "Read-only file system" in told
    assert "--study" in told
    assert "Traceback" not in told


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_trial_that_cannot_be_written_is_run_again_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    study = tmp_path / "study"

    def full(path: Path, content: bytes) -> None:
        if path.parent.name == "0003":
            raise OSError(number, os.strerror(number), str(path))
        write_atomically(path, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tuner.study_folder.write_atomically", full)
        assert tune(tmp_path, study, 6) == 1
    told = capsys.readouterr().err
    assert os.strerror(number) in told
    assert "the 3 trials that ended are kept" in told
    assert tune(tmp_path, study, 6) == 0
    assert [trial["number"] for trial in trials_of(study)] == list(range(6))
