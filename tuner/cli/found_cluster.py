"""``cluster: auto``: the GPUs that this machine's driver shows, else its CPU cores."""

from __future__ import annotations

import pynvml

from tuner.cluster import Cluster
from tuner.errors import UserError
from tuner.job import cpu_cluster_of_this_machine
from tuner.presets import gpu_of_device
from tuner.units import size_text


def found_cluster() -> Cluster:
    """This machine as one node.

    Raises:
        UserError: its GPUs differ, or are of a kind that is not known here.
    """
    devices = _nvidia_devices()
    if not devices:
        return cpu_cluster_of_this_machine()
    if len(set(devices)) > 1:
        names = ", ".join(sorted({name for name, _ in devices}))
        raise UserError(
            f"cluster: auto needs equal GPUs, but this machine has {names}; make one kind "
            "visible with CUDA_VISIBLE_DEVICES, or describe the cluster in the job file"
        )
    name, memory_bytes = devices[0]
    gpu = gpu_of_device(name, memory_bytes)
    if gpu is None:
        raise UserError(
            f"cluster: auto found {len(devices)} x {name} ({size_text(memory_bytes)}), which is "
            "not known here; describe the cluster in the job file with the nearest known GPU"
        )
    return Cluster(gpu=gpu, gpus_per_node=len(devices))


def _nvidia_devices() -> list[tuple[str, int]]:
    """Product name and bytes of each GPU that the driver shows; none without a driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            found.append((str(pynvml.nvmlDeviceGetName(handle)), int(memory.total)))
        return found
    finally:
        pynvml.nvmlShutdown()
