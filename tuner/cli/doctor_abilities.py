"""What the installed stack can and cannot run here, each with what is missing; pure."""

from __future__ import annotations

from collections.abc import Iterator

from runners.machine_facts import MachineFacts
from tuner.cli.doctor_checks import Check, Status

_BF16_CAPABILITY, _FP8_CAPABILITY = (8, 0), (8, 9)
"""Ampere; Ada and Hopper (NVIDIA's CUDA programming guide)."""
_SILENT: dict[str, str] = {
    "NCCL_P2P_DISABLE": "GPUs of a node talk through the host's memory, many times slower",
    "NCCL_SHM_DISABLE": "GPUs of a node talk through the network card, slower",
    "NCCL_IB_DISABLE": "nodes talk over TCP instead of InfiniBand, many times slower",
    "NCCL_NET_GDR_LEVEL": "network cards may be kept from reading the GPU's memory",
    "NCCL_ALGO": "collectives are held to one algorithm, whatever their size",
    "NCCL_PROTO": "collectives are held to one protocol, whatever their size",
    "NCCL_DEBUG": "logs of every rank grow with each communicator",
    "CUDA_LAUNCH_BLOCKING": "every kernel is waited for: times are not those of training",
    "CUDA_DEVICE_MAX_CONNECTIONS": "where a plan sets none itself, 1 keeps FSDP from overlapping",
    "TORCH_NCCL_BLOCKING_WAIT": "collectives block the host, so nothing overlaps",
    "TORCH_DISTRIBUTED_DEBUG": "collectives are checked each time, which slows them down",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every tensor is allocated anew: much slower",
    "PYTORCH_CUDA_ALLOC_CONF": "it changes how much memory is lost to fragments",
    "PYTORCH_ALLOC_CONF": "it changes how much memory is lost to fragments",
    "OMP_NUM_THREADS": "it replaces the share of the cores that each rank is given",
    "RAY_ADDRESS": "paratune joins a Ray only where --ray-address names it",
}
"""Variables that change what a trial measures without a word, and how."""
_OFF = ("", "0", "OFF", "off", "false", "False")


def ability_checks(facts: MachineFacts) -> tuple[Check, ...]:
    """Precisions, axes and kernels, then what the environment changes."""
    return (*_precisions(facts), *_megatron(facts), _offload(facts), *_variables(facts))


def _can(name: str, found: str) -> Check:
    return Check(name=name, status=Status.OK, found=f"yes: {found}")


def _cannot(name: str, found: str, advice: str) -> Check:
    return Check(name=name, status=Status.NOTE, found=f"no: {found}", advice=advice)


def _lowest_capability(facts: MachineFacts) -> tuple[int, int] | None:
    """Of the GPUs that torch sees; None without any."""
    seen = facts.imports["torch"].facts.get("capabilities", [])
    return min(((int(major), int(minor)) for major, minor in seen), default=None)


def _precisions(facts: MachineFacts) -> Iterator[Check]:
    capability = _lowest_capability(facts)
    if capability is None:
        yield _can("bf16", "on CPU ranks")
        yield _cannot("fp8", "CPU ranks have none", "it needs a GPU of Ada, Hopper or later")
        return
    number = ".".join(str(part) for part in capability)
    if capability >= _BF16_CAPABILITY:
        yield _can("bf16", f"compute capability {number}")
    else:
        yield _cannot("bf16", f"compute capability {number}, 8.0 is needed", "use fp16")
    engine = facts.versions.get("transformer-engine")
    if capability < _FP8_CAPABILITY:
        yield _cannot(
            "fp8",
            f"compute capability {number}, 8.9 is needed",
            "fp8 plans are left out; use a GPU of Ada, Hopper or later for them",
        )
    elif engine is None:
        yield _cannot(
            "fp8", "transformer-engine is not installed", "pip install transformer-engine[pytorch]"
        )
    else:
        yield _can("fp8", f"compute capability {number}, transformer-engine {engine}")


def _megatron(facts: MachineFacts) -> Iterator[Check]:
    megatron = facts.imports["megatron-core"]
    if megatron.error is not None:
        return
    engine = facts.versions.get("transformer-engine")
    install = (
        "pip install transformer-engine[pytorch]"
        if facts.visible
        else "it needs NVIDIA GPUs and transformer-engine"
    )
    lacking = "transformer-engine is not installed"
    if engine is None:
        yield _cannot("context parallelism", f"{lacking} (Megatron)", install)
        yield _cannot("fused kernels", f"{lacking} (Megatron)", install)
    else:
        yield _can("context parallelism", f"transformer-engine {engine} (Megatron)")
        yield _can("fused kernels", f"transformer-engine {engine} (Megatron)")
    if engine is not None or megatron.facts["grouped_gemm"]:
        yield _can("expert parallelism", "with grouped matrix products")
    else:
        yield Check(
            name="expert parallelism",
            status=Status.NOTE,
            found="yes, but one matrix product an expert: no grouped GEMM",
            advice=install,
        )
    if megatron.facts["gradient_fusion"]:
        yield _can("gradient accumulation fusion", "APEX has fused_weight_gradient_mlp_cuda")
    else:
        yield _cannot(
            "gradient accumulation fusion",
            "APEX's fused_weight_gradient_mlp_cuda is not installed",
            "weight gradients are added in a step of their own; build APEX with --cuda_ext to fuse"
            if facts.visible
            else "it needs NVIDIA GPUs and APEX",
        )


def _offload(facts: MachineFacts) -> Check:
    deepspeed = facts.imports["deepspeed"]
    if deepspeed.error is not None:
        return _cannot("offload", "deepspeed does not load", "see deepspeed above")
    if not facts.visible:
        return _cannot("offload", "CPU ranks have nowhere to offload to", "it needs a GPU")
    missing = [name for name in ("g++", "ninja") if facts.compilers[name] is None]
    if missing or not deepspeed.facts["cpu_adam"]:
        return _cannot(
            "offload",
            f"CPUAdam cannot be compiled ({', '.join(missing) or 'DeepSpeed says so'})",
            "install what is missing, and the CUDA toolkit of torch; or pin offload: none",
        )
    return _can("offload", "DeepSpeed compiles CPUAdam on first use")


def _variables(facts: MachineFacts) -> Iterator[Check]:
    for name, effect in _SILENT.items():
        value = facts.env.get(name)
        if value is not None and value not in _OFF:
            yield Check(
                name=name,
                status=Status.NOTE,
                found=value,
                advice=f"{effect}; unset it unless you train with it",
            )
    others = sorted(set(facts.env) - set(_SILENT))
    if others:
        each = ", ".join(f"{name}={facts.env[name]}" for name in others)
        yield Check(name="other variables", status=Status.OK, found=each)
