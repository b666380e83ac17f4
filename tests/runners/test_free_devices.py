"""GPUs are free before a trial and after it, or the message says whose they are: a made-up NVML."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from runners.free_devices import devices_free, not_free, process_name
from runners.nvidia_devices import DeviceProcess, NvidiaDevice

GIB = 2**30
IDLE = NvidiaDevice(
    index=3,
    uuid="GPU-3",
    product="NVIDIA H100 80GB HBM3",
    memory_bytes=80 * GIB,
    free_bytes=79 * GIB + GIB // 2,
    split=False,
    processes=(),
)
TAKEN = replace(
    IDLE, free_bytes=40 * GIB, processes=(DeviceProcess(process_id=71, memory_bytes=39 * GIB),)
)


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def said(*looks: Sequence[NvidiaDevice], limit_s: float = 10.0, clock: Clock | None = None) -> Any:
    """The answer for a driver that shows these one after the other, the last one for ever."""
    clock = clock or Clock()
    left = list(looks)

    def look() -> Sequence[NvidiaDevice]:
        return left.pop(0) if len(left) > 1 else left[0]

    names = {71: ("python3", "alice"), 72: ("nvidia-cuda-mps-server", "root")}
    return not_free(look, names.get, limit_s=limit_s, clock=clock, sleep=clock.sleep)


def test_idle_gpus_are_free_at_once() -> None:
    clock = Clock()
    assert said((IDLE, IDLE), clock=clock) is None
    assert clock.now_s == 0


def test_a_foreign_process_is_named_with_what_it_holds() -> None:
    text = said((IDLE, TAKEN))
    for part in ("python3 of alice (pid 71)", "39.00 GiB", "GPU 3 (NVIDIA H100 80GB HBM3)"):
        assert part in text
    assert "\n" not in text


def test_memory_that_comes_back_in_time_is_waited_for() -> None:
    clock = Clock()
    assert said((TAKEN,), (TAKEN,), (IDLE,), clock=clock) is None
    assert 0 < clock.now_s < 10


def test_the_wait_is_bounded() -> None:
    clock = Clock()
    assert said((TAKEN,), clock=clock) is not None
    assert 10 <= clock.now_s < 11


def test_memory_that_nobody_is_named_for_is_told() -> None:
    lost = replace(IDLE, free_bytes=70 * GIB)
    assert "10.00 GiB" in said((lost,))
    assert "does not name" in said((lost,))


def test_a_process_of_another_container_is_told_by_its_number() -> None:
    hidden = replace(TAKEN, processes=(DeviceProcess(process_id=99, memory_bytes=None),))
    assert "not seen from here of another container (pid 99) holds memory" in said((hidden,))


def test_the_drivers_own_server_is_no_stranger() -> None:
    server = replace(IDLE, processes=(DeviceProcess(process_id=72, memory_bytes=GIB // 32),))
    assert said((server,)) is None


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[Any]]:
    """NVML with two GPUs; the processes on each may be set."""
    running: dict[int, list[Any]] = {0: [], 1: []}
    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetCudaDriverVersion": lambda: 12080,
        "nvmlSystemGetDriverVersion": lambda: "570.1",
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=80 * GIB, free=79 * GIB),
        "nvmlDeviceGetUUID": lambda index: f"GPU-{index}",
        "nvmlDeviceGetName": lambda _: "NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetMigMode": lambda _: (0, 0),
        "nvmlDeviceGetComputeRunningProcesses": running.__getitem__,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return running


def test_the_driver_is_asked_for_the_gpus_of_the_trial_only(
    driver: dict[int, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver[1] = [SimpleNamespace(pid=os.getpid(), usedGpuMemory=2 * GIB)]
    assert devices_free(1, limit_s=0) is None
    text = devices_free(2, limit_s=0)
    assert text is not None
    assert f"(pid {os.getpid()}) holds 2.00 GiB of GPU 1" in text
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert devices_free(1, limit_s=0) is not None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert devices_free(1, limit_s=0) is None


def test_processes_of_this_machine_have_a_name_and_a_user() -> None:
    own = process_name(os.getpid())
    assert own is not None
    assert "python" in own[0]
    assert process_name(2**22 + 1) is None
