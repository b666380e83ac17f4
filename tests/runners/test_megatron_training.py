"""Every Megatron-Core layout trains the same model: real ranks, real steps, equal losses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from runners.bench.data import microbatch
from runners.bench.weights import initial_weight
from tests.runners.bench_ranks import trained
from tests.tiny_job import tiny_workload
from tuner.launch import Measurement
from tuner.model_shape import ModelShape, ParamCounts
from tuner.plan import ParallelPlan
from tuner.units import MIB
from tuner.workload import HfModel, Workload

pytestmark = pytest.mark.ranks


def _plan(**knobs: Any) -> ParallelPlan:
    return ParallelPlan.from_dict({"backend": "megatron", "precision": "fp32", **knobs})


def _losses(reports: list[dict[str, Any]]) -> list[float]:
    losses: list[float] = reports[0]["losses"]
    assert all(report["losses"] == losses for report in reports)
    return losses


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Losses of three steps on one rank, in fp32, all sequences in one micro-batch."""
    reports = trained(_plan(micro_batch=8), tmp_path_factory.mktemp("reference"), num_ranks=1)
    return _losses(reports)


LAYOUTS: tuple[tuple[int, dict[str, Any]], ...] = (
    (1, {"micro_batch": 2}),
    (1, {"recompute": "selective", "micro_batch": 4}),
    (1, {"recompute": "full", "micro_batch": 4}),
    (2, {}),
    (2, {"zero_stage": 1, "micro_batch": 2}),
    (2, {"tp": 2, "micro_batch": 4}),
    (2, {"tp": 2, "sequence_parallel": True, "micro_batch": 4}),
    (2, {"tp": 2, "sequence_parallel": True, "recompute": "selective", "micro_batch": 4}),
    (2, {"tp": 2, "recompute": "full", "micro_batch": 8}),
    (2, {"pp": 2}),
    (2, {"pp": 2, "micro_batch": 4}),
    (2, {"pp": 2, "vpp": 2}),
    (2, {"pp": 2, "vpp": 2, "recompute": "full", "micro_batch": 2}),
    (4, {"pp": 4, "micro_batch": 2}),
    (4, {"tp": 4, "micro_batch": 8}),  # more ranks than key-value heads
    (4, {"tp": 2, "pp": 2, "micro_batch": 4}),
    (4, {"tp": 2, "pp": 2, "vpp": 2, "sequence_parallel": True, "micro_batch": 4}),
    (4, {"tp": 2, "zero_stage": 1, "micro_batch": 4}),
    (4, {"pp": 2, "vpp": 2, "zero_stage": 1}),
    (4, {"pp": 2, "micro_batch": 2}),
    (4, {"zero_stage": 1, "dp_replicate": 2}),
)


@pytest.mark.parametrize(
    ("num_ranks", "knobs"), LAYOUTS, ids=[f"{n}-{_plan(**k).label()}" for n, k in LAYOUTS]
)
def test_losses_are_those_of_one_rank_and_fall(
    num_ranks: int, knobs: dict[str, Any], reference: list[float], tmp_path: Path
) -> None:
    plan = _plan(**knobs)
    reports = trained(plan, tmp_path, num_ranks=num_ranks)
    losses = _losses(reports)
    # Seen to differ by 1e-7; norms whose gradients are not summed over tp, by 8e-6.
    assert losses == pytest.approx(reference, rel=3e-6)
    assert losses[2] < losses[0] - 0.05
    for report in reports:
        assert {name: report["effective"][name] for name in plan.to_dict()} == plan.to_dict()


@pytest.mark.parametrize(
    ("num_ranks", "knobs"),
    [
        (1, {"precision": "bf16"}),
        (2, {"precision": "bf16", "zero_stage": 1}),
        (2, {"precision": "bf16", "pp": 2, "vpp": 2}),
        (2, {"precision": "bf16", "tp": 2, "sequence_parallel": True, "micro_batch": 8}),
        (1, {"precision": "fp16"}),
        (2, {"precision": "fp16", "zero_stage": 1}),
        (2, {"precision": "fp16", "pp": 2, "recompute": "full"}),
    ],
)
def test_half_precision_trains_nearly_as_fp32(
    num_ranks: int, knobs: dict[str, Any], reference: list[float], tmp_path: Path
) -> None:
    reports = trained(_plan(**knobs), tmp_path, num_ranks=num_ranks)
    losses = _losses(reports)
    assert losses == pytest.approx(reference, rel=2e-2)
    assert losses[2] < losses[0] - 0.05
    assert reports[0]["effective"]["precision"] == knobs["precision"]


def test_the_threads_of_process_groups_are_not_counted_as_memory(tmp_path: Path) -> None:
    limit = Measurement(warmup_steps=1, steps=1, memory_limit_bytes=100 * MIB)
    plan = _plan(tp=2, pp=2, micro_batch=4)
    reports = trained(plan, tmp_path, num_ranks=4, measurement=limit)
    assert all(report["peak_memory_bytes"] < 100 * MIB for report in reports)


GPT2_CONFIG: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 64,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 128,
    "vocab_size": 512,
    "activation_function": "gelu",
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}


def _gpt2_workload() -> Workload:
    shape = ModelShape(
        family="gpt2",
        num_layers=4,
        hidden=64,
        num_heads=4,
        num_kv_heads=4,
        head_dim=16,
        ffn=256,
        vocab=512,
        max_positions=128,
        gated_mlp=False,
        tied_embeddings=True,
        params=ParamCounts(embedding=0, head=0, layers=(), other=1),
    )
    model = HfModel(name="tiny", config_text=json.dumps(GPT2_CONFIG), shape=shape)
    return Workload(model=model, seq_len=32, global_batch_sequences=8, learning_rate=1e-3)


def _family(name: str) -> Workload:
    if name == "gpt2":
        return _gpt2_workload()
    architecture = {"llama": "Llama", "qwen2": "Qwen2", "mistral": "Mistral"}[name]
    return tiny_workload(
        model_type=name,
        architectures=[f"{architecture}ForCausalLM"],
        tie_word_embeddings=name == "qwen2",
        rope_theta=500000.0 if name == "llama" else 10000.0,
    )


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral", "gpt2"])
def test_the_model_is_that_of_its_config(family: str, tmp_path: Path) -> None:
    workload = _family(family)
    losses = _losses(trained(_plan(micro_batch=8), tmp_path, num_ranks=1, workload=workload))
    assert losses[0] == pytest.approx(_hugging_face_loss(workload, tmp_path), rel=1e-5)


@pytest.mark.parametrize(
    ("family", "num_ranks", "knobs"),
    [
        ("gpt2", 2, {"tp": 2, "sequence_parallel": True, "micro_batch": 4}),
        ("gpt2", 2, {"pp": 2}),
        ("qwen2", 4, {"pp": 2, "tp": 2, "zero_stage": 1, "micro_batch": 4}),
        ("qwen2", 4, {"pp": 2, "vpp": 2, "zero_stage": 1}),
    ],
)
def test_tied_embeddings_and_biases_train_alike_in_every_layout(
    family: str, num_ranks: int, knobs: dict[str, Any], tmp_path: Path
) -> None:
    workload = _family(family)
    alone = trained(_plan(micro_batch=8), tmp_path / "alone", num_ranks=1, workload=workload)
    split = trained(_plan(**knobs), tmp_path / "split", num_ranks=num_ranks, workload=workload)
    assert _losses(split) == pytest.approx(_losses(alone), rel=1e-5)


def test_a_vocabulary_that_is_padded_trains_alike_in_every_layout(tmp_path: Path) -> None:
    workload = tiny_workload(vocab_size=509)
    alone = trained(_plan(micro_batch=8), tmp_path / "alone", num_ranks=1, workload=workload)
    knobs = {"tp": 2, "micro_batch": 8}
    split = trained(_plan(**knobs), tmp_path / "split", num_ranks=2, workload=workload)
    assert _losses(split) == pytest.approx(_losses(alone), rel=1e-5)


def _hugging_face_loss(workload: Workload, folder: Path) -> float:
    """Of the first global batch, by transformers' own module with the same initial weights."""
    assert isinstance(workload.model, HfModel)
    (folder / "config.json").write_text(workload.model.config_text)
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    assert workload.shape is not None
    fill = _fill_gpt2 if workload.shape.family == "gpt2" else _fill_llama
    fill(dict(model.named_parameters()), workload.shape)
    tokens, targets = microbatch(
        seed=0, step=0, first_sample=0, num_samples=8, seq_len=32, vocab=512
    )
    with torch.no_grad():
        logits = model(tokens).logits
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))


def _initial(name: str, *shape: int) -> torch.Tensor:
    return initial_weight(name, shape, seed=0, device=torch.device("cpu"))


@torch.no_grad()
def _fill_llama(parameters: dict[str, torch.nn.Parameter], shape: ModelShape) -> None:
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
        gate, up = _initial(f"{ours}.mlp.linear_fc1.weight", 2 * shape.ffn, hidden).chunk(2)
        heads = shape.num_heads * shape.head_dim
        for name, value in {
            "self_attn.q_proj": groups[:, :queries].reshape(-1, hidden),
            "self_attn.k_proj": groups[:, queries].reshape(-1, hidden),
            "self_attn.v_proj": groups[:, queries + 1].reshape(-1, hidden),
            "self_attn.o_proj": _initial(
                f"{ours}.self_attention.linear_proj.weight", hidden, heads
            ),
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": _initial(f"{ours}.mlp.linear_fc2.weight", hidden, shape.ffn),
        }.items():
            parameters[f"{theirs}.{name}.weight"].copy_(value)


@torch.no_grad()
def _fill_gpt2(parameters: dict[str, torch.nn.Parameter], shape: ModelShape) -> None:
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
