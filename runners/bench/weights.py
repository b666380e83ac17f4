"""Initial weights as a function of (seed, parameter name): every layout starts from the same."""

from __future__ import annotations

import zlib

import torch

INIT_STD = 0.02
"""The usual initializer_range of GPT-2 and Llama."""


def initial_weight(
    name: str, shape: torch.Size | tuple[int, ...], *, seed: int, device: torch.device
) -> torch.Tensor:
    """The whole initial value, fp32, of the parameter with this name in the unsharded model.

    Vectors named ``weight`` belong to norms and start at 1, biases at 0, matrices are normal.
    The same on every rank (of one kind of device): a shard is a slice of it.
    """
    if name.endswith("bias"):
        return torch.zeros(shape, device=device)
    if len(shape) == 1:
        return torch.ones(shape, device=device)
    generator = torch.Generator(device=device)
    generator.manual_seed(seed * 2**32 + zlib.crc32(name.encode()))
    return torch.randn(shape, generator=generator, device=device) * INIT_STD
