"""What a doctor says of a machine: each finding with its status and what to do; pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from runners.machine_facts import MachineFacts
from runners.nvidia_devices import NvidiaDevice
from tuner.presets import gpu_of_device
from tuner.units import GIB, size_text

_REQUIRED = ("optuna", "transformers")
_OPTIONAL = ("transformer-engine", "apex", "flash-attn")
_HELD_SHARE = 0.02
"""Of a GPU's memory: above what the driver itself keeps, something else is using it."""
_SHM_BYTES = GIB
"""NCCL and Ray put buffers there; a container has 64 MiB unless told otherwise."""
_OPEN_FILES = 4096
"""A rank of many groups holds hundreds of sockets and Ray one or more a worker."""
_DISK_BYTES = 5 * GIB
"""A study keeps logs of every rank; DeepSpeed and Triton compile into caches."""
_AVAILABLE_BYTES = 2 * GIB
"""Two ranks that have imported a framework, with nothing allocated yet."""


class Status(StrEnum):
    """How a finding bears on a study."""

    OK = "ok"
    NOTE = "note"
    """It runs; something is slower, or some plans are not tried."""
    PROBLEM = "problem"
    """No study can run here before it is mended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding."""

    name: str
    status: Status
    found: str
    advice: str = ""


def checks(facts: MachineFacts) -> tuple[Check, ...]:
    """Everything found, in the order in which a person would look."""
    groups = (_installation, _frameworks, _gpus, _compilers, _machine, _ray)
    return tuple(check for group in groups for check in group(facts))


def can_run(found: tuple[Check, ...]) -> bool:
    """Whether a study can run here: nothing found makes it impossible."""
    return all(check.status is not Status.PROBLEM for check in found)


def _ok(name: str, found: str, advice: str = "") -> Check:
    return Check(name=name, status=Status.OK, found=found, advice=advice)


def _note(name: str, found: str, advice: str) -> Check:
    return Check(name=name, status=Status.NOTE, found=found, advice=advice)


def _problem(name: str, found: str, advice: str) -> Check:
    return Check(name=name, status=Status.PROBLEM, found=found, advice=advice)


def _installation(facts: MachineFacts) -> Iterator[Check]:
    yield _ok("python", f"{facts.python} on {facts.platform}")
    version = facts.versions.get("paratune") or "not installed"
    if facts.own_packages_error is None:
        yield _ok("paratune", version)
    else:
        yield _problem("paratune", version, facts.own_packages_error)
    for name in _REQUIRED:
        installed = facts.versions.get(name)
        if installed is None:
            yield _problem(name, "not installed", f"pip install {name}")
        else:
            yield _ok(name, installed)


def _frameworks(facts: MachineFacts) -> Iterator[Check]:
    for name, imported in facts.imports.items():
        version = facts.versions.get(name)
        if imported.error is None:
            yield _ok(name, f"{version}, imports in {imported.facts['import_s']:.0f} s")
            continue
        found = "not installed" if version is None else f"{version}, but: {imported.error}"
        if name == "torch":
            yield _problem(name, found, "no framework runs without it; reinstall torch")
        else:
            yield _note(
                name, found, f"pin search.backend to the others, or install {name} so that it loads"
            )
    for name in _OPTIONAL:
        version = facts.versions.get(name)
        missing = f"pip install {name}, if plans need it (see below)" if facts.visible else ""
        yield _ok(name, version or "not installed", "" if version else missing)


def _gpus(facts: MachineFacts) -> Iterator[Check]:
    if facts.visible_error is not None:
        yield _problem("visible GPUs", "not usable as chosen", facts.visible_error)
        return
    if facts.driver is None:
        yield _no_gpus(facts, "no NVIDIA driver")
        return
    yield _ok("driver", f"{facts.driver.version}, serves CUDA up to {facts.driver.cuda}")
    if not facts.visible:
        yield _no_gpus(facts, f"none of {len(facts.driver.devices)} GPUs is visible")
        return
    yield _torch_sees(facts)
    for device in facts.visible:
        yield _gpu(facts, device)
    if len({(device.product, device.memory_bytes) for device in facts.visible}) > 1:
        yield _note(
            "equal GPUs", "the visible GPUs differ", "choose one kind with CUDA_VISIBLE_DEVICES"
        )


def _no_gpus(facts: MachineFacts, why: str) -> Check:
    torch = facts.imports["torch"].facts
    ranks = f"{why}: studies run on CPU ranks, {facts.num_cores} with cluster: auto"
    if torch.get("hip") and torch.get("cuda_available"):
        return _note(
            "GPUs",
            f"{torch['num_gpus']} AMD GPUs, which cluster: auto does not look for",
            "describe the cluster in the job file, such as {gpu: mi300x-192gb, gpus_per_node: 8}",
        )
    return _note("GPUs", ranks, "fine for a trial of paratune; speeds say nothing of GPUs")


def _torch_sees(facts: MachineFacts) -> Check:
    torch = facts.imports["torch"].facts
    name, advice = "torch on GPU", "install the torch wheel of a CUDA that the driver serves"
    if not torch:
        return _problem(name, "torch does not load", "see torch above")
    if not torch["cuda"]:
        return _problem(name, "this torch is built for the CPU only", advice)
    if not torch["cuda_available"]:
        return _problem(name, f"torch for CUDA {torch['cuda']} finds no GPU", advice)
    built = torch["architectures"]
    unbuilt = [each for each in torch["capabilities"] if not _runs_on(built, *each)]
    if unbuilt:
        return _problem(
            name,
            f"torch is built for {', '.join(built)}, not for sm_{unbuilt[0][0]}{unbuilt[0][1]}",
            "install a torch that is built for this GPU",
        )
    nccl = torch["nccl"] or "missing"
    found = f"CUDA {torch['cuda']}, NCCL {nccl}, {torch['num_gpus']} GPUs"
    if not torch["nccl"] and torch["num_gpus"] > 1:
        return _problem(name, found, "several GPUs need a torch that is built with NCCL")
    return _ok(name, found)


def _runs_on(built: list[str], major: int, minor: int) -> bool:
    """Machine code runs on its own major version from its minor on; PTX is compiled for later."""
    for architecture in built:
        kind, _, digits = architecture.rstrip("af").partition("_")
        of = (int(digits[:-1]), int(digits[-1]))
        if of <= (major, minor) and (kind == "compute" or of[0] == major):
            return True
    return False


def _gpu(facts: MachineFacts, device: NvidiaDevice) -> Check:
    name = f"GPU {device.index}"
    preset = gpu_of_device(device.product, device.memory_bytes)
    held = device.memory_bytes - device.free_bytes
    found = (
        f"{device.product}, {size_text(device.free_bytes)} of {size_text(device.memory_bytes)} "
        f"free, preset {preset.name if preset else 'none'}"
    )
    if device.process_ids or held > _HELD_SHARE * device.memory_bytes:
        holders = [
            f"{process_id} ({facts.processes.get(process_id, 'name not known')})"
            for process_id in device.process_ids
        ]
        return _note(
            name,
            found,
            f"{size_text(held)} are held by {', '.join(holders) or 'processes not shown'}: trials "
            "would run out of memory too early and be slowed down; end them, or use other GPUs",
        )
    if preset is None:
        return _note(
            name, found, "cluster: auto needs a preset; give the numbers, see docs/clusters.md"
        )
    return _ok(name, found)


def _compilers(facts: MachineFacts) -> Iterator[Check]:
    uses = {
        "g++": "DeepSpeed compiles its CPU operations (offload) with it",
        "nvcc": "DeepSpeed compiles its fused kernels with it (the CUDA toolkit)",
        "ninja": "torch builds extensions with it",
    }
    for name, path in facts.compilers.items():
        needed = name != "nvcc" or bool(facts.visible)
        if path is not None or not needed:
            yield _ok(name, path or "not installed, and not needed without a GPU")
        else:
            yield _note(name, "not installed", f"{uses[name]}; plans that need it would fail")


def _machine(facts: MachineFacts) -> Iterator[Check]:
    memory = f"{size_text(facts.available_bytes)} of {size_text(facts.memory_bytes)} available"
    if facts.available_bytes < _AVAILABLE_BYTES:
        yield _note("memory", memory, "too little for two ranks with their imports; free some")
    else:
        yield _ok("memory", f"{memory}, {facts.num_cores} cores")
    if facts.shm_bytes < _SHM_BYTES:
        yield _note(
            "/dev/shm",
            size_text(facts.shm_bytes),
            "NCCL and Ray keep buffers there; start the container with --shm-size=8g or --ipc=host",
        )
    else:
        yield _ok("/dev/shm", size_text(facts.shm_bytes))
    yield from _limits(facts)
    if facts.folder_error is not None:
        yield _problem(
            "folder",
            f"{facts.folder}: {facts.folder_error}",
            "studies are kept under the working folder; run where you may write, or give --study",
        )
    elif facts.disk_free_bytes < _DISK_BYTES:
        yield _note("folder", f"{size_text(facts.disk_free_bytes)} free", "free some disk")
    else:
        yield _ok("folder", f"{facts.folder}, {size_text(facts.disk_free_bytes)} free")


def _limits(facts: MachineFacts) -> Iterator[Check]:
    files = facts.limits["open files"]
    if files is not None and files < _OPEN_FILES:
        yield _note("open files", str(files), f"ulimit -n {_OPEN_FILES}, or ranks may lack sockets")
    else:
        yield _ok("open files", "unlimited" if files is None else str(files))
    locked = facts.limits["locked memory"]
    if facts.visible and locked is not None:
        yield _note(
            "locked memory",
            size_text(locked),
            "InfiniBand registers memory: ulimit -l unlimited, on nodes that have it",
        )
    for name in ("data", "address space"):
        limit = facts.limits[name]
        if limit is not None:
            yield _note(
                f"limit of {name}",
                size_text(limit),
                "ranks inherit it and would fail to allocate although memory is there; lift it",
            )


def _ray(facts: MachineFacts) -> Iterator[Check]:
    version = facts.versions.get("ray")
    if version is None:
        yield _note("ray", "not installed", "give --runner local, or pip install ray")
    else:
        yield _ok("ray", version)
    if facts.ray is None:
        return
    name = f"ray at {facts.ray.address}"
    if facts.ray.error is not None:
        yield _problem(name, "does not answer", facts.ray.error)
        return
    nodes = [f"{node.host}: {node.num_gpus} GPUs, {node.num_cpus} CPUs" for node in facts.ray.nodes]
    yield _ok(name, f"{len(nodes)} nodes; " + "; ".join(nodes))
