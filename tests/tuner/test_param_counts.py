"""Every causal language model of transformers is counted exactly, but for those that docs list."""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers import logging as transformers_logging
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tuner.hf_config import causal_config, model_shape

DOCUMENT = Path(__file__).parents[2] / "docs/models.md"
FAMILIES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
NUM_SMALL_SHAPES = 3
QWEN4_INDEXER = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 256,
    "indexer_budget": 64,
    "indexer_compress_ratio": 4,
}
COMPLETED: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 1e4}
            for kind in ("full_attention", "sliding_attention")
        }
    },
    "dbrx": {"attn_config": {"rope_theta": 1e4}},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "gemma4_assistant": {
        "text_config": {
            "model_type": "gemma4_text",
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
        }
    },
    "qwen4_exp": {"text_config": QWEN4_INDEXER},
    "qwen4_exp_text": QWEN4_INDEXER,
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "nemotron": {"num_key_value_heads": 8},
    "ministral": {"head_dim": 128},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "glm4_moe": {"head_dim": 128},
}
"""What the default configuration lacks to be a model; a file of a real model gives it."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    yield
    transformers_logging.set_verbosity(before)


def as_decoder(config: Any) -> dict[str, Any]:
    """The values of ``config.json``, of an encoder(-decoder) those of its decoder alone."""
    values: dict[str, Any] = json.loads(json.dumps(config.to_dict()))
    for name, value in (("is_encoder_decoder", False), ("is_decoder", True), ("causal", True)):
        if hasattr(config, name):
            values[name] = value
    return values


def default_values(family: str) -> dict[str, Any]:
    """The default configuration of the class, and what it needs to be a model."""
    config = CONFIG_MAPPING[family](**COMPLETED.get(family, {}))
    return as_decoder(config) | {"model_type": family}


def small_values(family: str, number: int) -> dict[str, Any]:
    """A small shape of random sizes, within what the class accepts."""
    draw = random.Random(zlib.crc32(f"{family} {number}".encode()))
    heads = draw.choice([2, 4])
    sizes: dict[str, Any] = {
        "num_hidden_layers": draw.choice([2, 4, 6]),
        "num_attention_heads": heads,
        "num_key_value_heads": draw.choice([2, heads]),
        "head_dim": draw.choice([8, 16]),
        "intermediate_size": draw.choice([24, 40, 64]),
        "vocab_size": draw.randint(100, 300),
        "pad_token_id": 0,
    }
    sizes["hidden_size"] = sizes["head_dim"] * heads * draw.choice([1, 2])
    base = CONFIG_MAPPING[family](**COMPLETED.get(family, {}))
    text = base.get_text_config()
    sizes |= needed_sizes(text.model_type, sizes)
    sizes = {name: value for name, value in sizes.items() if value is not None}
    values = COMPLETED.get(family, {}) | sizes
    if text is not base and type(text) is not type(base):
        given = COMPLETED.get(family, {}).get("text_config", {})
        values = {"text_config": given | sizes | {"model_type": text.model_type}}
        if family == "dots3_note":
            width = {"adapter_out_dim": sizes["hidden_size"]}
            values |= {"vision_config": width, "audio_config": width}
    return as_decoder(CONFIG_MAPPING[family](**values)) | {"model_type": family}


def needed_sizes(family: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """What else a class wants so that its sizes go together; None takes one away."""
    hidden, heads, layers = (
        sizes[name] for name in ("hidden_size", "num_attention_heads", "num_hidden_layers")
    )
    decoder = {
        "decoder_layers": layers,
        "decoder_attention_heads": heads,
        "decoder_ffn_dim": sizes["intermediate_size"],
    }
    special: dict[str, dict[str, Any]] = {
        "bamba": {"mamba_n_heads": 2, "mamba_d_head": hidden},
        "diffllama": {"num_key_value_heads": 2},
        "dots3_note_text": {"num_key_value_heads": heads},
        "falcon": {"head_dim": None},
        "gemma3n_text": {"num_kv_shared_layers": 0, "activation_sparsity_pattern": [0.0] * layers},
        "gpt_neo": {"attention_types": [[["global", "local"], layers // 2]]},
        "lfm2_moe": {"layer_types": ["conv", "full_attention"] * (layers // 2)},
        "mamba2": {
            "num_heads": 2 * heads,
            "head_dim": hidden // heads,
            "num_attention_heads": None,
        },
        "plbart": decoder,
        "bart": decoder,
        "whisper": decoder,
        "prophetnet": {
            "num_hidden_layers": None,
            "num_attention_heads": None,
            "num_decoder_layers": layers,
            "num_decoder_attention_heads": heads,
        },
        "reformer": {
            "axial_pos_embds_dim": [hidden // 4, hidden - hidden // 4],
            "attn_layers": ["local", "lsh"] * (layers // 2),
            "num_hidden_layers": None,
        },
        "xlnet": {"head_dim": None, "d_head": hidden // heads},
        "zamba": {"layers_block_type": ["linear_attention", "hybrid"] * 3, "num_hidden_layers": 6},
        "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * (layers // 2)},
    }
    return special.get(family, {})


def reference(values: dict[str, Any]) -> int:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(causal_config(values))
    return sum(param.numel() for param in model.parameters())


def listed(heading: str) -> list[str]:
    """The model types in the first column of the table under this heading of docs/models.md."""
    section = DOCUMENT.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    return sorted(re.findall(r"^\| `([\w-]+)` \|", section, flags=re.MULTILINE))


UNCOUNTED = listed("Causal classes that are not counted")


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in UNCOUNTED])
def test_every_causal_class_is_counted_exactly(family: str) -> None:
    cases = [default_values(family)]
    cases += [small_values(family, number) for number in range(NUM_SMALL_SHAPES)]
    for values in cases:
        params = model_shape(values).params
        assert params.total == reference(values), values
        assert params.layers, "no layers were found"
        assert min(params.layers) > 0
        assert params.embedding > 0
        assert 0 < params.active_per_token <= params.total
        assert 0 <= params.frozen < params.total


def test_each_uncounted_class_is_refused_in_one_sentence() -> None:
    assert UNCOUNTED
    for family in UNCOUNTED:
        with pytest.raises(ValueError, match="must be") as caught:
            model_shape(as_decoder(CONFIG_MAPPING[family]()) | {"model_type": family})
        assert "\n" not in str(caught.value)


def test_a_default_that_is_no_model_is_listed_with_what_it_lacks() -> None:
    assert listed("Defaults that are no model") == sorted(COMPLETED)


@pytest.mark.parametrize("family", sorted(COMPLETED))
def test_a_default_listed_as_no_model_is_refused(family: str) -> None:
    with pytest.raises(Exception, match=r"\S"):  # some classes refuse before they are read here
        model_shape(as_decoder(CONFIG_MAPPING[family]()) | {"model_type": family})


def test_active_parameters_leave_out_the_experts_not_visited() -> None:
    values = json.loads(CONFIG_MAPPING["mixtral"]().to_json_string(use_diff=False))
    params = model_shape(values).params
    expert = 3 * 4096 * 14336
    assert params.inactive == 32 * 6 * expert
    assert params.active_per_token == params.total - params.inactive


def test_frozen_weights_are_not_trainable() -> None:
    marian = default_values("marian")  # its sinusoidal positions are not learned
    params = model_shape(marian).params
    assert params.frozen == marian["max_position_embeddings"] * marian["d_model"]
    assert params.trainable == params.total - params.frozen
