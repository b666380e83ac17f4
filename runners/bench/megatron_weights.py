"""Fills a rank's part of a Megatron model with its slice of the whole model's initial weights."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from megatron.core import parallel_state
from torch import nn

from runners.bench.weights import initial_weight

_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.")


_EXPERT = re.compile(
    r"\.mlp\.experts\.(?:local_experts\.(?P<alone>\d+)\.)?"
    r"(?P<linear>linear_fc[12])\.weight(?P<grouped>\d*)$"
)
"""Of one of this rank's experts: in a module of its own, or all in one with numbered weights."""


@torch.no_grad()
def fill_weights(model: nn.Module, *, seed: int, gated_mlp: bool) -> None:
    """Sets every parameter; at most one whole parameter exists at a time.

    ``model`` is a GPTModel: one chunk of one pipeline stage, split over the tensor ranks.
    """
    for name, parameter in model.named_parameters():
        split = _split(name, parameter)
        whole_shape = list(parameter.shape)
        if split is not None:
            whole_shape[split.dim] *= split.ranks
        whole = initial_weight(
            _whole_model_name(model, name), tuple(whole_shape), seed=seed, device=parameter.device
        )
        if split is not None:
            # A gated MLP's first matrix is [gate; up] on every rank, so each half is split.
            num_parts = 2 if gated_mlp and ".linear_fc1." in name else 1
            whole = split.of(whole, num_parts=num_parts)
        parameter.copy_(whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """How a parameter is split over tensor-parallel ranks."""

    dim: int
    ranks: int
    rank: int

    def of(self, whole: torch.Tensor, *, num_parts: int) -> torch.Tensor:
        """This rank's part, where each of ``num_parts`` equal parts is split by itself."""
        parts = [
            part.chunk(self.ranks, self.dim)[self.rank] for part in whole.chunk(num_parts, self.dim)
        ]
        return torch.cat(parts, self.dim)


def _split(name: str, parameter: nn.Parameter) -> _Split | None:
    expert = _EXPERT.search(name)
    if expert is not None:  # grouped ones carry no mark of how they are split
        return _Split(
            dim=0 if expert["linear"] == "linear_fc1" else 1,
            ranks=parallel_state.get_expert_tensor_parallel_world_size(),
            rank=parallel_state.get_expert_tensor_parallel_rank(),
        )
    if not getattr(parameter, "tensor_model_parallel", False):
        return None
    return _Split(
        dim=parameter.partition_dim,  # type: ignore[attr-defined]
        ranks=parallel_state.get_tensor_model_parallel_world_size(),
        rank=parallel_state.get_tensor_model_parallel_rank(),
    )


def _whole_model_name(model: nn.Module, name: str) -> str:
    """The name in the model on one rank: layers and experts are numbered over all."""
    match = _LAYER.match(name)
    if match is not None:
        layer = model.get_submodule(f"decoder.layers.{match.group(1)}")
        rest = _whole_expert_name(layer, name[match.end() - 1 :])
        return f"decoder.layers.{layer.layer_number - 1}{rest}"  # type: ignore[operator]
    if name == "output_layer.weight" and model.share_embeddings_and_output_weights:
        return "embedding.word_embeddings.weight"  # the last stage has a copy of it
    return name


def _whole_expert_name(layer: nn.Module, name: str) -> str:
    expert = _EXPERT.search(name)
    if expert is None:
        return name
    number = int(expert["alone"] or expert["grouped"])
    experts = layer.get_submodule("mlp").local_expert_indices
    return f".mlp.experts.{experts[number]}.{expert['linear']}.weight"  # type: ignore[index]
