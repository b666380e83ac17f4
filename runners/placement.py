"""Where each rank of a trial ran: node, address and GPU, kept beside what came of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from runners.nvidia_devices import nvidia_driver, visible_devices
from tuner.errors import UserError

PLACEMENT_FILE = "placement.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedGpu:
    """A GPU by its number and its name for good, both the driver's."""

    index: int
    uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedNode:
    """A node of a trial; its ranks are consecutive, and so are those of a tensor-parallel group."""

    hostname: str
    address: str
    """Where the other nodes reach it."""
    ray_node_id: str | None
    gpus: tuple[PlacedGpu, ...]
    """By local rank; none where ranks are CPUs, or the driver does not tell."""


def visible_gpus(visible: str | None = None) -> tuple[PlacedGpu, ...]:
    """The GPUs that ranks of this machine may use, in the order of their local ranks.

    Args:
        visible: a value of CUDA_VISIBLE_DEVICES; that of this process unless given.
    """
    driver = nvidia_driver()
    if driver is None:
        return ()
    try:
        devices = visible_devices(driver.devices, visible)
    except UserError:  # whether trials can run on them is judged elsewhere
        return ()
    return tuple(PlacedGpu(index=device.index, uuid=device.uuid) for device in devices)


def write_placement(folder: Path, nodes: Sequence[PlacedNode], ranks_per_node: int) -> None:
    """Keeps it in a trial's folder, one entry a rank, in their order."""
    ranks = [
        {
            "rank": index * ranks_per_node + local_rank,
            "node": index,
            "local_rank": local_rank,
            "hostname": node.hostname,
            "address": node.address,
            "ray_node_id": node.ray_node_id,
            "gpu": asdict(node.gpus[local_rank]) if local_rank < len(node.gpus) else None,
        }
        for index, node in enumerate(nodes)
        for local_rank in range(ranks_per_node)
    ]
    (folder / PLACEMENT_FILE).write_text(json.dumps({"ranks": ranks}, indent=2) + "\n")
