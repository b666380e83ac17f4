"""A rank's memory: its limit, and the peak from the model's first byte to the last step."""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path
from typing import Any, Protocol

import torch


class MemoryMeter(Protocol):
    """Starts when made, after imports and before the model."""

    def peak_bytes(self) -> int:
        """The most that the rank has held since the start."""
        ...

    def details(self) -> dict[str, Any]:
        """What else is known: allocator counters, bytes on the device."""
        ...

    def lift_limit(self) -> None:
        """For a rank that has failed: what it says takes memory, and is not the plan's."""
        ...


def _proc_status_bytes(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}")


_THREAD_STACK_BYTES = 512 * 1024
"""gloo starts threads for every process group, Megatron makes dozens of groups, and RLIMIT_DATA
counts the 8 MiB that each thread's stack reserves by default, touched or not."""


def _make_thread_stacks_small() -> None:
    """For threads started from now on. glibc only; elsewhere stacks stay as they are."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "pthread_setattr_default_np"):
        return
    attributes = ctypes.create_string_buffer(64)  # pthread_attr_t is 56 bytes on x86-64
    libc.pthread_attr_init(attributes)
    libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(_THREAD_STACK_BYTES))
    libc.pthread_setattr_default_np(attributes)


_M_MMAP_THRESHOLD = -3
"""Of mallopt(3)."""
_OWN_PAGES_BYTES = 1 << 20
"""From here on a tensor has pages of its own, which the system gets back with it."""


def _give_large_tensors_back() -> None:
    """Has malloc map every large tensor by itself. glibc only; elsewhere malloc stays as it is.

    glibc raises the size from which it does so, up to 32 MiB, each time such a tensor is freed.
    Smaller ones then come out of heaps, one a thread, where a byte in use on top keeps all that
    was freed below it: two ranks with the same work were seen to hold 286 and 460 MiB. A plan is
    to be judged by its tensors, as on a GPU, not by the order in which threads freed them.

    Pages of its own cost a tensor twice the time of a loss, for the kernel hands them out one by
    one; in huge pages, which torch asks for with the variable, they cost no more than before.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # read at the first large tensor
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _OWN_PAGES_BYTES)


def _lower(ceiling: int, most: int) -> int:
    return ceiling if most == resource.RLIM_INFINITY else min(ceiling, most)


class CpuMemoryMeter:
    """Resident bytes above those at the start; RLIMIT_DATA makes too large a plan really fail.

    RLIMIT_DATA counts what is allocated (VmData), the peak counts what was touched (VmHWM). Pages
    of libraries are touched late too; they are no data, so their growth is taken off.
    """

    def __init__(self, limit_bytes: int | None) -> None:
        _give_large_tensors_back()
        self._baseline_bytes = _proc_status_bytes("VmRSS")
        self._library_bytes = _proc_status_bytes("RssFile")
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM to the present VmRSS
        self._limit_bytes = limit_bytes
        if limit_bytes is not None:
            _make_thread_stacks_small()
            ceiling = _proc_status_bytes("VmData") + limit_bytes
            _, most = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (_lower(ceiling, most), most))

    def peak_bytes(self) -> int:
        """Highest resident size since the start, less that at the start and later library pages."""
        libraries = max(0, _proc_status_bytes("RssFile") - self._library_bytes)
        return max(0, _proc_status_bytes("VmHWM") - self._baseline_bytes - libraries)

    def details(self) -> dict[str, Any]:
        """The baseline that the peak is counted from, and the limit that is enforced."""
        return {
            "baseline_bytes": self._baseline_bytes,
            "cpu_limit_bytes": self._limit_bytes,
            "limit_bytes": self._limit_bytes,
            "allocator_retries": 0,
        }

    def lift_limit(self) -> None:
        """Up to what the system allows."""
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


class CudaMemoryMeter:
    """The allocator's peak; the limit is enforced as a fraction of the device."""

    def __init__(self, device: torch.device, limit_bytes: int | None) -> None:
        self._device = device
        self._limit_bytes = limit_bytes
        self._free_at_start_bytes, total_bytes = torch.cuda.mem_get_info(device)
        torch.cuda.reset_peak_memory_stats(device)
        if limit_bytes is not None:
            fraction = min(1.0, limit_bytes / total_bytes)
            torch.cuda.set_per_process_memory_fraction(fraction, device)

    def peak_bytes(self) -> int:
        """Most bytes that the allocator had reserved from the device at once."""
        return torch.cuda.max_memory_reserved(self._device)

    def details(self) -> dict[str, Any]:
        """Allocator peaks and retries, and what the device itself says is in use."""
        free_bytes, total_bytes = torch.cuda.mem_get_info(self._device)
        stats = torch.cuda.memory_stats(self._device)
        return {
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(self._device),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(self._device),
            "device_used_bytes": total_bytes - free_bytes,
            "device_free_bytes": free_bytes,
            "device_total_bytes": total_bytes,
            "device_free_at_start_bytes": self._free_at_start_bytes,
            "allocator_retries": stats.get("num_alloc_retries", 0),
            "limit_bytes": self._limit_bytes,
        }

    def lift_limit(self) -> None:
        """Nothing to lift: words take no memory of the device."""


def memory_meter(device: torch.device, limit_bytes: int | None) -> MemoryMeter:
    """The meter for this device; the limit holds from now on."""
    if device.type == "cuda":
        return CudaMemoryMeter(device, limit_bytes)
    return CpuMemoryMeter(limit_bytes)
