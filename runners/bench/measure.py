"""Whole optimizer steps, timed between barriers; the slowest rank counts."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from runners.bench.training import Training


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed_step(training: Training, index: int, device: torch.device) -> float:
    """Seconds of this step on this rank, from a barrier to the end of its own work."""
    _synchronize(device)
    dist.barrier()
    start = time.perf_counter()
    training.step(index)
    _synchronize(device)
    return time.perf_counter() - start


def slowest(seconds: list[float], device: torch.device) -> tuple[float, ...]:
    """The largest over all ranks, element by element."""
    times = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return tuple(times.tolist())
