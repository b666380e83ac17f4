"""Lays a model out over the ranks: fill, split, recompute and shard it, layer by layer.

At most one layer, or what is outside of the layers, exists whole at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from runners.bench.hf_model import decoder_layers, fill_parameters, move_buffers
from runners.bench.pytorch_file import PytorchFile
from runners.bench.pytorch_gathering import gather_as_told
from runners.bench.pytorch_stage import DecoderStage
from runners.bench.pytorch_tensor_parallel import split_ends, split_layer
from tuner.plan import Recompute

_KEPT_OPERATIONS = frozenset(
    {
        torch.ops.aten.mm.default,
        torch.ops.aten.addmm.default,
        torch.ops._c10d_functional.all_gather_into_tensor.default,
        torch.ops._c10d_functional.all_reduce.default,
        torch.ops._c10d_functional.reduce_scatter_tensor.default,
        torch.ops._c10d_functional.wait_tensor.default,
    }
)
"""What SELECTIVE keeps: the projections and what was sent; attention and the rest are redone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where and how a model is laid out."""

    file: PytorchFile
    mesh: DeviceMesh
    """Its axes, outermost first: pp, dp_replicate, dp_shard, tp."""
    device: torch.device
    seed: int

    @classmethod
    def over_ranks(cls, file: PytorchFile, device: torch.device, *, seed: int) -> Layout:
        """The layout of this file over all ranks. Collective."""
        degrees = file.parallelism
        mesh = init_device_mesh(
            device.type,
            (
                degrees.pipeline_parallel_degree,
                degrees.data_parallel_replicate_degree,
                degrees.data_parallel_shard_degree,
                degrees.tensor_parallel_degree,
            ),
            mesh_dim_names=("pp", "dp_replicate", "dp_shard", "tp"),
        )
        return cls(file=file, mesh=mesh, device=device, seed=seed)

    @property
    def data_rank(self) -> int:
        """Which of the data-parallel ranks this is."""
        inner = self.mesh["dp_shard"].size()
        outer_rank = self.mesh.get_local_rank("dp_replicate")
        return int(outer_rank * inner + self.mesh.get_local_rank("dp_shard"))


def laid_out(model: nn.Module, layout: Layout) -> nn.Module:
    """The model (its parameters on the meta device) filled and laid out. Collective."""
    degrees = layout.file.parallelism
    whole: Any = model.whole if isinstance(model, DecoderStage) else model
    splits = degrees.tensor_parallel_degree > 1
    layers: list[nn.Module] = []
    for name, layer in decoder_layers(whole).items():
        if isinstance(layer, nn.Identity):
            continue  # another stage's
        inner = [(f"{name}.{n}" if n else name, module) for n, module in layer.named_modules()]
        fill_parameters(inner, seed=layout.seed, device=layout.device)
        if splits:
            split_layer(
                layer,
                layout.mesh["tp"],
                tp_plan=whole.config.base_model_tp_plan,
                sequence_parallel=degrees.enable_sequence_parallel,
            )
        wrapped = _recomputed(layer, layout.file.activation_checkpoint.mode)
        parent, _, key = name.rpartition(".")
        setattr(whole.get_submodule(parent), key, wrapped)
        layers.append(wrapped)
        _data_parallel(wrapped, layout)
    rest = [pair for pair in whole.named_modules() if _is_on_meta(pair[1])]
    fill_parameters(rest, seed=layout.seed, device=layout.device)
    move_buffers(model, layout.device)
    if splits:
        split_ends(whole, layout.mesh["tp"], sequence_parallel=degrees.enable_sequence_parallel)
    if uses_ddp(layout.file):
        return _in_ddp(model, layout)
    _data_parallel(model, layout)
    if layout.file.paratune.zero_stage >= 2:
        gather_as_told(layers, layout.file.paratune)
    return model


def _in_ddp(model: nn.Module, layout: Layout) -> nn.Module:
    told = layout.file.paratune
    return DistributedDataParallel(
        model,
        device_ids=[layout.device.index] if layout.device.type == "cuda" else None,
        bucket_cap_mb=told.ddp_bucket_cap_mb,
        gradient_as_bucket_view=told.ddp_gradient_as_bucket_view,
        static_graph=told.ddp_static_graph,
    )


def uses_ddp(file: PytorchFile) -> bool:
    """DistributedDataParallel knows neither DTensors nor several stages of a rank."""
    degrees = file.parallelism
    split = degrees.tensor_parallel_degree > 1 or degrees.pipeline_parallel_degree > 1
    return file.paratune.zero_stage < 2 and not split


def _is_on_meta(module: nn.Module) -> bool:
    return any(parameter.is_meta for parameter in module.parameters(recurse=False))


def _recomputed(layer: nn.Module, mode: Recompute) -> nn.Module:
    # Keeping the random state waits for the device; only dropout needs it.
    keeps = _draws(layer)
    match mode:
        case Recompute.NONE:
            return layer
        case Recompute.FULL:
            return checkpoint_wrapper(layer, preserve_rng_state=keeps)
        case Recompute.SELECTIVE:
            contexts = partial(create_selective_checkpoint_contexts, _keep_projections)
            return checkpoint_wrapper(layer, context_fn=contexts, preserve_rng_state=keeps)


def _draws(layer: nn.Module) -> bool:
    """Whether the layer drops at random; attention keeps its rate beside its modules."""
    return any(
        (isinstance(module, nn.Dropout) and module.p > 0)
        or getattr(module, "attention_dropout", 0) > 0
        for module in layer.modules()
    )


def _keep_projections(_context: Any, operation: Any, *_args: Any, **_kwargs: Any) -> Any:
    if operation in _KEPT_OPERATIONS:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def _data_parallel(module: nn.Module, layout: Layout) -> None:
    """Shards (FSDP2) or replicates the parameters that no module inside has taken."""
    file = layout.file
    if uses_ddp(file):
        return
    dtype = file.training.compute_dtype
    policy = MixedPrecisionPolicy(
        param_dtype=None if dtype is torch.float32 else dtype, reduce_dtype=torch.float32
    )
    if file.paratune.zero_stage == 0:
        replicate(module, mesh=layout.mesh["dp_replicate"], mp_policy=policy)
        return
    offloads = file.training.enable_cpu_offload
    hybrid = file.parallelism.data_parallel_replicate_degree > 1
    fully_shard(
        module,
        mesh=layout.mesh["dp_replicate", "dp_shard"] if hybrid else layout.mesh["dp_shard"],
        reshard_after_forward=file.parallelism.fsdp_reshard_after_forward == "always",
        mp_policy=policy,
        offload_policy=CPUOffloadPolicy() if offloads else OffloadPolicy(),
    )
