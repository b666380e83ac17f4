"""The layout as PyTorch's own objects say it runs, in the words of the plan."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import ReplicateModule
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule

from runners.bench.pytorch_layout import Layout
from tuner.plan import Backend, Offload, Precision, Recompute

_PRECISIONS = {
    None: Precision.FP32,
    torch.float32: Precision.FP32,
    torch.bfloat16: Precision.BF16,
    torch.float16: Precision.FP16,
}


def effective_layout(
    layout: Layout, models: list[nn.Module], *, sharded_states: bool
) -> dict[str, Any]:
    """The knobs read back from the mesh and the wrapped modules."""
    mesh, file = layout.mesh, layout.file
    sharded = isinstance(models[0], FSDPModule) and not isinstance(models[0], ReplicateModule)
    return {
        "backend": str(Backend.PYTORCH),
        "zero_stage": _sharded_stage(models) if sharded else int(sharded_states),
        "dp_replicate": mesh["dp_replicate"].size() if sharded else 1,
        "micro_batch": file.micro_batch,
        "tp": mesh["tp"].size(),
        "pp": mesh["pp"].size(),
        "vpp": len(models),
        "cp": 1,
        "ep": 1,
        "sequence_parallel": file.parallelism.enable_sequence_parallel,
        "precision": str(_precision(layout, models[0])),
        "recompute": str(_recompute(models)),
        "offload": str(_offload(models[0])),
        "data_parallel": mesh["dp_replicate"].size() * mesh["dp_shard"].size(),
        "wrapper": type(models[0]).__name__,
    }


def _fsdp_groups(model: nn.Module) -> list[Any]:
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    return [group for module in modules for group in module._get_fsdp_state()._fsdp_param_groups]


def _sharded_stage(models: list[nn.Module]) -> int:
    groups = [group for model in models for group in _fsdp_groups(model)]
    return 3 if any(group._reshard_after_forward for group in groups) else 2


def _precision(layout: Layout, model: nn.Module) -> Precision:
    groups = _fsdp_groups(model)
    if groups:
        return _PRECISIONS[groups[0].mp_policy.param_dtype]
    return _PRECISIONS[layout.file.training.compute_dtype]


def _recompute(models: list[nn.Module]) -> Recompute:
    wrappers = [m for model in models for m in model.modules() if isinstance(m, CheckpointWrapper)]
    if not wrappers:
        return Recompute.NONE
    selects = "context_fn" in wrappers[0].checkpoint_fn.keywords
    return Recompute.SELECTIVE if selects else Recompute.FULL


def _offload(model: nn.Module) -> Offload:
    policies = [group.offload_policy for group in _fsdp_groups(model)]
    offloads = any(isinstance(policy, CPUOffloadPolicy) for policy in policies)
    return Offload.PARAMS if offloads else Offload.NONE
