"""A real Ray of two nodes loses one, or its driver: trials end typed, and nothing is left."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import ray

from runners.ray_loopback import on_loopback
from runners.ray_nodes import AvoidedNodes, HeldNodes
from runners.ray_runner import RayRunner
from tests.ray_nodes import TwoNodes
from tests.tiny_job import cpu_cluster, tiny_workload
from tuner.launch import Measurement
from tuner.outcome import Measured, Phase
from tuner.plan import Backend, ParallelPlan, Precision

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

PLAN = ParallelPlan(backend=Backend.PYTORCH, precision=Precision.FP32)
LIMITS_S = dict.fromkeys(Phase, 120.0)
WAIT_S = 30
TWO_NODES = replace(cpu_cluster(1), num_nodes=2)


def ray_runner(address: str) -> RayRunner:
    measurement = Measurement(warmup_steps=1, steps=3)
    return RayRunner(tiny_workload(), TWO_NODES, measurement, LIMITS_S, address=address)


@pytest.fixture
def runner(two_nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayRunner]:
    for name, value in two_nodes.client_env.items():
        monkeypatch.setenv(name, value)
    with on_loopback():  # the environment says so too, but Ray read it when it was imported
        started = ray_runner(two_nodes.address)
    yield started
    started.close()


DRIVER = """
import sys
from pathlib import Path
from tests.runners.test_ray_faults import PLAN, ray_runner
ray_runner(sys.argv[1]).run(PLAN, Path(sys.argv[2]), lambda phase: print(phase, flush=True))
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
    command = [sys.executable, "-c", DRIVER, two_nodes.address, str(tmp_path / "0")]
    root = Path(__file__).parents[2]
    env = {**os.environ, **two_nodes.client_env}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root, env=env) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline()  # a phase: ranks are there
        there = ours(two_nodes)
        driver.kill()
    assert len(there) >= 4  # a supervisor and a rank on each node
    _, alive = psutil.wait_procs(there, timeout=WAIT_S)
    assert alive == []


def test_trials_are_not_placed_on_nodes_that_are_avoided(
    two_nodes: TwoNodes, runner: RayRunner
) -> None:
    one = replace(TWO_NODES, num_nodes=1)
    for node in ray.nodes():
        avoided = AvoidedNodes(taken={node["NodeID"]: "python3 of alice has its GPUs"})
        held = HeldNodes.placed(
            one, warm=False, limit_s=WAIT_S, stopped=lambda: False, avoided=avoided
        )
        assert held.nodes[0].node_id != node["NodeID"]
        held.end()
        with pytest.raises(RuntimeError, match="python3 of alice"):
            avoided.raise_if_too_few_are_left(2)


def test_a_trial_whose_node_is_lost_is_tried_again_when_the_node_is_back(
    two_nodes: TwoNodes,
    runner: RayRunner,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    back = threading.Thread(target=two_nodes.start_second)

    def lose_the_second_node(phase: Phase) -> None:
        if phase is not Phase.START and back.ident is None:
            two_nodes.second.kill()
            back.start()

    with caplog.at_level(logging.WARNING):
        outcome = runner.run(PLAN, tmp_path / "0", lose_the_second_node)
    back.join()
    assert isinstance(outcome, Measured)
    assert "Ray lost a node of the trial" in caplog.text
    assert (tmp_path / "0" / "first-attempt").is_dir()
