"""Splits the matrices of a Llama-like model over the tensor-parallel ranks, as DTensors."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

_LAYER_PREFIX = "layers.*."


def split_layer(
    layer: nn.Module, mesh: DeviceMesh, *, tp_plan: dict[str, str], sequence_parallel: bool
) -> None:
    """Splits a decoder layer; every rank keeps its slice of the whole values, nothing is sent.

    ``tp_plan`` is the configuration's ``base_model_tp_plan``.
    """
    hidden = Shard(1) if sequence_parallel else Replicate()
    styles: dict[str, ParallelStyle] = {}
    for pattern, word in tp_plan.items():
        if pattern.startswith(_LAYER_PREFIX):
            styles[pattern.removeprefix(_LAYER_PREFIX)] = _style(word, hidden)
    if sequence_parallel:
        styles |= {
            "input_layernorm": SequenceParallel(use_local_output=True),
            "post_attention_layernorm": SequenceParallel(use_local_output=True),
            "self_attn": PrepareModuleInput(
                input_kwarg_layouts={"hidden_states": Shard(1)},
                desired_input_kwarg_layouts={"hidden_states": Replicate()},
                use_local_output=True,
            ),
            "mlp": PrepareModuleInput(
                input_layouts=(Shard(1),),
                desired_input_layouts=(Replicate(),),
                use_local_output=True,
            ),
        }
    parallelize_module(layer, mesh, styles, src_data_rank=None)


def split_ends(whole: Any, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Splits the vocabulary of the embedding and of the output, where this stage has them."""
    hidden = Shard(1) if sequence_parallel else Replicate()
    styles: dict[str, ParallelStyle] = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=hidden),
        "lm_head": ColwiseParallel(input_layouts=hidden, output_layouts=Replicate()),
    }
    if sequence_parallel:
        styles["model.norm"] = SequenceParallel(use_local_output=True)
    here = {
        name: style
        for name, style in styles.items()
        if not isinstance(whole.get_submodule(name), nn.Identity)
    }
    parallelize_module(whole, mesh, here, src_data_rank=None)
    if whole.config.tie_word_embeddings:
        whole.lm_head.weight = whole.model.embed_tokens.weight


def _style(word: str, hidden: Replicate | Shard) -> ParallelStyle:
    match word:
        case "colwise":
            return ColwiseParallel()
        case "rowwise":
            return RowwiseParallel(output_layouts=hidden)
        case "replicated_with_grad_allreduce":
            # A norm over each head, the heads being split: (sequences, tokens, heads, head_dim).
            return SequenceParallel(sequence_dim=2, use_local_output=True)
        case _:
            raise ValueError(
                f"the model's base_model_tp_plan must be of colwise, rowwise and "
                f"replicated_with_grad_allreduce, got {word}; use tp 1 for this model"
            )
