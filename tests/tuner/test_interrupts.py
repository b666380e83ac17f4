"""Signals to a real driver: the first ends it in order, the second at once, nothing stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import psutil
import pytest

DRIVER = """
import subprocess, sys, threading
from tuner.cli.interrupts import ends_in_order
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(sleep, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
with ends_in_order():
    try:
        print(child.pid, flush=True)
        threading.Event().wait(600)
    except KeyboardInterrupt:
        print("in order", flush=True)
        if sys.argv[1] == "slow":
            threading.Event().wait(600)
        child.kill()
        sys.exit(130)
"""


def heed_signals() -> None:
    """A shell's background job ignores SIGINT, and so would all that it starts."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def driver(way: str) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, way],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_signals,
        cwd=Path(__file__).parents[2],
    ) as process:
        assert process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        try:
            yield process, child
        finally:
            process.kill()
            if child.is_running():
                child.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_first_signal_ends_in_order_with_130(number: signal.Signals) -> None:
    with driver("quick") as (process, _):
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "in order" in out
        assert "once more ends at once" in err


def test_a_second_signal_ends_at_once_with_all_that_was_started() -> None:
    with driver("slow") as (process, child):
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "in order\n"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "ended at once" in err
        gone, _ = psutil.wait_procs([child], timeout=10)
        assert gone


RAY_DRIVER = """
import os, signal, sys
from runners.ray_session import ray_session
from tuner.cli.interrupts import ends_in_order
from tuner.cluster import Cluster
from tuner.presets import cpu_rank
import ray
with ends_in_order():
    ray_session(None, Cluster(gpu=cpu_rank(2**30), gpus_per_node=1), 1)
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        ray.get(ray.put(1))
    except KeyboardInterrupt:
        # Ray's own handler has an alarm ring that aborts the process seconds later.
        print("in order, alarm in", signal.getitimer(signal.ITIMER_REAL)[0], flush=True)
        ray.shutdown()
        sys.exit(130)
"""


@pytest.mark.ray
def test_a_driver_of_ray_ends_in_order_too() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RAY_DRIVER],
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=heed_signals,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 130, done.stderr
    assert done.stdout == "in order, alarm in 0.0\n"


def test_an_ignored_signal_stays_ignored() -> None:
    from tuner.cli.interrupts import ends_in_order

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ends_in_order():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_handlers_are_as_they_were_afterwards() -> None:
    from tuner.cli.interrupts import ends_in_order

    before = signal.getsignal(signal.SIGTERM)
    with ends_in_order():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


class Ended(Exception):
    """In place of the end of this process."""


@pytest.mark.parametrize(
    ("number", "after_s", "ends"),
    [(signal.SIGTERM, 0.9, False), (signal.SIGTERM, 1.1, True), (signal.SIGINT, 0.1, True)],
)
def test_the_same_signal_twice_in_no_time_is_one(
    number: signal.Signals, after_s: float, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuner.cli import interrupts

    def end() -> None:
        raise Ended

    monkeypatch.setattr(interrupts, "end_at_once", end)
    now_s = [10.0]
    with interrupts.ends_in_order(lambda: now_s[0]):
        heard = signal.getsignal(number)
        assert callable(heard)
        with pytest.raises(KeyboardInterrupt):
            heard(signal.SIGTERM, None)
        now_s[0] += after_s
        with pytest.raises(Ended) if ends else nullcontext():
            heard(number, None)
