"""Real trials of a tiny model as fresh ranks of this machine."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from runners import local_runner
from runners.bench.warm_process import NO_TOKEN, TOKEN_VARIABLE
from runners.local_runner import LocalRunner
from runners.rank_processes import free_port
from tests.tiny_job import cpu_cluster, tiny_workload
from tuner.errors import UserError
from tuner.launch import Measurement
from tuner.outcome import Failed, Measured, OutOfMemory, Phase
from tuner.plan import Backend, ParallelPlan, Precision
from tuner.runner import Slots, Stopped

pytestmark = pytest.mark.ranks

PLAN = ParallelPlan(backend=Backend.MEGATRON, precision=Precision.FP32, tp=2)
WAIT_S = 60.0
LIMITS_S = dict.fromkeys(Phase, 120.0)


MEASUREMENT = Measurement(warmup_steps=1, steps=2)


def children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    """One for all tests, as for all trials of a study: its imports are done once."""
    before = children()
    slots = Slots(count=2)
    started = LocalRunner(tiny_workload(), cpu_cluster(2), MEASUREMENT, LIMITS_S, slots=slots)
    yield started
    started.close()
    assert children() <= before


@pytest.fixture(autouse=True)
def no_rank_is_left(runner: LocalRunner) -> Iterator[None]:
    yield
    tokens = [process.environ().get(TOKEN_VARIABLE, NO_TOKEN) for process in children()]
    assert set(tokens) <= {NO_TOKEN}


def test_a_plan_is_measured_and_the_folder_says_how_it_ran(
    runner: LocalRunner, tmp_path: Path
) -> None:
    folder = tmp_path / "0"
    phases: list[Phase] = []
    measured = runner.run(PLAN, folder, phases.append)
    assert isinstance(measured, Measured)
    assert len(measured.step_times_s) == 2
    assert measured.losses[-1] < measured.losses[0]
    assert phases == sorted(phases, key=list(Phase).index)
    described = {file.name: file.text for file in runner.describe(PLAN).files}
    kept = {path.name: path.read_text() for path in (folder / "launch").iterdir()}
    assert json.loads(kept.pop("env.json"))["OMP_NUM_THREADS"]
    assert kept == described


@pytest.mark.parametrize("backend", Backend)
def test_a_limit_that_is_too_small_for_the_plan_is_out_of_memory(
    runner: LocalRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Backend
) -> None:
    """Neither threads of process groups nor imported code would fit; those are not the plan's."""
    monkeypatch.setattr(runner, "measurement", replace(MEASUREMENT, memory_limit_bytes=2**14))
    out = runner.run(replace(PLAN, backend=backend), tmp_path / "0", lambda _: None)
    assert isinstance(out, OutOfMemory), out


def test_a_port_that_another_has_is_given_up_for_a_new_one(
    runner: LocalRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = iter([taken.getsockname()[1], free_port("127.0.0.1")])
        monkeypatch.setattr(local_runner, "free_port", lambda _: next(ports))
        assert isinstance(runner.run(PLAN, tmp_path / "0", lambda _: None), Measured)
    assert next(ports, None) is None


def test_a_port_that_stays_taken_is_said_to_be_the_machines_fault(
    runner: LocalRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(local_runner, "free_port", lambda _: taken.getsockname()[1])
        failed = runner.run(PLAN, tmp_path / "0", lambda _: None)
    assert isinstance(failed, Failed)
    assert failed.infrastructure
    assert failed.phase is Phase.PROCESS_GROUP


def test_several_nodes_are_refused_with_the_way_out() -> None:
    cluster = replace(cpu_cluster(2), num_nodes=2)
    with pytest.raises(UserError, match="cluster of 1 node, got 2; use --runner ray"):
        LocalRunner(tiny_workload(), cluster, Measurement(), LIMITS_S)


def test_two_trials_run_side_by_side_and_are_stopped_from_another_thread(
    runner: LocalRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        runner.stop()
        for run in runs:
            with pytest.raises(Stopped):
                run.result(WAIT_S)
    with pytest.raises(Stopped):
        runner.run(PLAN, tmp_path / "2", lambda _: None)
