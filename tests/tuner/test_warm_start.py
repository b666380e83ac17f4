"""What a tuning job learns from earlier studies and measured tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tiny_job import LLAMA_CONFIG
from tuner.cli.main import main

MODEL = LLAMA_CONFIG | {"vocab_size": 256, "hidden_size": 32}


def job(folder: Path, **workload: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(MODEL))
    values = {
        "workload": {"model": "config.json", "seq_len": 16, "global_batch": 4} | workload,
        "cluster": {"gpu": "cpu", "gpus_per_node": 2},
        "search": {"precision": ["fp32"], "micro_batch": [1, 2]},
        "memory": {"limit": "1GiB"},
        "measure": {"warmup_steps": 1, "steps": 2},
        "budget": {"trials": 8},
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def tune(path: Path, study: Path, *options: str) -> int:
    command = ["tune", str(path), "--study", str(study), "--runner", "simulated", "--json"]
    return main([*command, *options])


def test_a_study_of_the_same_job_is_learnt_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = job(tmp_path)
    assert tune(path, tmp_path / "first") == 0
    first = json.loads(capsys.readouterr().out)
    assert tune(path, tmp_path / "second", "--warm-start", str(tmp_path / "first")) == 0
    second = json.loads(capsys.readouterr().out)
    plans = [trial["plan"] for trial in second["trials"]]
    # The frameworks' defaults come first, for comparison.
    assert plans.index(first["best"]["plan"]) <= 3


def test_a_study_of_nothing_but_the_plan_in_use_is_learnt_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That plan is legal for it is in use, though the search leaves its framework out."""
    path = job(tmp_path)
    path.write_text(path.read_text().replace("search:", "search:\n  backend: [pytorch]"))
    in_use = tmp_path / "ds.json"
    in_use.write_text(json.dumps({"train_micro_batch_size_per_gpu": 2}))
    baseline = ("--baseline", str(in_use))
    assert tune(path, tmp_path / "first", *baseline, "--trials", "1") == 0
    tried = json.loads(capsys.readouterr().out)["trials"]
    assert [trial["plan"]["backend"] for trial in tried] == ["deepspeed"]
    warm = ("--warm-start", str(tmp_path / "first"))
    assert tune(path, tmp_path / "second", *baseline, *warm) == 0


def test_a_study_of_another_batch_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(job(tmp_path / "a", global_batch=8), tmp_path / "first") == 0
    capsys.readouterr()
    warm = ("--warm-start", str(tmp_path / "first"))
    assert tune(job(tmp_path / "b"), tmp_path / "second", *warm) == 2
    said = capsys.readouterr().err
    assert "same workload" in said
    assert "global_batch" in said


def test_a_folder_that_is_no_study_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    warm = ("--warm-start", str(tmp_path / "empty"))
    assert tune(job(tmp_path), tmp_path / "study", *warm) == 2
    assert "must be a study folder or a CSV file" in capsys.readouterr().err


def test_a_table_of_another_model_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "sweep.csv"
    table.write_text(
        "model,hidden,layers,heads,ffn,vocab,gpu,gpus,seq,global_batch,step_time_s,outcome\n"
        "gpt-x,1024,24,16,4096,50257,h100-sxm-80gb,8,1024,64,1.5,measured\n"
    )
    warm = ("--warm-start", str(table))
    assert tune(job(tmp_path), tmp_path / "study", *warm) == 2
    said = capsys.readouterr().err
    assert "must hold rows of this job" in said
    assert "gpt-x" in said
