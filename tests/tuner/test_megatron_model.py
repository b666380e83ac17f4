"""Megatron-LM arguments and scripts become the Hugging Face model with the same parameters."""

from __future__ import annotations

import json

import pytest

from tuner.errors import UserError
from tuner.megatron_arguments import megatron_options
from tuner.megatron_model import megatron_model
from tuner.model_shape import Experts, ModelShape

SIZES = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --ffn-hidden-size 96 "
    "--vocab-size 200 --seq-length 32 --max-position-embeddings 64 "
)
ROPE = "--position-embedding-type rope --untie-embeddings-and-output-weights "
MODERN = ROPE + "--swiglu --disable-bias-linear --normalization RMSNorm "


def shape_of(arguments: str) -> ModelShape:
    return megatron_model(arguments, name="m", named="here").shape


H, F, V, L = 64, 96, 200, 4
ATTENTION = 4 * H * H
LAYERNORM = 2 * H
CASES: list[tuple[str, str, int]] = [
    # family, arguments beside the sizes, parameters of one layer by Megatron's own modules
    ("gpt2", "", ATTENTION + 4 * H + 2 * H * F + F + H + 2 * LAYERNORM),
    ("llama", MODERN, ATTENTION + 3 * H * F + 2 * H),
    ("mistral", MODERN + "--window-size 15,0", ATTENTION + 3 * H * F + 2 * H),
    ("qwen2", MODERN + "--add-qkv-bias", ATTENTION + 3 * H + 3 * H * F + 2 * H),
    ("qwen3", MODERN + "--qk-layernorm", ATTENTION + 3 * H * F + 2 * H + 2 * 16),
    (
        "llama",
        ROPE + "--swiglu --normalization RMSNorm",
        ATTENTION + 4 * H + 3 * H * F + 2 * F + H + 2 * H,
    ),
    ("stablelm", ROPE + "--swiglu --disable-bias-linear", ATTENTION + 3 * H * F + 2 * LAYERNORM),
    ("starcoder2", ROPE, ATTENTION + 4 * H + 2 * H * F + F + H + 2 * LAYERNORM),
    (
        "nemotron",
        ROPE + "--squared-relu --disable-bias-linear --apply-layernorm-1p",
        ATTENTION + 2 * H * F + 2 * LAYERNORM,
    ),
    (
        "arcee",
        ROPE + "--squared-relu --disable-bias-linear --normalization RMSNorm",
        ATTENTION + 2 * H * F + 2 * H,
    ),
    (
        "mixtral",
        MODERN + "--num-experts 4 --moe-router-topk 2",
        ATTENTION + 4 * 3 * H * F + 4 * H + 2 * H,
    ),
    (
        "qwen3_moe",
        MODERN + "--num-experts 4 --moe-ffn-hidden-size 24 --qk-layernorm",
        ATTENTION + 4 * 3 * H * 24 + 4 * H + 2 * H + 2 * 16,
    ),
]


@pytest.mark.parametrize(("family", "arguments", "layer"), CASES, ids=[str(c[:2]) for c in CASES])
def test_arguments_become_the_family_with_the_same_parameters(
    family: str, arguments: str, layer: int
) -> None:
    shape = shape_of(SIZES + arguments)
    assert shape.family == family
    assert shape.params.layers == (layer,) * L
    assert (shape.num_layers, shape.hidden, shape.num_heads, shape.vocab) == (L, H, 4, V)
    assert shape.tied_embeddings is (family == "gpt2")


def test_the_window_counts_the_query_too() -> None:
    assert shape_of(SIZES + MODERN + "--window-size 15,0").sliding_window == 16


def test_query_groups_count_only_with_their_flag() -> None:
    assert shape_of(SIZES + MODERN + "--num-query-groups 2").num_kv_heads == 4
    grouped = "--group-query-attention --num-query-groups 2"
    assert shape_of(SIZES + MODERN + grouped).num_kv_heads == 2


def test_shared_experts_are_those_of_qwen2() -> None:
    arguments = "--num-experts 4 --moe-ffn-hidden-size 24 --moe-shared-expert-intermediate-size 48"
    shape = shape_of(SIZES + MODERN + arguments)
    assert shape.family == "qwen2_moe"
    assert shape.experts == Experts(num_experts=4, experts_per_token=2, ffn=24, shared_ffn=48)


LATENT = (
    MODERN + "--multi-latent-attention --qk-layernorm --kv-lora-rank 16 --qk-head-dim 8 "
    "--qk-pos-emb-head-dim 4 --v-head-dim 8 --num-experts 4 --moe-router-topk 2 "
    "--moe-ffn-hidden-size 24 --moe-shared-expert-intermediate-size 48 "
)


def test_latent_attention_with_dense_first_layers_is_deepseek() -> None:
    shape = shape_of(SIZES + LATENT + "--moe-layer-freq ([0]*1+[1]*3) --q-lora-rank 24")
    assert shape.family == "deepseek_v3"
    assert shape.latent_attention is not None
    assert shape.latent_attention.q_lora_rank == 24
    assert shape.experts == Experts(
        num_experts=4, experts_per_token=2, ffn=24, shared_ffn=48, num_dense_layers=1
    )


def test_queries_are_not_compressed_unless_asked() -> None:
    shape = shape_of(SIZES + LATENT)
    assert shape.latent_attention is not None
    assert shape.latent_attention.q_lora_rank == 0


def test_the_width_of_a_feed_forward_left_out_is_megatrons_default() -> None:
    short = SIZES.replace("--ffn-hidden-size 96 ", "")
    assert shape_of(short).ffn == 256
    assert shape_of(short + MODERN).ffn == 128  # int(4 * 64 * 2 / 3 / 64) * 64


def test_the_gpt2_tokenizer_gives_the_vocabulary() -> None:
    no_vocab = SIZES.replace("--vocab-size 200 ", "")
    assert shape_of(no_vocab + "--tokenizer-type GPT2BPETokenizer").vocab == 50257


SCRIPT = """#!/bin/bash
#SBATCH --nodes=4
# --num-layers 99 in a comment is not meant
NUM_LAYERS=24
HIDDEN=${2:-1024}; export HEADS=16
DISTRIBUTED_ARGS=(
    --nproc_per_node 8
    --nnodes $NNODES
)
GPT_MODEL_ARGS=(
    --num-layers $NUM_LAYERS
    --hidden-size ${HIDDEN}  # width
    --num-attention-heads 16
    --seq-length 1024
    --max-position-embeddings 1024
    --tokenizer-type GPT2BPETokenizer
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    ${GPT_MODEL_ARGS[@]} \\
    --micro-batch-size=8 --bf16
"""
QUOTED = """
GPT_ARGS="
    --num-layers 24 \\
    --hidden-size 1024 \\
    --num-attention-heads 16 \\
    --seq-length 1024 \\
    --max-position-embeddings 1024
"
torchrun pretrain_gpt.py $GPT_ARGS --vocab-size 50257
"""


@pytest.mark.parametrize("script", [SCRIPT, QUOTED], ids=["array", "quoted"])
def test_a_launch_script_is_read_with_its_variables(script: str) -> None:
    assert shape_of(script).num_params == 354_823_168  # GPT-2 medium


def test_options_of_a_script_are_all_there() -> None:
    options = megatron_options(SCRIPT)
    assert options["--micro-batch-size"] == "8"
    assert options["--bf16"] == ""
    assert options["--num-layers"] == "24"
    assert "--nodes" not in options


def test_rope_scaling_is_kept() -> None:
    arguments = SIZES + MODERN + "--rotary-base 500000 --use-rope-scaling --rope-scaling-factor 32"
    values = json.loads(megatron_model(arguments, name="m", named="here").config_text)
    assert values["rope_theta"] == 500000.0
    assert values["rope_scaling"]["factor"] == 32.0


MISTAKES: list[tuple[str, list[str]]] = [
    (SIZES.replace("--num-layers 4", ""), ["--num-layers", "missing"]),
    (SIZES.replace("--hidden-size 64", ""), ["--hidden-size", "missing"]),
    (SIZES.replace("--vocab-size 200", ""), ["--vocab-size", "GPT2BPETokenizer"]),
    (SIZES.replace("--num-layers 4", "--num-layers $N"), ["--num-layers", "'$N'"]),
    (SIZES.replace("--num-layers 4", "--num-layers 0"), ["--num-layers", "'0'"]),
    (
        SIZES.replace("--seq-length 32 --max-position-embeddings 64", ""),
        ["--max-position-embeddings", "missing"],
    ),
    (SIZES + "--swiglu", ["rope", "--swiglu", "learned_absolute"]),
    (SIZES + "--position-embedding-type relative", ["--position-embedding-type", "relative"]),
    (SIZES + MODERN + "--qk-layernorm --add-qkv-bias", ["--qk-layernorm", "--add-qkv-bias"]),
    (SIZES + ROPE + "--swiglu", ["--normalization", "RMSNorm"]),
    (SIZES + ROPE + "--num-experts 4", ["--swiglu", "--normalization RMSNorm"]),
    (SIZES + MODERN + "--num-experts 4 --moe-layer-freq 2", ["--moe-layer-freq", "2"]),
    (SIZES + LATENT + "--moe-layer-freq [1]*2+[0]*2", ["--moe-layer-freq", "dense"]),
    (SIZES + LATENT + "--moe-layer-freq [0]*9999999999", ["--moe-layer-freq", "dense"]),
    (SIZES + "--mtp-num-layers 1", ["--mtp-num-layers", "config.json"]),
    (SIZES + "--norm-epsilon small", ["--norm-epsilon", "'small'"]),
    (SIZES.replace("heads 4", "heads 5"), ["--kv-channels"]),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=[str(m[1]) for m in MISTAKES])
def test_what_cannot_be_expressed_is_one_sentence(arguments: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        shape_of(arguments)
    said = str(caught.value)
    assert said.startswith("here: ")
    assert "\n" not in said
    for word in words:
        assert word in said, said
