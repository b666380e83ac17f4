"""Every example job parses and plans, without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuner.cli.main import main

ROOT = Path(__file__).parents[1]
JOBS = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("job", JOBS, ids=[job.name for job in JOBS])
def test_an_example_plans(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plans", str(job), "--top", "3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["num_fitting"] > 0
    first = document["plans"][0]
    assert first["fits"] is True
    pairs = ",".join(f"{name}={value}" for name, value in first["plan"].items())
    assert main(["explain", str(job), "--plan", pairs, "--json"]) == 0
    explained = json.loads(capsys.readouterr().out)
    assert explained["legal"] is True
    total = sum(explained["memory_bytes"].values())
    assert total == pytest.approx(first["predicted_peak_memory_bytes"], rel=1e-6)


def test_explain_names_every_rule_that_a_plan_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    job = str(ROOT / "examples" / "llama-3-8b-8xh100.yaml")
    assert main(["explain", job, "--plan", "backend=megatron,tp=3,zero_stage=3", "--json"]) == 1
    rules = {entry["rule"] for entry in json.loads(capsys.readouterr().out)["rejections"]}
    assert {"G-02", "G-03", "S-01", "MC-90"} <= rules


def test_explain_refuses_an_unknown_knob(capsys: pytest.CaptureFixture[str]) -> None:
    job = str(ROOT / "examples" / "tiny-cpu.yaml")
    assert main(["explain", job, "--plan", "tensor=2"]) == 2
    assert "tensor" in capsys.readouterr().err
