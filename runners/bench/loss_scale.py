"""Dynamic loss scaling for fp16 that agrees over all ranks, however parameters are sharded."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

INITIAL_SCALE = 2.0**14
_GROWTH_STEPS = 1000


class LossScale:
    """Multiplies the loss so that small fp16 gradients do not vanish.

    ``torch.amp.GradScaler`` looks for overflows in its own rank's gradients only: ranks that hold
    different shards or stages would disagree on whether to take a step.
    """

    def __init__(self, *, enabled: bool) -> None:
        self.value = INITIAL_SCALE if enabled else 1.0
        self._enabled = enabled
        self._good_steps = 0

    def unscale(self, parameters: Iterable[torch.nn.Parameter]) -> bool:
        """Divides gradients by the scale; False where some rank's overflowed: skip the step."""
        if not self._enabled:
            return True
        gradients = [_local(p.grad) for p in parameters if p.grad is not None]
        bad = torch.zeros((), device=gradients[0].device)
        for gradient in gradients:
            gradient.div_(self.value)
            bad += (~torch.isfinite(gradient)).any()
        dist.all_reduce(bad)
        if bad.item() > 0:
            self.value /= 2
            self._good_steps = 0
            return False
        self._good_steps += 1
        if self._good_steps % _GROWTH_STEPS == 0:
            self.value *= 2
        return True


def _local(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
