"""Ranks that are forked from warm processes are what ranks that start anew are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from runners.bench.warm_process import TOKEN_VARIABLE
from runners.local_runner import LocalRunner
from runners.rank_process import RankProcess, StarterLostError, bench_arguments
from runners.rank_processes import NodeRanks, free_port
from runners.warm_pool import WarmPool, WarmProcess
from tests.tiny_job import cpu_cluster, tiny_workload
from tuner.launch import Measurement
from tuner.launch_files import launch_folder, write_launch_files
from tuner.outcome import Measured, Phase
from tuner.plan import Backend, ParallelPlan, Precision
from tuner.runner import Slots

pytestmark = pytest.mark.ranks

PLAN = ParallelPlan(backend=Backend.PYTORCH, precision=Precision.FP32)
LIMITS_S = dict.fromkeys(Phase, 120.0)
LIMIT_S = 120.0
WAIT_S = 20.0
ENV = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "1"}
"""Of a rank with several cores."""
TOKEN = "0123456789abcdef" * 2


def runner(*, warm: bool) -> LocalRunner:
    measurement = Measurement(warmup_steps=1, steps=2)
    slots = Slots(warm=warm)
    workload = tiny_workload(
        vocab_size=16384
    )  # 40 MiB, of which few pages more or less say nothing
    return LocalRunner(workload, cpu_cluster(2), measurement, LIMITS_S, slots=slots)


@pytest.fixture(scope="module")
def pool() -> Iterator[WarmPool]:
    started = WarmPool(most=1)
    yield started
    started.close()


@pytest.fixture
def warm(pool: WarmPool) -> WarmProcess:
    process = pool.process(PLAN.backend, ENV, LIMIT_S, lambda: False)
    assert process is not None
    return process


def waiting_rank(warm: WarmProcess, folder: Path) -> RankProcess:
    """One of two ranks, which waits for the other."""
    write_launch_files(runner(warm=False).describe(PLAN), launch_folder(folder))
    env = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port("127.0.0.1")),
        TOKEN_VARIABLE: TOKEN,
    }
    return warm.start_rank(bench_arguments(folder), env, folder / "rank-0.log")


def test_what_has_been_imported_is_used_again(pool: WarmPool, warm: WarmProcess) -> None:
    again = pool.process(PLAN.backend, ENV, LIMIT_S, lambda: False)
    assert again is warm
    assert not psutil.Process(warm.pid).net_connections("inet")


def test_a_rank_is_a_process_and_a_session_of_its_own_and_shows_its_token(
    warm: WarmProcess, tmp_path: Path
) -> None:
    rank = waiting_rank(warm, tmp_path)
    process = psutil.Process(rank.pid)
    assert process.ppid() == warm.pid
    assert os.getsid(rank.pid) == rank.pid
    assert process.environ()[TOKEN_VARIABLE] == TOKEN
    os.killpg(rank.pid, signal.SIGKILL)
    assert rank.wait(WAIT_S) == -signal.SIGKILL


def test_a_rank_says_why_it_cannot_run_in_its_own_log(warm: WarmProcess, tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    env = {"RANK": "0", TOKEN_VARIABLE: TOKEN}
    rank = warm.start_rank(bench_arguments(tmp_path / "missing"), env, log)
    assert rank.wait(WAIT_S) == 1
    assert "FileNotFoundError" in log.read_text()


def test_ranks_vanish_with_the_process_they_come_from(pool: WarmPool, tmp_path: Path) -> None:
    warm = pool.process(PLAN.backend, ENV, LIMIT_S, lambda: False)
    assert warm is not None
    rank = waiting_rank(warm, tmp_path)
    process = psutil.Process(rank.pid)
    os.kill(warm.pid, signal.SIGKILL)
    with pytest.raises(StarterLostError):
        rank.wait(WAIT_S)
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    assert not warm.is_alive()


@pytest.fixture(scope="module")
def warm_runner() -> Iterator[LocalRunner]:
    started = runner(warm=True)
    yield started
    started.close()


def test_the_memory_of_a_plan_does_not_depend_on_how_its_ranks_were_started(
    warm_runner: LocalRunner, tmp_path: Path
) -> None:
    warm = warm_runner.run(PLAN, tmp_path / "warm", lambda _: None)
    cold = runner(warm=False).run(PLAN, tmp_path / "cold", lambda _: None)
    assert isinstance(warm, Measured)
    assert isinstance(cold, Measured)
    assert warm.losses == cold.losses
    assert warm.peak_memory_bytes == pytest.approx(cold.peak_memory_bytes, rel=0.05)


def test_a_trial_whose_warm_process_is_killed_is_run_once_more(
    warm_runner: LocalRunner, tmp_path: Path
) -> None:
    killed: list[int] = []

    def kill_once(phase: Phase) -> None:
        if not killed:
            report = json.loads((tmp_path / "0" / "rank-0.json").read_text())
            killed.append(psutil.Process(report["pid"]).ppid())
            os.kill(killed[0], signal.SIGKILL)

    assert isinstance(warm_runner.run(PLAN, tmp_path / "0", kill_once), Measured)
    assert killed


IMPORTS = """
import json, os, sys
read = set()
original = os._Environ.__getitem__
def recorded(self, name):
    read.add(name)
    return original(self, name)
os._Environ.__getitem__ = recorded  # get and in come down to it
from runners.bench.frameworks import import_framework
from tuner.plan import Backend
for backend in Backend:
    import_framework(backend)
print(json.dumps(sorted(read)))
"""


def test_no_framework_reads_what_only_a_rank_is_told_when_it_is_imported() -> None:
    env = {**os.environ, **ENV, "DS_ACCELERATOR": "cpu"}
    command = [sys.executable, "-c", IMPORTS]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    read = set(json.loads(done.stdout.splitlines()[-1]))
    ranks = NodeRanks(ranks_per_node=1, num_ranks=1, master_address="", master_port=0)
    assert "DS_ACCELERATOR" in read
    assert read & set(ranks.environment(0)) == set()
