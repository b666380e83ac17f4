"""A real cluster of two raylets: the ranks of one trial on both, for all frameworks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from runners.placement import PLACEMENT_FILE
from tests.ray_nodes import TwoNodes, listening_hosts
from tests.tiny_job import NO_CONFIG, job_file

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


SEARCH = {"zero_stage": 0, "micro_batch": 2, "tp": 1, "pp": 1, "precision": "fp32"}
"""Little more than one plan of each framework."""


def nodes_of_one_rank(num_nodes: int) -> dict[str, object]:
    return {"gpu": "cpu", "num_nodes": num_nodes, "gpus_per_node": 1}


@contextmanager
def tuning(
    cluster: TwoNodes, job: Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tuner", "tune", str(job), "--ray-address", cluster.address]
    study = ["--study", str(job.parent / "study"), "--no-verify", "--json"]
    process = subprocess.Popen(
        [*command, *study],
        env={**os.environ, **(cluster.client_env if env is None else env)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def tune(cluster: TwoNodes, job: Path, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Exit code and what was said."""
    with tuning(cluster, job, env) as process:
        _, said = process.communicate()  # pytest-timeout bounds it
        return process.returncode, said


def test_the_ranks_of_every_framework_run_on_both_nodes(
    two_nodes: TwoNodes, tmp_path: Path
) -> None:
    job = job_file(tmp_path, cluster=nodes_of_one_rank(2), search=SEARCH)
    raylet_of: dict[int, int] = {}
    with tuning(two_nodes, job) as process:
        while process.poll() is None:  # pytest-timeout bounds it
            for node in two_nodes.nodes:
                raylet = node.raylet
                with suppress(psutil.NoSuchProcess):  # a child that ends while it is looked at
                    children = raylet.children(recursive=True)
                    raylet_of |= {child.pid: raylet.pid for child in children}
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
        out, said = process.communicate()
    assert process.returncode == 0, said
    trials = json.loads(out)["trials"]
    assert {t["plan"]["backend"] for t in trials} == {"pytorch", "deepspeed", "megatron"}
    assert [t["outcome"] for t in trials] == ["measured"] * 3
    seen: list[int | None] = []
    for folder in (tmp_path / "study" / "trials").iterdir():
        reports = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
        assert [report["status"] for report in reports] == ["ok", "ok"]
        ranks = json.loads((folder / PLACEMENT_FILE).read_text())["ranks"]
        assert len({rank["ray_node_id"] for rank in ranks}) == 2
        # A rank of a tiny model may have gone before it was seen: those that were seen must agree.
        seen += [raylet_of.get(report["pid"]) for report in reports]
    assert {raylet for raylet in seen if raylet is not None} == {
        node.raylet.pid for node in two_nodes.nodes
    }


def test_more_nodes_than_there_are_are_refused_before_a_folder_is_made(
    two_nodes: TwoNodes, tmp_path: Path
) -> None:
    job = job_file(tmp_path, workload=NO_CONFIG, cluster=nodes_of_one_rank(3))
    code, said = tune(two_nodes, job)
    assert code == 2
    assert "it needs 3 nodes with 1 CPU each, but the Ray has 2 nodes with 4 CPUs" in said
    assert "what would fit is cluster: 2x1 cpu" in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "study").exists()


def test_a_missing_token_is_named(two_nodes: TwoNodes, tmp_path: Path) -> None:
    without = {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    code, said = tune(two_nodes, job_file(tmp_path, workload=NO_CONFIG), env=without)
    assert code == 2
    assert "must be given Ray's token, but RAY_AUTH_MODE is disabled here" in said
    assert not (tmp_path / "study").exists()


def test_another_ray_than_that_of_the_cluster_is_named(two_nodes: TwoNodes, tmp_path: Path) -> None:
    """As far as a process with another version of Ray gets: Ray itself compares them."""
    (tmp_path / "sitecustomize.py").write_text("import ray; ray.__version__ = '2.59.0'")
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    code, said = tune(
        two_nodes,
        job_file(tmp_path, workload=NO_CONFIG),
        env={**two_nodes.client_env, "PYTHONPATH": path},
    )
    assert code == 2
    assert "must have the Ray and the Python of the cluster" in said
    assert "Ray: 2.59.0" in said


def test_the_cluster_of_the_tests_listens_on_loopback_alone(two_nodes: TwoNodes) -> None:
    assert listening_hosts(two_nodes.processes()) == ["127.0.0.1"]
