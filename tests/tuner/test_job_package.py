"""What is sent to a cluster: the files that job and options name, and nothing else."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tiny_job import LLAMA_CONFIG
from tuner.cli import job_package
from tuner.cli.job_package import JobPackage, pack_baseline, pack_job, pack_warm_starts
from tuner.errors import UserError
from tuner.job import Job, read_job
from tuner.job_cluster import cpu_cluster_of_this_machine


def written(path: Path, text: str = "{}") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def job_file(path: Path, model: str, **workload: Any) -> tuple[Path, Job]:
    values = {"workload": {"model": model, "seq_len": 16, "global_batch": 4, **workload}}
    written(path, yaml.safe_dump(values))
    return path, read_job(path, cpu_cluster_of_this_machine)


def test_a_model_lies_to_its_job_as_it_does_here(tmp_path: Path) -> None:
    written(tmp_path / "models" / "tiny" / "config.json", json.dumps(LLAMA_CONFIG))
    path, job = job_file(tmp_path / "jobs" / "mine.yaml", "../models/tiny")
    package = JobPackage()
    assert pack_job(package, path, job) == "jobs/mine.yaml"
    assert set(package.files) == {"jobs/mine.yaml", "models/tiny/config.json"}


def test_a_preset_needs_only_the_job_file(tmp_path: Path) -> None:
    path, job = job_file(tmp_path / "mine.yaml", "llama-3-8b")
    package = JobPackage()
    assert pack_job(package, path, job) == "mine.yaml"
    assert list(package.files) == ["mine.yaml"]
    assert package.text().startswith("1 file, ")


def test_a_model_by_an_absolute_path_is_refused_with_its_key(tmp_path: Path) -> None:
    model = written(tmp_path / "config.json", json.dumps(LLAMA_CONFIG))
    path, job = job_file(tmp_path / "mine.yaml", str(model))
    with pytest.raises(UserError, match=r"workload.model must be a path relative to the job file"):
        pack_job(JobPackage(), path, job)


@pytest.fixture
def own_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of the user in his current folder."""
    for name in ("__init__.py", "deep/model.py", "__pycache__/x.pyc", "deep/.git/config"):
        written(tmp_path / "paratune_test_model" / name, "")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_factory_brings_its_whole_package_and_no_waste(own_package: Path) -> None:
    path, job = job_file(
        own_package / "mine.yaml", "paratune_test_model.deep.model:make", vocab_size=64
    )
    package = JobPackage()
    pack_job(package, path, job)
    assert set(package.files) == {
        "mine.yaml",
        "paratune_test_model/__init__.py",
        "paratune_test_model/deep/model.py",
    }
    assert "mine.yaml" in package.text()
    assert "paratune_test_model/" in package.text()


def test_a_factory_of_an_installed_package_is_left_to_the_nodes(tmp_path: Path) -> None:
    path, job = job_file(tmp_path / "mine.yaml", "transformers.models:make", vocab_size=64)
    package = JobPackage()
    pack_job(package, path, job)
    assert list(package.files) == ["mine.yaml"]


def test_a_factory_that_is_nowhere_is_refused(tmp_path: Path) -> None:
    path, job = job_file(tmp_path / "mine.yaml", "no_such_package:make", vocab_size=64)
    with pytest.raises(UserError, match="there is no no_such_package"):
        pack_job(JobPackage(), path, job)


def test_equal_files_make_an_equal_zip_whenever_they_were_written(tmp_path: Path) -> None:
    zips = []
    for name in ("a", "b"):
        package = JobPackage()
        package.add(written(tmp_path / name / "job.yaml", "the same"), "job.yaml")
        (tmp_path / name / "job.yaml").touch()
        package.write(tmp_path / f"{name}.zip")
        zips.append((tmp_path / f"{name}.zip").read_bytes())
    assert zips[0] == zips[1]
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.read("job.yaml") == b"the same"


def test_a_package_that_is_too_large_is_refused_with_the_largest_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_package, "LIMIT_BYTES", 2**20)
    package = JobPackage()
    package.add(written(tmp_path / "weights.bin", "x" * (3 * 2**20)), "weights.bin")
    with pytest.raises(
        UserError, match=r"at most 1.00 MiB, got 3.00 MiB, most of it .*weights.bin"
    ):
        package.write(tmp_path / "zip")
    assert not (tmp_path / "zip").exists()


def test_a_baseline_brings_the_file_that_it_names(tmp_path: Path) -> None:
    written(tmp_path / "ds" / "zero.json")
    named = {"deepspeed_config": {"deepspeed_config_file": "ds/zero.json"}}
    file = written(tmp_path / "accelerate.yaml", yaml.safe_dump(named))
    package = JobPackage()
    assert pack_baseline(package, file) == "baseline/accelerate.yaml"
    assert set(package.files) == {"baseline/accelerate.yaml", "baseline/ds/zero.json"}


def test_a_baseline_that_names_a_file_elsewhere_is_refused(tmp_path: Path) -> None:
    named = {"deepspeed_config": {"deepspeed_config_file": "../zero.json"}}
    file = written(tmp_path / "a" / "accelerate.yaml", yaml.safe_dump(named))
    with pytest.raises(UserError, match=r"deepspeed_config_file must lie beside .* got ../zero"):
        pack_baseline(JobPackage(), file)


def test_a_study_to_learn_from_brings_its_trials_without_logs(tmp_path: Path) -> None:
    for name in ("job.json", "trials/0000/trial.json", "trials/0000/rank-0.log"):
        written(tmp_path / "study" / name)
    table = written(tmp_path / "sweep.csv", "")
    package = JobPackage()
    packed = list(pack_warm_starts(package, [tmp_path / "study", table]))
    assert packed == ["warm-start-0", "warm-start-1/sweep.csv"]
    assert set(package.files) == {
        "warm-start-0/job.json",
        "warm-start-0/trials/0000/trial.json",
        "warm-start-1/sweep.csv",
    }
