"""What else happens on the machine during the steps: counters of this rank and of its node."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from typing import Any

import psutil
import pynvml
import torch

_SLOWED = (
    (0x08, "hardware slowdown"),
    (0x20, "software thermal limit"),
    (0x40, "hardware thermal limit"),
    (0x80, "power brake"),
)
"""Bits of NVML's clock event reasons that are no plan's doing; the power cap is normal at work."""


class LoadMeter:
    """Counts from when it is made; ``look`` is called between steps, outside timed regions."""

    def __init__(self, device: torch.device) -> None:
        self._handle = _nvml_handle(device)
        self._reasons: set[str] = set()
        self._most_processes = 0
        self._began_s = time.perf_counter()
        self._set_to_s = time.time() - self._began_s
        self._own_s = time.process_time()
        self._node = psutil.cpu_times()

    def look(self) -> None:
        """Asks the GPU's driver what holds the clocks down and who is there."""
        if self._handle is None:
            return
        with suppress(pynvml.NVMLError):  # not every GPU, driver or container tells
            bits = int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle))
            self._reasons |= {name for bit, name in _SLOWED if bits & bit}
        with suppress(pynvml.NVMLError):
            running = pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
            self._most_processes = max(self._most_processes, len(running))

    def record(self) -> dict[str, Any]:
        """What a rank reports; who else was there only all ranks of a node together can tell."""
        now = psutil.cpu_times()
        idle = _idle_s(now) - _idle_s(self._node)
        steal = getattr(now, "steal", 0.0) - getattr(self._node, "steal", 0.0)
        return {
            "node": socket.gethostname(),
            "cores": os.cpu_count() or 1,
            "wall_s": time.perf_counter() - self._began_s,
            "own_cpu_s": time.process_time() - self._own_s,
            "clock_jump_s": time.time() - time.perf_counter() - self._set_to_s,
            "node_idle_s": idle,
            "node_steal_s": steal,
            "gpu_slowed_by": sorted(self._reasons),
            "gpu_processes": self._most_processes,
        }


def _idle_s(times: Any) -> float:
    return float(times.idle) + float(getattr(times, "iowait", 0.0))


def _nvml_handle(device: torch.device) -> Any:
    """The driver's handle of this rank's GPU; None on CPU or where the driver does not tell."""
    if device.type != "cuda":
        return None
    try:
        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        return pynvml.nvmlDeviceGetHandleByUUID(
            uuid if uuid[:3] in ("GPU", "MIG") else f"GPU-{uuid}"
        )
    except pynvml.NVMLError:
        return None
