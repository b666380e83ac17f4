"""Parameter counts from config.json equal those of the model that transformers builds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from tuner.errors import UserError
from tuner.hf_config import model_shape
from tuner.hf_file import hf_model, hf_model_of
from tuner.model_shape import Experts, LatentAttention

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "gpt2": [{}, {"n_inner": 100}],
    "llama": [{}, {"attention_bias": True}, {"mlp_bias": True}, {"tie_word_embeddings": True}],
    "mistral": [{}, {"head_dim": 32}],
    "qwen2": [{}, {"tie_word_embeddings": True}],
    "qwen3": [{}, {"attention_bias": True}],
}
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 200,
    "max_position_embeddings": 64,
}
GPT2_SIZES = {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 200, "n_positions": 64}


def values(family: str, change: dict[str, Any]) -> dict[str, Any]:
    return {"model_type": family, **(GPT2_SIZES if family == "gpt2" else SIZES), **change}


CASES = [(family, change) for family in VARIANTS for change in VARIANTS[family]]


@pytest.mark.parametrize(("family", "change"), CASES, ids=[f"{f} {c}" for f, c in CASES])
def test_the_count_is_exact(family: str, change: dict[str, Any]) -> None:
    config = values(family, change)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    assert model_shape(config).num_params == sum(p.numel() for p in model.parameters())


def test_llama_3_8b_has_its_published_size() -> None:
    root = Path(__file__).parents[2]
    text = (root / "examples/models/llama-3-8b/config.json").read_text()
    assert model_shape(json.loads(text)).num_params == 8_030_261_248


def test_the_counts_of_a_llama_are_where_they_belong() -> None:
    params = model_shape(values("llama", {})).params
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 64
    assert params.layers == (layer, layer, layer)
    assert params.embedding == 200 * 64
    assert params.head == 200 * 64
    assert params.other == 64
    assert params.inactive == params.frozen == 0


def test_learned_positions_are_embedding() -> None:
    params = model_shape(values("gpt2", {})).params
    assert params.embedding == (200 + 64) * 64
    assert params.head == 0


DEEPSEEK: dict[str, Any] = {
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
}


def test_shared_experts_dense_layers_and_latent_attention_are_read() -> None:
    shape = model_shape(values("deepseek_v3", DEEPSEEK))
    assert shape.experts == Experts(
        num_experts=8, experts_per_token=2, ffn=16, shared_ffn=32, num_dense_layers=1
    )
    assert shape.latent_attention == LatentAttention(
        q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=12
    )
    assert shape.ffn == 96
    assert shape.params.inactive == 2 * 6 * 3 * 64 * 16


SHAPES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("mistral", {"sliding_window": 16}, {"sliding_window": 16, "num_windowed_layers": 3}),
    ("mistral", {"sliding_window": None}, {"sliding_window": 0, "num_windowed_layers": 0}),
    ("qwen2", {"sliding_window": 16}, {"sliding_window": 0}),
    ("gemma2", {"sliding_window": 16}, {"sliding_window": 16, "num_windowed_layers": 2}),
    (
        "mixtral",
        {"num_local_experts": 4},
        {"experts": Experts(num_experts=4, experts_per_token=2, ffn=96)},
    ),
    ("bloom", {}, {"max_positions": 0, "ffn": 256, "gated_mlp": False, "num_kv_heads": 4}),
    ("falcon", {"alibi": True}, {"max_positions": 0, "num_kv_heads": 1, "gated_mlp": False}),
    ("gpt_bigcode", {}, {"num_kv_heads": 1, "ffn": 256}),
    ("qwen3", {"head_dim": 32}, {"head_dim": 32, "gated_mlp": True, "tied_embeddings": False}),
]


@pytest.mark.parametrize(("family", "change", "fields"), SHAPES)
def test_sizes_are_read_whatever_the_class_calls_them(
    family: str, change: dict[str, Any], fields: dict[str, Any]
) -> None:
    # Classes that have no such field keep it beside their own: it must not be there at all.
    unknown = {
        "falcon": ("num_key_value_heads",),
        "bloom": ("num_key_value_heads", "intermediate_size", "max_position_embeddings"),
        "gpt_bigcode": ("intermediate_size",),
    }
    sizes = {name: SIZES[name] for name in SIZES if name not in unknown.get(family, ())}
    shape = model_shape({"model_type": family, **sizes, **change})
    assert {name: getattr(shape, name) for name in fields} == fields
    assert (shape.hidden, shape.num_layers, shape.num_heads, shape.vocab) == (64, 3, 4, 200)


def test_a_gpt2_file_may_use_either_spelling() -> None:
    plain = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    other = {"model_type": "gpt2", "vocab_size": 200, "max_position_embeddings": 64, **plain}
    assert model_shape(other) == model_shape(values("gpt2", {}))


def test_of_a_wrapper_the_text_part_is_the_model() -> None:
    text = {"model_type": "gemma3_text", "sliding_window": 16, "head_dim": 16, **SIZES}
    wrapper = {"model_type": "gemma3", "text_config": text}
    model = hf_model_of(wrapper, name="g", named="here")
    assert model.shape == model_shape(text)
    assert json.loads(model.config_text)["model_type"] == "gemma3_text"
    assert model_shape(json.loads(model.config_text)) == model.shape


@pytest.mark.parametrize(
    ("family", "twin"),
    [("qwen2_vl", "qwen2"), ("qwen2_5_vl", "qwen2"), ("qwen3_vl", "qwen3")],
)
@pytest.mark.parametrize("tied", [True, False])
def test_a_text_part_without_a_causal_class_is_its_twin(family: str, twin: str, tied: bool) -> None:
    config = AutoConfig.for_model(family, text_config=dict(SIZES), tie_word_embeddings=tied)
    with torch.device("meta"):
        text = AutoModel.from_config(config.get_text_config())
    head = 0 if tied else SIZES["vocab_size"] * SIZES["hidden_size"]
    shape = model_shape(json.loads(json.dumps(config.to_dict())))
    assert shape.family == twin
    assert shape.num_params == sum(p.numel() for p in text.parameters()) + head


def test_a_file_of_a_published_model_with_code_and_quantization_is_read() -> None:
    extra = {
        "auto_map": {"AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM"},
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
        "torch_dtype": "bfloat16",
    }
    plain = values("deepseek_v3", DEEPSEEK)
    assert model_shape(plain | extra) == model_shape(plain)


def test_infinity_as_transformers_writes_it_is_read() -> None:
    config = AutoConfig.for_model("falcon_h1", num_hidden_layers=2)
    written = json.loads(config.to_json_string(use_diff=False))
    assert "__float__" in str(written["time_step_limit"])
    model = hf_model_of(written, name="f", named="here")
    assert model.shape.num_layers == 2
    assert model_shape(json.loads(model.config_text)) == model.shape


MISTAKES: list[tuple[dict[str, Any], list[str]]] = [
    ({"model_type": "bert"}, ["'bert'", "encoder", "is_decoder"]),
    ({"model_type": "t5", "d_model": 64}, ["'t5'", "encoder-decoder"]),
    ({"model_type": "bart", "d_model": 64}, ["'bart'", "encoder-decoder"]),
    ({"model_type": "lama"}, ["'lama'", "llama"]),
    ({"model_type": "vit"}, ["'vit'", "causal"]),
    ({}, ["model_type", "None"]),
    ({"model_type": 3}, ["model_type", "3"]),
    (SIZES | {"model_type": "llama", "num_attention_heads": 7}, ["7", "64"]),
    (SIZES | {"model_type": "qwen2", "num_attention_heads": 7}, ["7", "64"]),
    (SIZES | {"model_type": "qwen2", "num_key_value_heads": 3}, ["num_key_value_heads (3)", "(4)"]),
    ({"model_type": "llama", "num_hidden_layers": 2}, ["hidden_size", "missing"]),
    ({"model_type": "llama", "hidden_size": 64}, ["num_hidden_layers", "missing"]),
    ({"model_type": "gpt2", "n_embd": 64}, ["num_hidden_layers", "missing"]),
    (SIZES | {"model_type": "llama", "hidden_size": "wide"}, ["hidden_size", "wide"]),
    (SIZES | {"model_type": "ministral"}, ["transformers cannot build"]),
]


@pytest.mark.parametrize(("mistake", "words"), MISTAKES, ids=[str(m[1]) for m in MISTAKES])
def test_a_wrong_file_is_refused_in_one_sentence(
    tmp_path: Path, mistake: dict[str, Any], words: list[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(mistake))
    with pytest.raises(UserError) as caught:
        hf_model(path, named="job.yaml: workload.model")
    said = str(caught.value)
    assert said.startswith(f"job.yaml: workload.model: {path}: ")
    assert "\n" not in said
    for word in words:
        assert word in said, said


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="it is not text"):
        hf_model(path, named="job.yaml: workload.model")
