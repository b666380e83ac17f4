"""A real Ray of two nodes loses one, or its driver: trials end typed, and nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from runners.ray_runner import RayRunner
from tests.ray_nodes import TwoNodes
from tests.tiny_job import cpu_cluster, tiny_workload
from tuner.launch import Measurement
from tuner.outcome import Phase
from tuner.plan import Backend, ParallelPlan, Precision

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

PLAN = ParallelPlan(backend=Backend.PYTORCH, precision=Precision.FP32)
LIMITS_S = dict.fromkeys(Phase, 120.0)
WAIT_S = 30
TWO_NODES = replace(cpu_cluster(1), num_nodes=2)


def ray_runner(address: str) -> RayRunner:
    measurement = Measurement(warmup_steps=1, steps=3)
    return RayRunner(tiny_workload(), TWO_NODES, measurement, LIMITS_S, address=address)


@contextmanager
def driving(two_nodes: TwoNodes, program: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A driver as a process: Ray reads how to join when it is imported."""
    with subprocess.Popen(
        [sys.executable, "-c", program, two_nodes.address, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, **two_nodes.client_env},
    ) as driver:
        try:
            yield driver
        finally:
            driver.kill()


TRIAL = """
import sys
from pathlib import Path
from tests.runners.test_ray_faults import PLAN, ray_runner
runner = ray_runner(sys.argv[1])
outcome = runner.run(PLAN, Path(sys.argv[2]), lambda phase: print(phase, flush=True))
runner.close()
print(outcome.kind)
"""
AVOIDING = """
import sys
from dataclasses import replace
import ray
from runners.ray_nodes import AvoidedNodes, HeldNodes
from tests.runners.test_ray_faults import TWO_NODES, ray_runner
runner = ray_runner(sys.argv[1])
one = replace(TWO_NODES, num_nodes=1)
for node in ray.nodes():
    if not node["Alive"]:
        continue
    avoided = AvoidedNodes(taken={node["NodeID"]: "python3 of alice has its GPUs"})
    held = HeldNodes.placed(
        one, warm=False, limit_s=60, stopped=lambda: False, avoided=avoided
    )
    print("same" if held.nodes[0].node_id == node["NodeID"] else "other")
    held.end()
try:
    avoided.raise_if_too_few_are_left(2)
except RuntimeError as error:
    print(error)
runner.close()
"""


def ours(two_nodes: TwoNodes) -> list[psutil.Process]:
    """Supervisors, warm processes and ranks on the nodes."""
    found = []
    for process in two_nodes.processes():
        with suppress(psutil.NoSuchProcess):
            line = " ".join(process.cmdline())
            if "NodeSupervisor" in line or "runners.bench" in line:
                found.append(process)
    return found


def test_ranks_and_supervisors_vanish_with_a_driver_that_is_killed(
    two_nodes: TwoNodes, tmp_path: Path
) -> None:
    with driving(two_nodes, TRIAL, tmp_path / "0") as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline()  # a phase: ranks are there
        there = ours(two_nodes)
        driver.kill()
    assert len(there) >= 4  # a supervisor and a rank on each node
    _, alive = psutil.wait_procs(there, timeout=WAIT_S)
    assert alive == []


def test_trials_are_not_placed_on_nodes_that_are_avoided(
    two_nodes: TwoNodes, tmp_path: Path
) -> None:
    with driving(two_nodes, AVOIDING, tmp_path) as driver:
        out, said = driver.communicate()
    *placed, refused = out.splitlines()
    assert placed == ["other", "other"], said
    assert "python3 of alice" in refused


@pytest.mark.slow
def test_a_trial_whose_node_is_lost_is_tried_again_when_the_node_is_back(
    two_nodes: TwoNodes, tmp_path: Path
) -> None:
    with driving(two_nodes, TRIAL, tmp_path / "0") as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline()
        two_nodes.second.kill()
        two_nodes.start_second()
        out, said = driver.communicate()
    assert out.splitlines()[-1] == "measured", said
    assert "Ray lost a node of the trial" in said
    assert (tmp_path / "0" / "first-attempt").is_dir()
