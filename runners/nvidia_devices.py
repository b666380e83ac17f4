"""The GPUs that NVIDIA's driver shows on this machine, and those of them that CUDA may use."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pynvml

from tuner.errors import UserError

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """A process that computes on a GPU."""

    process_id: int
    memory_bytes: int | None
    """That it holds there; None where the driver does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaDevice:
    """One GPU as the driver describes it."""

    index: int
    uuid: str
    product: str
    memory_bytes: int
    free_bytes: int
    split: bool
    """Whether it is divided into MIG instances, or is one."""
    processes: tuple[DeviceProcess, ...]
    """Those that hold memory of it; of other users too, where the driver tells."""

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Of its processes, in order."""
        return tuple(sorted(process.process_id for process in self.processes))


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaDriver:
    """The driver's version and its GPUs."""

    version: str
    cuda: str
    """The newest CUDA that it can serve."""
    devices: tuple[NvidiaDevice, ...]


def nvidia_driver() -> NvidiaDriver | None:
    """What the driver of this machine shows; None without a driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        cuda = int(pynvml.nvmlSystemGetCudaDriverVersion())
        return NvidiaDriver(
            version=str(pynvml.nvmlSystemGetDriverVersion()),
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
            devices=tuple(_device(index) for index in range(pynvml.nvmlDeviceGetCount())),
        )
    finally:
        pynvml.nvmlShutdown()


def visible_devices(
    devices: tuple[NvidiaDevice, ...], visible: str | None = None
) -> tuple[NvidiaDevice, ...]:
    """The GPUs that CUDA may use.

    Args:
        devices: all GPUs of this machine.
        visible: a value of CUDA_VISIBLE_DEVICES; that of this process unless given.

    Raises:
        UserError: it names what is not here, or a MIG instance, or says nothing clear.
    """
    if visible is None:
        visible = os.environ.get(VISIBLE)
    chosen = devices if visible is None else _named(devices, visible)
    for device in chosen:
        if device.split:
            raise UserError(
                f"GPU {device.index} ({device.product}) must be whole, but it is divided into MIG "
                f"instances, which cannot reach each other; leave it out with {VISIBLE}, or have "
                f"MIG switched off (nvidia-smi -i {device.index} -mig 0)"
            )
    return chosen


def _named(devices: tuple[NvidiaDevice, ...], visible: str) -> tuple[NvidiaDevice, ...]:
    if visible.strip() in ("", "NoDevFiles", "void", "none"):  # nothing, as Slurm and Docker say it
        return ()
    chosen = []
    for entry in visible.split(","):
        name = entry.strip()
        if name == "-1":  # CUDA reads no further than this
            break
        chosen.append(_named_device(devices, name, visible))
    if len({device.uuid for device in chosen}) < len(chosen):
        raise UserError(f"{VISIBLE} must name each GPU once, got {visible}")
    if any(entry.strip().isdecimal() for entry in visible.split(",")) and _order_matters(devices):
        raise UserError(
            f"{VISIBLE}={visible} may mean different GPUs to CUDA and to the driver, since the "
            "GPUs here differ; set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name them by UUID "
            "(nvidia-smi -L)"
        )
    return tuple(chosen)


def _order_matters(devices: tuple[NvidiaDevice, ...]) -> bool:
    """CUDA numbers the fastest first unless told otherwise; the driver goes by the bus."""
    kinds = {device.product for device in devices}
    return len(kinds) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"


def _named_device(devices: tuple[NvidiaDevice, ...], name: str, visible: str) -> NvidiaDevice:
    if name.startswith("MIG"):
        raise UserError(
            f"{VISIBLE} must name whole GPUs, got the MIG instance {name}; instances cannot reach "
            "each other, so no plan of more than one rank runs on them"
        )
    if name.isdecimal():
        found = [device for device in devices if device.index == int(name)]
    else:  # CUDA takes the beginning of a UUID too
        found = [device for device in devices if name and device.uuid.startswith(name)]
    if len(found) == 1:
        return found[0]
    here = ", ".join(str(device.index) for device in devices) or "none"
    raise UserError(
        f"{VISIBLE} must name GPUs of this machine (their numbers are {here}, their UUIDs are in "
        f"nvidia-smi -L), got {name!r} in {visible!r}"
    )


def _device(index: int) -> NvidiaDevice:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return NvidiaDevice(
        index=index,
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        product=str(pynvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(memory.total),
        free_bytes=int(memory.free),
        split=_is_split(handle),
        processes=_processes(handle),
    )


def _is_split(handle: object) -> bool:
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:  # a GPU that cannot be divided
        return False
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


def _processes(handle: object) -> tuple[DeviceProcess, ...]:
    try:
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:  # not told in some containers
        return ()
    return tuple(
        DeviceProcess(process_id=int(process.pid), memory_bytes=_told(process.usedGpuMemory))
        for process in running
    )


def _told(memory_bytes: int | None) -> int | None:
    return None if memory_bytes is None else int(memory_bytes)
