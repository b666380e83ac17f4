"""The worst that a Megatron-Core router can do: every token of every rank to the same experts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from megatron.core.transformer.moe.router import TopKRouter


def send_all_tokens_to_the_first_experts(chunks: Sequence[torch.nn.Module]) -> None:
    """Changes the logits of every router; probabilities, losses and gradients follow from them.

    The experts are the same in all layers, so the expert-parallel rank that holds them keeps the
    activations of all tokens of its group in each of its layers.
    """
    for chunk in chunks:
        for module in chunk.modules():
            if isinstance(module, TopKRouter):
                module.gating = _with_lead(module.gating, module.topk)


def with_lead_of_first(logits: torch.Tensor, count: int) -> torch.Tensor:
    """The logits, last dimension experts, with the first ``count`` above all others.

    The lead is a token's own and no larger than needed in 16 bits: the order of the first among
    themselves, and thus how much of each a token gets, stays about what the router has learned.
    """
    largest = logits.detach().abs().amax(dim=-1, keepdim=True)
    first = torch.arange(logits.shape[-1], device=logits.device) < count
    return logits + (4 * largest + 1) * first


def _with_lead(gating: Callable[..., torch.Tensor], count: int) -> Callable[..., torch.Tensor]:
    @functools.wraps(gating)
    def with_lead(*args: Any, **kwargs: Any) -> torch.Tensor:
        return with_lead_of_first(gating(*args, **kwargs), count)

    return with_lead
