"""AdamW over plain, sharded and split parameters, and the loss scale that fp16 needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor

from runners.bench.pytorch_file import PytorchFile


def adamw(
    parameters: Iterable[nn.Parameter], file: PytorchFile, device: torch.device
) -> torch.optim.Optimizer:
    """AdamW with states in the parameters' type, fp32; fused where the device has it."""
    # The fused kernel would undo the loss scale itself, a second time.
    scaled = file.training.compute_dtype is torch.float16
    options: dict[str, Any] = {
        "lr": file.optimizer.lr,
        "fused": device.type == "cuda" and not scaled,
    }
    if file.paratune.zero_stage == 1:
        return ZeroRedundancyOptimizer(
            list(parameters), optimizer_class=torch.optim.AdamW, **options
        )
    # One kernel updates many tensors at once, and those must live on the same mesh.
    groups: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault(mesh, []).append(parameter)
    return torch.optim.AdamW([{"params": group} for group in groups.values()], **options)


class ShardedGradScaler(torch.amp.GradScaler):
    """A GradScaler over shards: a step is skipped on all ranks or on none.

    Torch's own refuses gradients of different meshes, and asks only the ranks of a gradient's
    mesh, not the other pipeline stages.
    """

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, torch.Tensor]:
        grads: dict[torch.device, list[torch.Tensor]] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    local = _local(parameter.grad)
                    grads.setdefault(local.device, []).append(local)
        found = found_inf.clone()
        for device, tensors in grads.items():
            here = found_inf.to(device, copy=True)
            torch._amp_foreach_non_finite_check_and_unscale_(tensors, here, inv_scale.to(device))
            found = torch.maximum(found, here.to(found.device))
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return {found.device: found}


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
