"""Which warm process a trial gets, without one that imports anything."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from runners import warm_pool
from runners.rank_process import ColdRank
from runners.warm_pool import WarmPool, WarmProcess, WarmRanks
from tuner.plan import Backend

FAKE = "tests.runners.fake_warm_process"
LIMIT_S = 60.0
WAIT_S = 20.0


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[WarmPool]:
    monkeypatch.setattr(warm_pool, "WARM_MODULE", FAKE)
    monkeypatch.chdir(Path(__file__).parents[2])
    before = set(psutil.Process().children())
    started = WarmPool(most=2)
    yield started
    started.close()
    assert set(psutil.Process().children()) <= before


def process(
    pool: WarmPool, answer: str = "yes", *, limit_s: float = LIMIT_S, **env: str
) -> WarmProcess | None:
    wanted = {"FAKE_WARM": answer, **env}
    return pool.process(Backend.PYTORCH, wanted, limit_s, lambda: False)


def imports_the_framework(process: WarmProcess | None) -> bool:
    assert process is not None
    return "--backend" in psutil.Process(process.pid).cmdline()


def test_an_environment_of_its_own_asks_for_imports_of_its_own(pool: WarmPool) -> None:
    first = process(pool, OMP_NUM_THREADS="1")
    assert process(pool, OMP_NUM_THREADS="1") is first
    assert process(pool, OMP_NUM_THREADS="2") is not first


def test_there_are_never_more_than_allowed_and_the_oldest_goes(pool: WarmPool) -> None:
    one, two = process(pool, NUMBER="1"), process(pool, NUMBER="2")
    assert one is process(pool, NUMBER="1")
    three = process(pool, NUMBER="3")
    assert one is not None
    assert two is not None
    assert three is not None
    assert [one.is_alive(), two.is_alive(), three.is_alive()] == [True, False, True]


def test_what_no_trial_has_wanted_for_long_is_let_go(
    pool: WarmPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = process(pool, NUMBER="1")
    monkeypatch.setattr(warm_pool, "IDLE_LIMIT_S", -1.0)
    process(pool, NUMBER="2")
    assert one is not None
    assert not one.is_alive()


def kill(process: WarmProcess | None) -> None:
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def test_one_that_was_killed_is_replaced_once(pool: WarmPool) -> None:
    first = process(pool)
    kill(first)
    second = process(pool)
    assert second is not first
    assert imports_the_framework(second)
    kill(second)
    assert not imports_the_framework(process(pool))


@pytest.mark.parametrize("answer", ["refuse the framework", "die with the framework"])
def test_a_framework_that_cannot_be_forked_is_imported_by_each_rank(
    pool: WarmPool, answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert imports_the_framework(process(pool))
    with caplog.at_level(logging.WARNING):
        assert not imports_the_framework(process(pool, answer))
        assert not imports_the_framework(process(pool, answer))
    assert len(caplog.records) == 1


@pytest.mark.parametrize("answer", ["refuse", "die"])
def test_ranks_start_anew_where_nothing_can_be_forked(
    pool: WarmPool, answer: str, tmp_path: Path
) -> None:
    assert process(pool, answer) is None
    source = WarmRanks(pool=pool, backend=Backend.PYTORCH)
    start = source.ready(tmp_path, {"FAKE_WARM": answer}, LIMIT_S, lambda: False)
    rank = start({}, tmp_path / "rank-0.log")
    assert isinstance(rank, ColdRank)
    os.killpg(rank.pid, signal.SIGKILL)
    assert rank.wait(WAIT_S) == -signal.SIGKILL


def test_imports_that_do_not_end_are_given_up(pool: WarmPool) -> None:
    assert process(pool, "hang", limit_s=0.1) is None


def test_nobody_waits_for_imports_once_the_trial_is_stopped(pool: WarmPool) -> None:
    assert pool.process(Backend.PYTORCH, {"FAKE_WARM": "hang"}, LIMIT_S, lambda: True) is None


DRIVER = f"""
import threading, time
from runners import warm_pool
from tuner.plan import Backend
warm_pool.WARM_MODULE = "{FAKE}"
pool = warm_pool.WarmPool()
found = []
env = {{"FAKE_WARM": "yes"}}
wanted = lambda: found.append(pool.process(Backend.PYTORCH, env, 60.0, lambda: False))
thread = threading.Thread(target=wanted)
thread.start()
thread.join()
assert found[0].is_alive()
print(found[0].pid, flush=True)
time.sleep(600)
"""


def test_they_outlive_the_thread_that_wanted_them_but_not_a_driver_that_is_killed() -> None:
    command = [sys.executable, "-c", DRIVER]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as driver:
        assert driver.stdout is not None
        warm = psutil.Process(int(driver.stdout.readline()))
        assert warm.is_running()
        os.kill(driver.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs([warm], timeout=WAIT_S)
    assert alive == []
