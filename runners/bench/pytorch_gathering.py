"""When FSDP2 gathers a layer's parameters and lets them go, where it is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule

from runners.bench.pytorch_file import ParatuneTable


def gather_as_told(layers: Sequence[nn.Module], told: ParatuneTable) -> None:
    """Sets what differs from torch's own way; ``layers`` are of one stage, in their order."""
    sharded: list[Any] = [layer for layer in layers if isinstance(layer, FSDPModule)]
    for place, layer in enumerate(sharded):
        after = sharded[place + 1 : place + 1 + told.fsdp_forward_prefetch]
        if after:
            layer.set_modules_to_forward_prefetch(after)
        before = sharded[max(0, place - told.fsdp_backward_prefetch) : place]
        if before and told.fsdp_backward_prefetch:
            layer.set_modules_to_backward_prefetch(before[::-1])
    if sharded and not told.fsdp_reshard_last_layer:
        sharded[-1].set_reshard_after_forward(False, recurse=False)


def gathering_facts(models: Sequence[nn.Module]) -> dict[str, bool | int]:
    """What FSDP2's own objects say of it, as the settings' values; of no FSDP, nothing."""
    states: list[Any] = [
        module._get_fsdp_state()
        for model in models
        for module in model.modules()
        if isinstance(module, FSDPModule)
    ]
    if not states:
        return {}
    reshards = [
        group._reshard_after_forward for state in states for group in state._fsdp_param_groups
    ]
    return {
        "fsdp_forward_prefetch": max(len(state._states_to_forward_prefetch) for state in states),
        "fsdp_backward_prefetch": max(len(state._states_to_backward_prefetch) for state in states),
        "fsdp_reshard_last_layer": all(reshards),
    }
