"""Real trials of a tiny model through a local Ray; afterwards Ray holds nothing of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import ray
from ray._private import state  # the public state API needs the dashboard
from ray.util.placement_group import placement_group_table

from runners import ray_runner as ray_runner_module
from runners.bench.warm_process import NO_TOKEN, TOKEN_VARIABLE
from runners.ray_runner import RayRunner
from tests.ray_nodes import listening_hosts
from tests.tiny_job import cpu_cluster, tiny_workload
from tuner.cluster import Cluster, Device
from tuner.errors import UserError
from tuner.launch import Measurement
from tuner.outcome import Failed, Measured, Phase
from tuner.plan import Backend, ParallelPlan, Precision
from tuner.runner import Slots, Stopped

pytestmark = pytest.mark.ray

PLAN = ParallelPlan(backend=Backend.PYTORCH, precision=Precision.FP32, tp=2)
WAIT_S = 60.0
LIMITS_S = dict.fromkeys(Phase, 120.0)
MEASUREMENT = Measurement(warmup_steps=1, steps=2)


def ray_runner(
    address: str | None = None, *, cluster: Cluster | None = None, slots: Slots | None = None
) -> RayRunner:
    return RayRunner(
        tiny_workload(),
        cluster or cpu_cluster(2),
        MEASUREMENT,
        LIMITS_S,
        address=address,
        slots=slots,
    )


def test_an_address_where_nothing_listens_is_named_in_one_sentence() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # bound, so that nobody else listens; never listening itself
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(UserError, match=f"--ray-address must be .* got {address}") as refused:
            ray_runner(address)
    assert "\n" not in str(refused.value)
    assert not ray.is_initialized()


def test_several_nodes_without_an_address_are_refused() -> None:
    with pytest.raises(UserError, match=r"2 nodes needs a running Ray.*--ray-address"):
        ray_runner(cluster=replace(cpu_cluster(2), num_nodes=2))


def test_nodes_that_ray_does_not_have_are_asked_for_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_runner_module, "PLACEMENT_LIMIT_S", 1.0)
    gpu = replace(cpu_cluster(1).gpu, device=Device.CUDA)
    cluster = replace(cpu_cluster(98), gpu=gpu)
    runner = ray_runner(cluster=cluster)
    try:
        with pytest.raises(RuntimeError, match=r"1 Ray node.*'GPU': 98.*this Ray has 1 node"):
            runner.run(PLAN, tmp_path / "0", lambda _: None)
        assert placed_groups() == []
    finally:
        runner.close()


@pytest.fixture(scope="module")
def runner() -> Iterator[RayRunner]:
    started = ray_runner(slots=Slots(count=2))
    yield started
    started.close()
    assert not ray.is_initialized()


def our_ranks() -> list[psutil.Process]:
    """Below this process: Ray's daemons are its children; supervisors and ranks theirs."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # gone meanwhile, or a zombie of Ray's
            if process.environ().get(TOKEN_VARIABLE, NO_TOKEN) != NO_TOKEN:
                found.append(process)
    return found


def supervisors() -> set[str]:
    """Ids of the actors that are alive."""
    actors = state.actors().items()
    return {actor_id for actor_id, actor in actors if actor["State"] != "DEAD"}


def placed_groups() -> list[str]:
    groups = placement_group_table().values()
    return [group["state"] for group in groups if group["state"] != "REMOVED"]


def test_the_ray_of_this_machine_listens_on_loopback_alone(runner: RayRunner) -> None:
    assert listening_hosts([psutil.Process(), *psutil.Process().children(recursive=True)]) == [
        "127.0.0.1"
    ]


def test_a_plan_is_measured_and_its_files_come_back(runner: RayRunner, tmp_path: Path) -> None:
    folder = tmp_path / "0"
    phases: list[Phase] = []
    measured = runner.run(PLAN, folder, phases.append)
    assert isinstance(measured, Measured)
    assert measured.losses[-1] < measured.losses[0]
    assert phases == sorted(phases, key=list(Phase).index)
    names = {path.name for path in folder.iterdir()}
    ranks = {"rank-0.json", "rank-0.log", "rank-1.json", "rank-1.log"}
    assert names == {"launch", "placement.json", *ranks}
    assert (folder / "launch" / "env.json").exists()
    placed = json.loads((folder / "placement.json").read_text())["ranks"]
    node_ids = {node["NodeID"] for node in ray.nodes()}
    assert [(entry["rank"], entry["local_rank"]) for entry in placed] == [(0, 0), (1, 1)]
    assert {entry["ray_node_id"] for entry in placed} == node_ids
    assert our_ranks() == []


def test_nodes_are_held_from_trial_to_trial(runner: RayRunner, tmp_path: Path) -> None:
    runner.run(PLAN, tmp_path / "0", lambda _: None)
    held = supervisors()
    runner.run(PLAN, tmp_path / "1", lambda _: None)
    assert supervisors() == held
    assert len(held) == len(placed_groups()) == 1


def test_a_rank_that_is_killed_fails_the_trial_by_its_signal(
    runner: RayRunner, tmp_path: Path
) -> None:
    def kill_rank_1(phase: Phase) -> None:
        for process in our_ranks():
            if process.name() == "paratune r1":
                process.send_signal(signal.SIGKILL)

    failed = runner.run(PLAN, tmp_path / "0", kill_rank_1)
    assert isinstance(failed, Failed)
    assert (failed.rank, failed.error) == (1, "SIGKILL")
    assert our_ranks() == []


def test_a_supervisor_that_is_killed_is_replaced_once(runner: RayRunner, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill_the_supervisor_once(phase: Phase) -> None:
        if not killed:
            (warm_process,) = {psutil.Process(process.ppid()) for process in our_ranks()}
            killed.append(warm_process.ppid())
            os.kill(killed[0], signal.SIGKILL)

    assert isinstance(runner.run(PLAN, tmp_path / "0", kill_the_supervisor_once), Measured)
    assert killed
    assert our_ranks() == []


def test_an_interrupt_ends_the_ranks_and_is_passed_on(runner: RayRunner, tmp_path: Path) -> None:
    def interrupt(phase: Phase) -> None:
        assert len(our_ranks()) == 2
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run(PLAN, tmp_path / "0", interrupt)
    assert our_ranks() == []


def test_two_trials_run_side_by_side_and_are_stopped_from_another_thread(
    runner: RayRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last of this file: a runner that was stopped starts nothing more.
    monkeypatch.setattr(runner, "measurement", replace(MEASUREMENT, steps=10_000))
    both = threading.Barrier(3, timeout=WAIT_S)

    def meet(phase: Phase) -> None:
        if phase is Phase.STEPS:
            both.wait()

    with ThreadPoolExecutor() as threads:
        runs = [
            threads.submit(runner.run, PLAN, tmp_path / str(number), meet) for number in range(2)
        ]
        both.wait()
        assert len(our_ranks()) == 4
        runner.stop()
        for run in runs:
            with pytest.raises(Stopped):
                run.result(WAIT_S)
    assert our_ranks() == []
    with pytest.raises(Stopped):
        runner.run(PLAN, tmp_path / "2", lambda _: None)
