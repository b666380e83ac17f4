"""Small models of every family that Megatron-Core trains, read as the product reads them."""

from __future__ import annotations

import functools
import json
from typing import Any

from tests.tiny_job import LLAMA_CONFIG
from tuner.hf_file import hf_model_of
from tuner.workload import HfModel, Workload

EXPERTS: dict[str, Any] = {
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"rope_theta": 500000.0},
    "mistral": {"sliding_window": None},
    "mistral, windowed": {"model_type": "mistral", "sliding_window": 8},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 16},
    "mixtral": EXPERTS | {"intermediate_size": 32},
    "qwen2_moe": EXPERTS | {"shared_expert_intermediate_size": 48},
    "qwen3_moe": EXPERTS | {"head_dim": 16, "norm_topk_prob": True},
    "gpt2": {
        "n_embd": 64,
        "n_layer": 4,
        "n_head": 4,
        "n_positions": 128,
        "activation_function": "gelu",
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "tie_word_embeddings": True,
    },
}
"""``config.json`` by family, as changes to the Llama of the other tests."""


def model_workload(**changes: Any) -> Workload:
    """Eight sequences of 32 tokens a step of a small Llama with these changes."""
    return _workload(LLAMA_CONFIG | changes)


def family_workload(family: str, **changes: Any) -> Workload:
    """The small model of this family."""
    if family == "gpt2":  # its sizes have other names
        return _workload({"model_type": "gpt2", "vocab_size": 512} | CONFIGS[family] | changes)
    return model_workload(**{"model_type": family} | CONFIGS[family] | changes)


def _workload(config: dict[str, Any]) -> Workload:
    values = {name: value for name, value in config.items() if name != "architectures"}
    return Workload(
        model=_model(json.dumps(values)),
        seq_len=32,
        global_batch_sequences=8,
        learning_rate=1e-3,
    )


@functools.cache  # counting its parameters takes a while
def _model(config_text: str) -> HfModel:
    return hf_model_of(json.loads(config_text), name="tiny", named="a test")
