"""What it is trained on: GPUs (or CPU ranks), nodes and links; no software."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tuner.units import MOST_GPUS


class Device(StrEnum):
    """What a rank computes on."""

    CUDA = "cuda"
    CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of GPU, or one CPU rank standing in for it."""

    name: str
    device: Device
    memory_bytes: int
    flops_per_s: Mapping[str, float] = field(hash=False)
    """Dense peak rate per precision (``bf16``, ...); a missing precision is not supported."""
    memory_bytes_per_s: float
    link_bytes_per_s: float
    """To another GPU of the same NVLink domain, one direction."""
    pcie_bytes_per_s: float = 25e9
    """To the host's memory, one direction, as copies reach it: 32 GB/s of PCIe gen 4 x16."""
    compute_capability: tuple[int, int] = (0, 0)
    """CUDA's, (9, 0) for Hopper; (0, 0) where there is none."""
    cores: float = 1.0
    """Of a CPU rank: its share of its node's cores; below 1 ranks wait for one another."""
    source: str = ""
    """The datasheet that the numbers come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal nodes of equal GPUs."""

    gpu: Gpu
    num_nodes: int = 1
    gpus_per_node: int = 1
    network_bytes_per_s: float = 50e9
    """From one GPU to another node, one direction: 400 Gb/s InfiniBand unless given."""
    nodes_per_nvlink_domain: int = 1
    """Nodes whose GPUs reach each other over NVLink; 18 in a GB200 NVL72."""

    def __post_init__(self) -> None:
        for name in ("num_nodes", "gpus_per_node", "nodes_per_nvlink_domain"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.num_gpus > MOST_GPUS:
            raise ValueError(f"num_nodes * gpus_per_node must be at most {MOST_GPUS}")

    @property
    def num_gpus(self) -> int:
        """GPUs of all nodes; one rank each."""
        return self.num_nodes * self.gpus_per_node

    @property
    def gpus_per_nvlink_domain(self) -> int:
        """GPUs that reach each other at ``link_bytes_per_s``."""
        return self.gpus_per_node * min(self.nodes_per_nvlink_domain, self.num_nodes)
