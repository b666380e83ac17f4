"""A small model on a few CPU ranks, as tests use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from search_spaces.rule import Setting
from tuner.cluster import Cluster, Device, Gpu
from tuner.model_shape import ModelShape, ParamCounts
from tuner.stack import Stack
from tuner.workload import HfModel, Workload

LLAMA_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
}
"""The shape of a Llama, small: grouped queries, gated MLP, untied embeddings."""


def tiny_workload(**changes: Any) -> Workload:
    """Eight sequences of 32 tokens a step; ``changes`` are to the model's config.json."""
    config = LLAMA_CONFIG | changes
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    shape = ModelShape(
        family=config["model_type"],
        num_layers=config["num_hidden_layers"],
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=config["num_key_value_heads"],
        head_dim=hidden // heads,
        ffn=config["intermediate_size"],
        vocab=config["vocab_size"],
        max_positions=config["max_position_embeddings"],
        gated_mlp=True,
        tied_embeddings=config["tie_word_embeddings"],
        params=ParamCounts(embedding=0, head=0, layers=(), other=1),
    )
    model = HfModel(name="tiny", config_text=json.dumps(config), shape=shape)
    return Workload(model=model, seq_len=32, global_batch_sequences=8, learning_rate=1e-3)


NO_CONFIG: dict[str, Any] = {
    "model": "tests.runners.own_model:make",
    "vocab_size": 64,
    "seq_len": 16,
    "global_batch": 12,
}
"""A workload for commands that are not about their model: a config.json takes seconds to read."""


def job_file(folder: Path, *, name: str = "job.yaml", **sections: Any) -> Path:
    """A job file of a tiny model in fp32 on two CPU ranks, with its model; sections replace its."""
    (folder / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    values: dict[str, Any] = {
        "workload": {"model": "config.json", "seq_len": 16, "global_batch": 4},
        "cluster": {"gpu": "cpu", "gpus_per_node": 2},
        "search": {"precision": "fp32"},
        "memory": {"limit": "1GiB"},
        "measure": {"warmup_steps": 1, "steps": 2, "max_steps": 2},
        "budget": {"trials": 3},
    }
    path = folder / name
    path.write_text(yaml.safe_dump({**values, **sections}))
    return path


def cpu_cluster(num_ranks: int) -> Cluster:
    """This many CPU ranks of one node."""
    gpu = Gpu(
        name="cpu",
        device=Device.CPU,
        memory_bytes=2**31,
        flops_per_s={"fp32": 1e11, "bf16": 1e11, "fp16": 1e11},
        memory_bytes_per_s=1e10,
        link_bytes_per_s=1e10,
    )
    return Cluster(gpu=gpu, gpus_per_node=num_ranks)


CPU_STACK = Stack(versions={"torch": "2.13.0", "deepspeed": "0.19.8", "megatron-core": "0.16.1"})
"""What the tests run with: no Transformer Engine, no APEX."""


def setting(workload: Workload, cluster: Cluster, stack: Stack = CPU_STACK) -> Setting:
    """What plans are judged against."""
    return Setting(workload=workload, cluster=cluster, stack=stack)
