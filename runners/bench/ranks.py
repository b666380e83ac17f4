"""This rank's place among the others, its device, and the process group."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

GROUP_TIMEOUT = timedelta(minutes=10)
"""Longer than any phase limit: the supervisor ends a hang, not the process group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """The variables that torchrun, the deepspeed launcher and our supervisor all set."""

    rank: int
    local_rank: int
    num_ranks: int

    @classmethod
    def from_environment(cls) -> RankPlace:
        """Read from RANK, LOCAL_RANK and WORLD_SIZE; alone without them."""
        return cls(
            rank=int(os.environ.get("RANK", "0")),
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            num_ranks=int(os.environ.get("WORLD_SIZE", "1")),
        )


def rank_device(place: RankPlace) -> torch.device:
    """The GPU of this rank where there is one, else the CPU. Opens the device."""
    if torch.cuda.is_available():
        device = torch.device("cuda", place.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")


def start_process_group(place: RankPlace, device: torch.device) -> None:
    """Joins all ranks: NCCL on GPUs (gloo beside it for host tensors), gloo on CPUs."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    if place.num_ranks == 1:
        os.environ.setdefault("MASTER_PORT", "0")
    dist.init_process_group(
        backend="cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        rank=place.rank,
        world_size=place.num_ranks,
        timeout=GROUP_TIMEOUT,
        device_id=device if device.type == "cuda" else None,
    )
