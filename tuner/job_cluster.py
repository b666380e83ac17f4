"""The ``cluster`` section of a job file, and the cluster that it describes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import psutil
from pydantic import BeforeValidator, Field

from tuner.cluster import Cluster, Device, Gpu
from tuner.errors import UserError
from tuner.job_fields import Degree, Rate, Size, Spelled, Strict
from tuner.presets import CPU_NAME, cpu_rank, gpu_names_by_nearness, gpus_spelled
from tuner.units import MOST_GPUS, size_text

DOCS = "docs/clusters.md"
EXAMPLE_TEXT = "2x8 h100-sxm-80gb"

_TEXT = re.compile(
    r"\s*(?:(\d{1,18})\s*x\s*)?(\d{1,18})\s*(?:x\s*|\s)\s*([a-z].*?)\s*", re.IGNORECASE
)
"""Nodes x GPUs of each, and their name; without the first, one node."""

_NUM_NEAREST = 4
"""Known GPUs that a message names where one is not known."""

_PRECISIONS = ("fp32", "fp16", "bf16", "fp8")

_Nodes = Annotated[int, Field(ge=1, le=MOST_GPUS, strict=True)]
Tflops = Annotated[float, Field(gt=0)] | None


def _name_as_section(value: Any) -> Any:
    if isinstance(value, list):
        kinds = ", ".join(str(kind) for kind in value)
        raise ValueError(
            f"the GPUs of a cluster must all be equal, so it must be one name, got {kinds}; use "
            "those of one kind"
        )
    return {"name": value} if isinstance(value, str) else value


def _one_count(value: Any) -> Any:
    if not isinstance(value, list) or not value:
        return value
    got = ", ".join(str(count) for count in value)
    most = max(set(value), key=value.count) if all(isinstance(n, int) for n in value) else "COUNT"
    raise ValueError(
        f"nodes must be equal, so it must be one number, got {got}; use the equal ones: "
        f"num_nodes: {value.count(most)}, gpus_per_node: {most}"
    )


def _capability(value: Any) -> Any:
    if re.fullmatch(r"\d+\.\d", str(value)) is None:
        raise ValueError(f"it must be CUDA's, such as 9.0 for Hopper, got {value!r}")
    return str(value)


class GpuSection(Strict):
    """``cluster.gpu``: a name, or a name with numbers of its own; rates of one direction."""

    name: str
    """A preset, one of its usual spellings, ``cpu`` for CPU ranks, or a name of your own."""
    memory: Size | None = None
    """As the driver shows it."""
    fp32_tflops: Tflops = None
    """Dense rate of matrix products; halve a datasheet's figure "with sparsity"."""
    fp16_tflops: Tflops = None
    """The same in fp16."""
    bf16_tflops: Tflops = None
    """The same in bf16."""
    fp8_tflops: Tflops = None
    """The same in fp8; left out where the GPU has none."""
    memory_bandwidth: Rate | None = None
    """Of its own memory."""
    link: Rate | None = None
    """To the other GPUs of its node, one direction."""
    pcie: Rate | None = None
    """To the host, one direction; 25 GB/s unless given."""
    compute_capability: Annotated[str | None, BeforeValidator(_capability)] = None
    """CUDA's, such as 9.0; fp8 plans of some frameworks ask for it."""

    def tflops(self) -> Mapping[str, float]:
        """The dense rates that were given, by precision."""
        given = {name: getattr(self, f"{name}_tflops") for name in _PRECISIONS}
        return {name: rate for name, rate in given.items() if rate is not None}

    def has_numbers(self) -> bool:
        """Whether it says more than a name."""
        return self.model_fields_set != {"name"}


class ClusterSection(Strict):
    """``cluster``: what it is trained on."""

    gpu: Annotated[GpuSection, BeforeValidator(_name_as_section), Spelled("a name or a section")]
    """Which GPU: a name, or a section with numbers of its own. All are equal."""
    num_nodes: _Nodes = 1
    """Nodes, all equal."""
    gpus_per_node: Annotated[_Nodes, BeforeValidator(_one_count)]
    """GPUs of one node; every plan uses all of them."""
    memory: Size | None = None
    """Of one GPU; needed only to plan with less than the datasheet says."""
    link: Rate | None = None
    """Between the GPUs of a node, instead of the preset's."""
    network: Rate | None = None
    """Of one network card."""
    rails: Degree | None = None
    """Network cards of a node."""
    nodes_per_nvlink_domain: Degree = 1
    """Nodes whose GPUs NVLink joins: 18 in a GB200 NVL72."""


def section_of_text(value: Any) -> Any:
    """The section that a text (``2x8 h100-sxm-80gb``) stands for; other values as they are."""
    match = _TEXT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    return {
        "gpu": match[3],
        "num_nodes": int(match[1] or 1),
        "gpus_per_node": int(match[2]),
    }


def described_cluster(section: ClusterSection, limit_bytes: int | None, *, named: str) -> Cluster:
    """The cluster that a section describes.

    Args:
        section: the section, its values already valid by themselves.
        limit_bytes: what a rank may allocate, where given; a CPU rank has that much memory.
        named: what stands before the key in a message, with the file.

    Raises:
        UserError: the GPU is unknown, ambiguous or incomplete, or two keys contradict each other.
    """
    gpu = _gpu(section, limit_bytes, named)
    if section.memory is not None and section.memory > gpu.memory_bytes:
        raise UserError(
            f"{named}.memory must be at most what a {gpu.name} has "
            f"({size_text(gpu.memory_bytes)}), got {size_text(section.memory)}"
        )
    if section.num_nodes * section.gpus_per_node > MOST_GPUS:
        raise UserError(
            f"{named}.num_nodes * gpus_per_node must be at most {MOST_GPUS} GPUs, got "
            f"{section.num_nodes} * {section.gpus_per_node}"
        )
    if section.rails is not None and section.network is None:
        raise UserError(
            f"{named}.network must be given with rails ({section.rails}): the rate of one network "
            "card, such as 400Gb/s"
        )
    if section.link is not None:
        gpu = replace(gpu, link_bytes_per_s=section.link)
    cluster = Cluster(
        gpu=gpu,
        num_nodes=section.num_nodes,
        gpus_per_node=section.gpus_per_node,
        nodes_per_nvlink_domain=section.nodes_per_nvlink_domain,
    )
    if section.network is None:
        return cluster
    share = section.network * (section.rails or 1) / section.gpus_per_node
    return replace(cluster, network_bytes_per_s=share)


def cpu_cluster_of_this_machine() -> Cluster:
    """One CPU rank a core, four fifths of the memory shared among them."""
    num_ranks = len(os.sched_getaffinity(0))
    return Cluster(gpu=cpu_rank(_cpu_share_bytes(num_ranks)), gpus_per_node=num_ranks)


def _cpu_share_bytes(ranks_per_node: int) -> int:
    """Four fifths of this machine's memory, shared by the ranks of a node."""
    return int(psutil.virtual_memory().total * 0.8 / ranks_per_node)


def _gpu(section: ClusterSection, limit_bytes: int | None, named: str) -> Gpu:
    given = section.gpu
    if given.name.lower() == CPU_NAME:
        memory = given.memory or section.memory or limit_bytes
        cores = len(os.sched_getaffinity(0)) / section.gpus_per_node
        share_bytes = memory or _cpu_share_bytes(section.gpus_per_node)
        return _changed(cpu_rank(share_bytes, cores=cores), given)
    spelled = gpus_spelled(given.name)
    if len(spelled) == 1:
        return _changed(spelled[0], given)
    missing = _missing(given)
    if not missing:
        return _explicit(given)
    if given.has_numbers() and not spelled:
        raise UserError(
            f"{named}.gpu must be a known GPU or have all its numbers, and {given.name} is not "
            f"known; missing are {', '.join(missing)}; see {DOCS}"
        )
    if spelled:
        raise UserError(
            f"{named}.gpu must name one GPU, got {given.name!r}, which may be "
            f"{' or '.join(gpu.name for gpu in spelled)}; write one of these"
        )
    known = gpu_names_by_nearness(given.name)
    raise UserError(
        f"{named}.gpu must be a known GPU or {CPU_NAME}, got {given.name!r}; the nearest are "
        f"{', '.join(known[:_NUM_NEAREST])}; all {len(known)}, and how to give the numbers of "
        f"another, are in {DOCS}"
    )


def _missing(given: GpuSection) -> list[str]:
    missing = [
        key
        for key in ("memory", "memory_bandwidth", "link", "fp32_tflops")
        if getattr(given, key) is None
    ]
    if given.bf16_tflops is None and given.fp16_tflops is None:
        missing.append("bf16_tflops or fp16_tflops")
    return missing


def _explicit(given: GpuSection) -> Gpu:
    """A GPU without a preset; ``_missing`` has found nothing."""
    blank = Gpu(
        name=given.name,
        device=Device.CUDA,
        memory_bytes=0,
        flops_per_s={},
        memory_bytes_per_s=0.0,
        link_bytes_per_s=0.0,
    )
    return _changed(blank, given)


def _changed(gpu: Gpu, given: GpuSection) -> Gpu:
    """A GPU with the numbers that the file gives instead of its own."""
    if not given.has_numbers():
        return gpu
    capability = gpu.compute_capability
    if given.compute_capability is not None:
        major, _, minor = given.compute_capability.partition(".")
        capability = (int(major), int(minor))
    flops = {name: rate * 1e12 for name, rate in given.tflops().items()}
    return replace(
        gpu,
        memory_bytes=given.memory or gpu.memory_bytes,
        flops_per_s={**gpu.flops_per_s, **flops},
        memory_bytes_per_s=given.memory_bandwidth or gpu.memory_bytes_per_s,
        link_bytes_per_s=given.link or gpu.link_bytes_per_s,
        pcie_bytes_per_s=given.pcie or gpu.pcie_bytes_per_s,
        compute_capability=capability,
        source=f"{gpu.source}, changed by the job file" if gpu.source else "the job file",
    )
