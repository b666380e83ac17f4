"""Recomputation that DeepSpeed leaves to the training script: whole layers, or attention cores."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from tuner.plan import Recompute

_RECOMPUTED_CORE = "paratune_recomputed_sdpa"
"""The name by which transformers' layers look this attention up."""


def _recomputed_core(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Keeps only query, key and value: no parameter is inside, so ZeRO-3 gathers nothing again."""
    outputs: tuple[torch.Tensor, None] = checkpoint(
        sdpa_attention_forward,
        *(module, query, key, value, attention_mask),
        use_reentrant=False,
        preserve_rng_state=bool(options.get("dropout")),
        **options,
    )
    return outputs


AttentionInterface.register(_RECOMPUTED_CORE, _recomputed_core)
AttentionMaskInterface.register(_RECOMPUTED_CORE, sdpa_mask)


def recompute_in(model: Any, recompute: Recompute) -> None:
    """Has a transformers model recompute in its backward pass.

    Raises:
        ValueError: the model is the user's own, so its layers are not known.
    """
    if recompute is Recompute.NONE:
        return
    if not hasattr(model, "gradient_checkpointing_enable"):
        raise ValueError(
            f"recompute must be none for a model that is not transformers' own, got {recompute}"
        )
    if recompute is Recompute.FULL:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    else:
        model.config._attn_implementation = _RECOMPUTED_CORE


def recompute_of(model: nn.Module) -> Recompute:
    """What a model recomputes, read from its layers."""
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        return Recompute.FULL
    return core_recompute_of(model)


def core_recompute_of(model: nn.Module) -> Recompute:
    """Whether the attentions that are in here recompute their core."""
    cores = {
        module.config._attn_implementation
        for module in model.modules()
        if hasattr(module, "config") and hasattr(module.config, "_attn_implementation")
    }
    return Recompute.SELECTIVE if _RECOMPUTED_CORE in cores else Recompute.NONE
