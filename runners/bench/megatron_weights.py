"""Fills a rank's part of a Megatron model with its slice of the whole model's initial weights."""

from __future__ import annotations

import re

import torch
from megatron.core import parallel_state
from torch import nn

from runners.bench.weights import initial_weight

_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.")


@torch.no_grad()
def fill_weights(model: nn.Module, *, seed: int, gated_mlp: bool) -> None:
    """Sets every parameter; at most one whole parameter exists at a time.

    ``model`` is a GPTModel: one chunk of one pipeline stage, split over the tensor ranks.
    """
    for name, parameter in model.named_parameters():
        whole_shape = list(parameter.shape)
        if _is_split(parameter):
            dim = parameter.partition_dim  # type: ignore[attr-defined]
            whole_shape[dim] *= parallel_state.get_tensor_model_parallel_world_size()
        whole = initial_weight(
            _whole_model_name(model, name), tuple(whole_shape), seed=seed, device=parameter.device
        )
        if _is_split(parameter):
            # A gated MLP's first matrix is [gate; up] on every rank, so each half is split.
            num_parts = 2 if gated_mlp and ".linear_fc1." in name else 1
            whole = _slice(whole, dim=dim, num_parts=num_parts)
        parameter.copy_(whole)


def _is_split(parameter: nn.Parameter) -> bool:
    return bool(getattr(parameter, "tensor_model_parallel", False))


def _slice(whole: torch.Tensor, *, dim: int, num_parts: int) -> torch.Tensor:
    tp = parallel_state.get_tensor_model_parallel_world_size()
    rank = parallel_state.get_tensor_model_parallel_rank()
    parts = [part.chunk(tp, dim)[rank] for part in whole.chunk(num_parts, dim)]
    return torch.cat(parts, dim)


def _whole_model_name(model: nn.Module, name: str) -> str:
    """The name in the model without pipeline: layers are numbered over all stages."""
    match = _LAYER.match(name)
    if match is not None:
        layer = model.get_submodule(f"decoder.layers.{match.group(1)}")
        return f"decoder.layers.{layer.layer_number - 1}.{name[match.end() :]}"  # type: ignore[operator]
    if name == "output_layer.weight" and model.share_embeddings_and_output_weights:
        return "embedding.word_embeddings.weight"  # the last stage has a copy of it
    return name
