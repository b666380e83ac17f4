"""The layout as PyTorch's own objects say it runs, in the words of the plan.

Degrees come from the process groups that the wrapped modules hold, not from what was asked.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import ReplicateModule
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from runners.bench.pytorch_gathering import gathering_facts
from runners.bench.pytorch_layout import Layout
from tuner.plan import Backend, Offload, Precision, Recompute

_PRECISIONS = {
    None: Precision.FP32,
    torch.float32: Precision.FP32,
    torch.bfloat16: Precision.BF16,
    torch.float16: Precision.FP16,
}
_TP_AXIS = "tp"
_T = TypeVar("_T")


def effective_layout(
    layout: Layout,
    models: list[nn.Module],
    *,
    sharded_states: bool,
    autocast_dtype: torch.dtype | None,
) -> dict[str, Any]:
    """The knobs read back from the wrapped modules, and what else was asked of them.

    Args:
        layout: gives the mesh, for the axes that no module knows of.
        models: this rank's, one a stage.
        sharded_states: whether the optimizer shards its states itself.
        autocast_dtype: what torch casts to in a forward pass that DDP wraps; None = nothing.
    """
    shard, replicate = _data_degrees(models[0])
    sharded = isinstance(models[0], FSDPModule) and not isinstance(models[0], ReplicateModule)
    policy = _policy(models[0])
    dtype = autocast_dtype if policy is None else policy.param_dtype
    return {
        "backend": str(Backend.PYTORCH),
        "zero_stage": _sharded_stage(models) if sharded else int(sharded_states),
        "dp_replicate": replicate if sharded else 1,
        "micro_batch": layout.file.micro_batch,
        "tp": _tensor_parallel(models),
        "pp": layout.mesh["pp"].size(),
        "vpp": len(models),
        "cp": 1,
        "ep": 1,
        "sequence_parallel": any(_splits_sequence(model) for model in models),
        "precision": str(_PRECISIONS[dtype]),
        "recompute": str(_recompute(models)),
        "offload": str(_offload(models[0])),
        "data_parallel": shard * replicate,
        "data_parallel_shard": shard,
        "wrapper": type(models[0]).__name__,
        "master_dtype": _only({str(p.dtype) for model in models for p in model.parameters()}),
        "reduce_dtype": str(torch.float32 if policy is None else policy.reduce_dtype),
        "settings": _ddp_facts(models[0]) | gathering_facts(models),
    }


def _ddp_facts(model: nn.Module) -> dict[str, bool | int]:
    if not isinstance(model, DistributedDataParallel):
        return {}
    return {
        "ddp_bucket_cap_mb": int(model.bucket_bytes_cap) // 2**20,
        "ddp_gradient_as_bucket_view": bool(model.gradient_as_bucket_view),
        "ddp_static_graph": bool(model.static_graph),
    }


def tensor_placements(model: nn.Module) -> dict[str, str]:
    """How each parameter lies on the tensor-parallel ranks: ``S(0)``, ``S(1)`` or ``R``."""
    placements = {}
    for name, parameter in model.named_parameters():
        mesh = _tp_mesh(parameter)
        if mesh is not None and isinstance(parameter, DTensor):
            axis = (mesh.mesh_dim_names or ()).index(_TP_AXIS)
            placement: Any = parameter.placements[axis]
            # Under FSDP a split first dimension becomes a strided shard of the same dimension.
            placements[name] = f"S({placement.dim})" if placement.is_shard() else "R"
    return placements


def _tp_mesh(parameter: torch.Tensor) -> DeviceMesh | None:
    if not isinstance(parameter, DTensor):
        return None
    mesh: DeviceMesh = parameter.device_mesh
    return mesh if _TP_AXIS in (mesh.mesh_dim_names or ()) else None


def _tensor_parallel(models: list[nn.Module]) -> int:
    meshes = [_tp_mesh(parameter) for model in models for parameter in model.parameters()]
    return _only({mesh[_TP_AXIS].size() for mesh in meshes if mesh is not None} or {1})


def _splits_sequence(model: nn.Module) -> bool:
    """The norms around attention are the tensor-parallel ranks' only where these split tokens."""
    norms = [m for n, m in model.named_modules() if n.endswith("input_layernorm")]
    if any(list(norm.parameters()) for norm in norms):
        return any(_tp_mesh(p) is not None for norm in norms for p in norm.parameters())
    return any(norm._forward_pre_hooks for norm in norms)


def _fsdp_groups(model: nn.Module) -> list[Any]:
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    return [group for module in modules for group in module._get_fsdp_state()._fsdp_param_groups]


def _policy(model: nn.Module) -> Any:
    groups = _fsdp_groups(model)
    return _only({group.mp_policy for group in groups}) if groups else None


def _data_degrees(model: nn.Module) -> tuple[int, int]:
    """Ranks that share one copy of the states, and copies."""
    if isinstance(model, DistributedDataParallel):
        return 1, model.process_group.size()
    infos = [group.mesh_info for group in _fsdp_groups(model)]
    degrees = {
        (getattr(info, "shard_mesh_size", 1), getattr(info, "replicate_mesh_size", 1))
        for info in infos
    }
    return _only(degrees)


def _sharded_stage(models: list[nn.Module]) -> int:
    """What is left of ``reshard_after_forward``, which FSDP2 normalises.

    Stage 3 shards again after the forward pass; the last layer of a stage may be told not to.
    """
    groups = [group for model in models for group in _fsdp_groups(model)]
    return 3 if any(group._reshard_after_forward for group in groups) else 2


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


def _only(values: set[_T]) -> _T:
    assert len(values) == 1, f"all parts of a rank must be laid out alike, got {values}"
    return next(iter(values))
