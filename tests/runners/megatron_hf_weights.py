"""The initial weights of a Megatron model, put into transformers' own module of it."""

from __future__ import annotations

import torch
from torch import nn

from runners.bench.weights import initial_weight
from tuner.model_shape import Experts, ModelShape


@torch.no_grad()
def fill_from_megatron(model: nn.Module, shape: ModelShape) -> None:
    """Norms and biases are left at the 1 and 0 that transformers starts from, too."""
    parameters = dict(model.named_parameters())
    if shape.family == "gpt2":
        _fill_gpt2(parameters, shape)
    else:
        _fill_llama(parameters, shape)


def _initial(name: str, *shape: int) -> torch.Tensor:
    return initial_weight(name, shape, seed=0, device=torch.device("cpu"))


def _fill_llama(parameters: dict[str, nn.Parameter], shape: ModelShape) -> None:
    hidden, kv = shape.hidden, shape.num_kv_heads
    queries = shape.num_heads // kv
    parameters["model.embed_tokens.weight"].copy_(
        _initial("embedding.word_embeddings.weight", shape.vocab, hidden)
    )
    if "lm_head.weight" in parameters:
        parameters["lm_head.weight"].copy_(_initial("output_layer.weight", shape.vocab, hidden))
    for layer in range(shape.num_layers):
        ours, theirs = f"decoder.layers.{layer}", f"model.layers.{layer}"
        rows = kv * (queries + 2) * shape.head_dim
        qkv = _initial(f"{ours}.self_attention.linear_qkv.weight", rows, hidden)
        groups = qkv.view(kv, queries + 2, shape.head_dim, hidden)
        heads = shape.num_heads * shape.head_dim
        for name, value in {
            "self_attn.q_proj": groups[:, :queries].reshape(-1, hidden),
            "self_attn.k_proj": groups[:, queries].reshape(-1, hidden),
            "self_attn.v_proj": groups[:, queries + 1].reshape(-1, hidden),
            "self_attn.o_proj": _initial(
                f"{ours}.self_attention.linear_proj.weight", hidden, heads
            ),
        }.items():
            parameters[f"{theirs}.{name}.weight"].copy_(value)
        if shape.experts is None:
            _fill_gated(parameters, f"{theirs}.mlp", f"{ours}.mlp", (shape.ffn, hidden))
        else:
            _fill_experts(parameters, f"{theirs}.mlp", f"{ours}.mlp", shape.experts)


def _fill_gated(
    parameters: dict[str, nn.Parameter], theirs: str, ours: str, sizes: tuple[int, int]
) -> None:
    ffn, hidden = sizes
    gate, up = _initial(f"{ours}.linear_fc1.weight", 2 * ffn, hidden).chunk(2)
    parameters[f"{theirs}.gate_proj.weight"].copy_(gate)
    parameters[f"{theirs}.up_proj.weight"].copy_(up)
    parameters[f"{theirs}.down_proj.weight"].copy_(
        _initial(f"{ours}.linear_fc2.weight", hidden, ffn)
    )


def _fill_experts(
    parameters: dict[str, nn.Parameter], theirs: str, ours: str, experts: Experts
) -> None:
    router = parameters[f"{theirs}.gate.weight"]
    router.copy_(_initial(f"{ours}.router.weight", *router.shape))
    hidden = router.shape[1]
    for number in range(experts.num_experts):
        expert = f"{ours}.experts.{number}"
        parameters[f"{theirs}.experts.gate_up_proj"][number].copy_(
            _initial(f"{expert}.linear_fc1.weight", 2 * experts.ffn, hidden)
        )
        parameters[f"{theirs}.experts.down_proj"][number].copy_(
            _initial(f"{expert}.linear_fc2.weight", hidden, experts.ffn)
        )
    if experts.shared_ffn:
        sizes = (experts.shared_ffn, hidden)
        _fill_gated(parameters, f"{theirs}.shared_expert", f"{ours}.shared_experts", sizes)
        gate = parameters[f"{theirs}.shared_expert_gate.weight"]
        gate.copy_(_initial(f"{ours}.shared_experts.gate_weight", *gate.shape))


def _fill_gpt2(parameters: dict[str, nn.Parameter], shape: ModelShape) -> None:
    hidden = shape.hidden
    parameters["transformer.wte.weight"].copy_(
        _initial("embedding.word_embeddings.weight", shape.vocab, hidden)
    )
    parameters["transformer.wpe.weight"].copy_(
        _initial("embedding.position_embeddings.weight", shape.max_positions, hidden)
    )
    for layer in range(shape.num_layers):
        ours, theirs = f"decoder.layers.{layer}", f"transformer.h.{layer}"
        qkv = _initial(f"{ours}.self_attention.linear_qkv.weight", 3 * hidden, hidden)
        heads = qkv.view(shape.num_heads, 3, shape.head_dim, hidden)
        for name, value in {
            "attn.c_attn": heads.transpose(0, 1).reshape(3 * hidden, hidden),
            "attn.c_proj": _initial(f"{ours}.self_attention.linear_proj.weight", hidden, hidden),
            "mlp.c_fc": _initial(f"{ours}.mlp.linear_fc1.weight", shape.ffn, hidden),
            "mlp.c_proj": _initial(f"{ours}.mlp.linear_fc2.weight", hidden, shape.ffn),
        }.items():
            parameters[f"{theirs}.{name}.weight"].copy_(value.T)  # a Conv1D keeps (in, out)
