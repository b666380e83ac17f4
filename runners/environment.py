"""What a study ran on: versions, cores and GPUs, read without importing a framework."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from pathlib import Path
from typing import Any

import psutil

from runners.nvidia_devices import nvidia_driver

DISTRIBUTION = "paratune"
OWN_PACKAGES = ("tuner", "search_spaces", "runners", "reports")
"""Generic names: another distribution, or a stray folder, may provide one of them too."""
_NAMED_DISTRIBUTIONS = (
    DISTRIBUTION,
    "torch",
    "deepspeed",
    "megatron-core",
    "ray",
    "optuna",
    "transformers",
    "transformer-engine",
    "apex",
    "flash-attn",
)


def own_version() -> str:
    """The installed version of paratune."""
    return importlib.metadata.version(DISTRIBUTION)


def environment_facts() -> dict[str, Any]:
    """What a report says of the machine that the study was started on; plain JSON values."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": {
            "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": psutil.virtual_memory().total,
        },
        "versions": {name: _version(name) for name in _NAMED_DISTRIBUTIONS},
        "gpus": _gpus(),
    }


def check_own_packages() -> None:
    """Makes sure that our four packages are ours.

    Raises:
        RuntimeError: one comes from elsewhere, or from two distributions.
    """
    home = _folder_above("tuner")
    providers = importlib.metadata.packages_distributions()
    for package in OWN_PACKAGES:
        found = _folder_above(package)
        if found != home:
            raise RuntimeError(
                f"the packages of {DISTRIBUTION} must come from one place, but {package} was found "
                f"in {found} and tuner in {home}; remove or rename the one that is not ours"
            )
        owners = sorted(set(providers.get(package, [])))
        if owners != [DISTRIBUTION]:
            raise RuntimeError(
                f"the package {package} (in {found}) must be provided by {DISTRIBUTION} alone, but "
                f"the installed distributions say {owners}; "
                f"install {DISTRIBUTION} in an environment of its own"
            )


def _folder_above(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).resolve().parent.parent


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpus() -> list[dict[str, Any]]:
    """Name, bytes and driver of each GPU that the driver shows; none without a driver."""
    driver = nvidia_driver()
    if driver is None:
        return []
    return [
        {"name": gpu.product, "memory_bytes": gpu.memory_bytes, "driver": driver.version}
        for gpu in driver.devices
    ]
