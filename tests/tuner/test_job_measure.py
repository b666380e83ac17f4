"""``measure`` of a job reaches the launch files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runners.backends.launch import launch_for
from tests.tiny_job import LLAMA_CONFIG, cpu_cluster
from tuner.job import job_of
from tuner.launch import TRAINING_FILE
from tuner.plan import Backend, ParallelPlan

EXPERTS = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}


@pytest.mark.parametrize("backend", Backend)
@pytest.mark.parametrize(("measure", "routing"), [({}, "learned"), ({"routing": "worst"}, "worst")])
def test_the_routing_that_is_asked_for_is_launched(
    measure: dict[str, Any], routing: str, backend: Backend, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_CONFIG | EXPERTS))
    values = {
        "workload": {"model": "config.json", "seq_len": 32, "global_batch": 8},
        "measure": measure,
    }
    job = job_of(values, tmp_path / "job.yaml", lambda: cpu_cluster(2))
    plan = ParallelPlan.from_dict({"backend": str(backend), "precision": "fp32"})
    spec = launch_for(plan, job.workload, job.cluster, job.measurement)
    (text,) = (file.text for file in spec.files if file.name == TRAINING_FILE)
    assert json.loads(text)["routing"] == routing
    assert job.resolved["measure"]["routing"] == routing
