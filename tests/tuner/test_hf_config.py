"""Parameter counts from config.json equal those of the model that transformers builds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tuner.hf_config import FAMILIES, model_shape

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


CASES = [(family, change) for family in FAMILIES for change in VARIANTS[family]]


@pytest.mark.parametrize(("family", "change"), CASES, ids=[f"{f} {c}" for f, c in CASES])
def test_the_count_is_exact(family: str, change: dict[str, Any]) -> None:
    config = values(family, change)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    assert model_shape(config).num_params == sum(p.numel() for p in model.parameters())


def test_llama_3_8b_has_its_published_size() -> None:
    import json
    from pathlib import Path

    root = Path(__file__).parents[2]
    text = (root / "examples/models/llama-3-8b/config.json").read_text()
    assert model_shape(json.loads(text)).num_params == 8_030_261_248
