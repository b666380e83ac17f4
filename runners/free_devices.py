"""Whether the GPUs of a trial are free, before it and after it, and whose they are if not."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from runners.nvidia_devices import NvidiaDevice, nvidia_driver, visible_devices
from tuner.units import size_text, time_text

FREE_LIMIT_S = 30.0
"""A driver gives the memory of killed processes back within seconds; others may be ending too."""
_LOOK_S = 0.5
_HELD_SHARE = 0.02
"""Of a GPU's memory: above what the driver itself keeps, something is using it."""
_SERVERS = ("nvidia-cuda-mps",)
"""Names of processes that belong to the driver: they hold no memory that a trial needs."""

DeviceLook = Callable[[], Sequence[NvidiaDevice]]
"""The GPUs of a trial as they are now."""
ProcessName = Callable[[int], tuple[str, str] | None]
"""Name and user of a process; None where it cannot be seen from here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Something that holds memory of a GPU."""

    device: str
    who: str
    memory_bytes: int | None

    @property
    def sentence(self) -> str:
        """For a message."""
        much = "memory" if self.memory_bytes is None else size_text(self.memory_bytes)
        return f"{self.who} holds {much} of {self.device}"


def holders(devices: Sequence[NvidiaDevice], named: ProcessName) -> tuple[Holder, ...]:
    """What holds memory of these GPUs; pure but for the names."""
    return tuple(holder for device in devices for holder in _of_device(device, named))


def _of_device(device: NvidiaDevice, named: ProcessName) -> list[Holder]:
    where = f"GPU {device.index} ({device.product})"
    found = []
    for process in device.processes:
        known = named(process.process_id)
        if known is not None and known[0].startswith(_SERVERS):
            continue
        name, user = known or ("a process that is not seen from here", "another container")
        who = f"{name} of {user} (pid {process.process_id})"
        found.append(Holder(device=where, who=who, memory_bytes=process.memory_bytes))
    held_bytes = device.memory_bytes - device.free_bytes
    if not found and not device.processes and held_bytes > _HELD_SHARE * device.memory_bytes:
        who = "something that the driver does not name (another container, or a lost context)"
        found.append(Holder(device=where, who=who, memory_bytes=held_bytes))
    return found


def not_free(
    look: DeviceLook,
    named: ProcessName,
    *,
    limit_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str | None:
    """Waits for GPUs to be free; None when they are, else the sentence that says who has them.

    Args:
        look: asks the driver.
        named: asks the system for a process.
        limit_s: how long to wait.
        clock: seconds.
        sleep: waits.
    """
    deadline = clock() + limit_s
    while found := holders(look(), named):
        if clock() >= deadline:
            return (
                f"a trial needs its GPUs to itself, but {'; '.join(h.sentence for h in found)}"
                f" (looked at for {time_text(limit_s)})"
            )
        sleep(_LOOK_S)
    return None


def devices_free(
    num_devices: int, visible: str | None = None, limit_s: float = FREE_LIMIT_S
) -> str | None:
    """Whether the first GPUs that CUDA may use here are free, waiting for it; bounded.

    Args:
        num_devices: how many, one for each rank.
        visible: CUDA_VISIBLE_DEVICES of the ranks; that of this process unless given.
        limit_s: how long to wait.

    Returns:
        None where they are, or where no driver can be asked; else who has them, as a sentence.
    """
    if visible == "":  # ranks on CPUs
        return None

    def look() -> Sequence[NvidiaDevice]:
        driver = nvidia_driver()
        return () if driver is None else visible_devices(driver.devices, visible)[:num_devices]

    return not_free(look, process_name, limit_s=limit_s)


def process_name(process_id: int) -> tuple[str, str] | None:
    """Name and user of a process of this machine."""
    try:
        process = psutil.Process(process_id)
        return process.name(), process.username()
    except (psutil.Error, KeyError):  # of another container, or a user without a name
        return None
