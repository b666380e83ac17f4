"""What this machine and its installation have, looked at without importing a framework here."""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from runners.environment import check_own_packages, environment_facts
from runners.nvidia_devices import NvidiaDevice, NvidiaDriver, nvidia_driver, visible_devices
from runners.ray_cluster import RayNode, ray_nodes
from tuner.errors import UserError

FRAMEWORKS = ("torch", "deepspeed", "megatron-core")
COMPILERS = ("g++", "nvcc", "ninja")
_IMPORT_LIMIT_S = 180.0
"""Slow disks take a minute for the first import of torch and what it loads."""
_ENV_PREFIXES = (
    "NCCL_",
    "CUDA_",
    "TORCH_",
    "PYTORCH_",
    "GLOO_",
    "DS_",
    "NVTE_",
    "OMP_",
    "RAY_ADDRESS",
)
_SECRET = re.compile("TOKEN|KEY|SECRET|PASSWORD|CREDENTIAL")
"""What people paste into an issue must not hold these."""
_UNLIMITED = resource.RLIM_INFINITY


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What came of importing a framework in a process of its own."""

    error: str | None
    """The last line of what it said; None where it imports."""
    facts: Mapping[str, Any]
    """What it tells of itself, and ``import_s``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayFacts:
    """What a Ray at an address answers."""

    address: str
    nodes: tuple[RayNode, ...]
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Everything that decides whether, and which, plans run here."""

    python: str
    platform: str
    num_cores: int
    memory_bytes: int
    """Of the machine, or the limit of the container that this runs in."""
    available_bytes: int
    versions: Mapping[str, str | None]
    own_packages_error: str | None
    imports: Mapping[str, Imported]
    driver: NvidiaDriver | None
    visible: tuple[NvidiaDevice, ...]
    visible_error: str | None
    processes: Mapping[int, str]
    """Names of the processes that hold memory of a GPU, where they are known."""
    compilers: Mapping[str, str | None]
    env: Mapping[str, str]
    ray: RayFacts | None
    """None where no address was given."""
    shm_bytes: int
    limits: Mapping[str, int | None]
    """Soft limits by name; None is unlimited."""
    folder: str
    folder_error: str | None
    disk_free_bytes: int


def machine_facts(folder: Path, ray_address: str | None) -> MachineFacts:
    """Looks at everything; takes as long as importing the frameworks does."""
    own = environment_facts()
    driver = nvidia_driver()
    visible, visible_error = _visible(driver)
    with ThreadPoolExecutor() as threads:
        imports = {name: threads.submit(_imported, name) for name in FRAMEWORKS}
        ray = threads.submit(_ray, ray_address)
    return MachineFacts(
        python=platform.python_version(),
        platform=platform.platform(terse=True),
        num_cores=len(os.sched_getaffinity(0)),
        memory_bytes=_memory_bytes(),
        available_bytes=psutil.virtual_memory().available,
        versions=own["versions"],
        own_packages_error=_own_packages_error(),
        imports={name: done.result() for name, done in imports.items()},
        driver=driver,
        visible=visible,
        visible_error=visible_error,
        processes=_names(driver),
        compilers={name: shutil.which(name) for name in COMPILERS},
        env={
            name: value
            for name, value in os.environ.items()
            if name.startswith(_ENV_PREFIXES) and not _SECRET.search(name)
        },
        ray=ray.result(),
        shm_bytes=_total_bytes(Path("/dev/shm")),
        limits=_limits(),
        folder=str(folder.resolve()),
        folder_error=_folder_error(folder),
        disk_free_bytes=shutil.disk_usage(folder).free,
    )


def _imported(name: str) -> Imported:
    command = [sys.executable, "-m", "runners.bench.import_probe", name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_IMPORT_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Imported(error=f"not imported within {_IMPORT_LIMIT_S:.0f} s", facts={})
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        ended = f"its process ended with {done.returncode}"
        return Imported(error=said[-1][:300] if said else ended, facts={})
    return Imported(error=None, facts=json.loads(done.stdout.strip().splitlines()[-1]))


def _visible(driver: NvidiaDriver | None) -> tuple[tuple[NvidiaDevice, ...], str | None]:
    try:
        return (visible_devices(driver.devices) if driver is not None else ()), None
    except UserError as error:
        return (), str(error)


def _ray(address: str | None) -> RayFacts | None:
    if address is None:
        return None
    try:
        return RayFacts(address=address, nodes=ray_nodes(address), error=None)
    except UserError as error:
        return RayFacts(address=address, nodes=(), error=str(error))


def _own_packages_error() -> str | None:
    try:
        check_own_packages()
    except RuntimeError as error:
        return str(error)
    return None


def _names(driver: NvidiaDriver | None) -> dict[int, str]:
    names = {}
    for device in driver.devices if driver is not None else ():
        for process_id in device.process_ids:
            try:
                process = psutil.Process(process_id)
                names[process_id] = f"{process.name()} of {process.username()}"
            except psutil.Error:  # of another container, or ended meanwhile
                continue
    return names


def _memory_bytes() -> int:
    """The smaller of the machine's memory and what the container may take of it."""
    total = psutil.virtual_memory().total
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdecimal() else total


def _total_bytes(path: Path) -> int:
    return shutil.disk_usage(path).total if path.is_dir() else 0


def _limits() -> dict[str, int | None]:
    kinds = {
        "open files": resource.RLIMIT_NOFILE,
        "processes": resource.RLIMIT_NPROC,
        "locked memory": resource.RLIMIT_MEMLOCK,
        "data": resource.RLIMIT_DATA,
        "address space": resource.RLIMIT_AS,
    }
    soft = {name: resource.getrlimit(kind)[0] for name, kind in kinds.items()}
    return {name: None if value == _UNLIMITED else value for name, value in soft.items()}


def _folder_error(folder: Path) -> str | None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return str(error.strerror or error)
