"""What is written for Megatron-Core: the argument list and its spelling."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from runners.backends.megatron_core import megatron_launch
from runners.bench.megatron_arguments import MegatronArguments
from tests.runners.megatron_models import model_workload
from tests.tiny_job import cpu_cluster, tiny_workload
from tuner.cluster import Cluster, Device, Gpu
from tuner.launch import LaunchSpec, Measurement
from tuner.plan import ParallelPlan
from tuner.workload import HfModel, Workload

VALUE_OPTIONS = """
--adam-beta1 --adam-beta2 --adam-eps --attention-dropout --clip-grad --context-parallel-size
--distributed-backend --expert-model-parallel-size --expert-tensor-parallel-size --ffn-hidden-size
--fp8-format --global-batch-size --hidden-dropout --hidden-size --initial-loss-scale --kv-channels
--lr --lr-decay-style --make-vocab-size-divisible-by --max-position-embeddings --micro-batch-size
--min-lr --moe-ffn-hidden-size --moe-router-load-balancing-type --moe-router-topk
--moe-shared-expert-intermediate-size --moe-token-dispatcher-type --norm-epsilon --normalization
--num-attention-heads --num-distributed-optimizer-instances --num-experts --num-layers
--num-query-groups --num-virtual-stages-per-pipeline-rank --optimizer --pipeline-model-parallel-size
--position-embedding-type --recompute-granularity --recompute-method --recompute-modules
--recompute-num-layers --rope-scaling-factor --rotary-base --seq-length --tensor-model-parallel-size
--transformer-impl --vocab-size --weight-decay --window-size
"""
"""Options of Megatron-LM's pretrain_gpt.py (tag core_v0.16.1) that take one value."""
SWITCHES = """
--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split
--accumulate-allreduce-grads-in-fp32 --add-qkv-bias --bf16 --disable-bias-linear --fp16
--group-query-attention --moe-grouped-gemm --moe-router-pre-softmax --moe-shared-expert-gate
--no-bias-dropout-fusion --no-bias-gelu-fusion --no-bias-swiglu-fusion
--no-check-for-nan-in-loss-and-grad --no-gradient-accumulation-fusion --no-masked-softmax-fusion
--no-rope-fusion --optimizer-cpu-offload --overlap-grad-reduce --overlap-param-gather --qk-layernorm
--sequence-parallel --swiglu --untie-embeddings-and-output-weights --use-distributed-optimizer
--use-precision-aware-optimizer --use-rope-scaling
"""
"""Options of the same program that take none."""

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
MIXTRAL = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
QWEN2_MOE = {
    "model_type": "qwen2_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}


def _cuda_cluster(num_gpus: int) -> Cluster:
    gpu = Gpu(
        name="some GPU",
        device=Device.CUDA,
        memory_bytes=80 * 2**30,
        flops_per_s={"bf16": 1e15},
        memory_bytes_per_s=3e12,
        link_bytes_per_s=4e11,
        compute_capability=(9, 0),
    )
    return Cluster(gpu=gpu, gpus_per_node=num_gpus)


def _launch(
    workload: Workload | None = None, cluster: Cluster | None = None, **knobs: Any
) -> LaunchSpec:
    plan = ParallelPlan.from_dict({"backend": "megatron", **knobs})
    return megatron_launch(
        plan, workload or tiny_workload(), cluster or cpu_cluster(4), Measurement()
    )


def _text(spec: LaunchSpec) -> str:
    return next(file.text for file in spec.files if file.name == "megatron.args")


def _read(spec: LaunchSpec, folder: Path) -> MegatronArguments:
    path = folder / "megatron.args"
    path.write_text(_text(spec))
    return MegatronArguments.read(path)


PLANS: tuple[dict[str, Any], ...] = (
    {},
    {"precision": "fp32", "micro_batch": 2},
    {"precision": "fp16", "zero_stage": 1},
    {"zero_stage": 1, "dp_replicate": 2},
    {"tp": 2, "sequence_parallel": True, "recompute": "selective"},
    {"pp": 2, "vpp": 2, "recompute": "full"},
    {"pp": 3},
    {"cp": 2, "precision": "fp8", "zero_stage": 1, "offload": "optimizer"},
)


@pytest.mark.parametrize("cluster", [cpu_cluster(4), _cuda_cluster(4)], ids=["cpu", "cuda"])
@pytest.mark.parametrize("knobs", PLANS, ids=str)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model_type": "qwen2", "tie_word_embeddings": True, "num_key_value_heads": 4},
        {"rope_scaling": LLAMA3_ROPE},
        {"model_type": "mistral", "sliding_window": 8},
        MIXTRAL,
        QWEN2_MOE,
    ],
    ids=["llama", "qwen2", "llama3", "mistral", "mixtral", "qwen2_moe"],
)
def test_every_line_is_an_option_of_pretrain_gpt(
    cluster: Cluster, knobs: dict[str, Any], changes: dict[str, Any], tmp_path: Path
) -> None:
    spec = _launch(model_workload(**changes), cluster, **knobs)
    seen = set()
    for line in _text(spec).splitlines():
        option, *values = shlex.split(line)
        assert option not in seen
        seen.add(option)
        assert option in (VALUE_OPTIONS if values else SWITCHES).split(), line
        assert len(values) <= 1
    _read(spec, tmp_path)


def test_the_arguments_are_these_for_a_llama_on_gpus() -> None:
    spec = _launch(
        cluster=_cuda_cluster(8),
        micro_batch=2,
        zero_stage=1,
        tp=2,
        pp=2,
        vpp=2,
        sequence_parallel=True,
        recompute="full",
    )
    assert (
        _text(spec)
        == """\
--num-layers 4
--hidden-size 64
--ffn-hidden-size 128
--num-attention-heads 4
--kv-channels 16
--vocab-size 512
--make-vocab-size-divisible-by 4
--seq-length 32
--max-position-embeddings 128
--attention-dropout 0.0
--hidden-dropout 0.0
--group-query-attention
--num-query-groups 2
--untie-embeddings-and-output-weights
--swiglu
--disable-bias-linear
--normalization RMSNorm
--norm-epsilon 1e-05
--position-embedding-type rope
--rotary-base 10000
--micro-batch-size 2
--global-batch-size 8
--tensor-model-parallel-size 2
--sequence-parallel
--pipeline-model-parallel-size 2
--num-virtual-stages-per-pipeline-rank 2
--use-distributed-optimizer
--overlap-grad-reduce
--overlap-param-gather
--recompute-granularity full
--recompute-method uniform
--recompute-num-layers 1
--bf16
--accumulate-allreduce-grads-in-fp32
--optimizer adam
--lr 0.001
--min-lr 0.001
--lr-decay-style constant
--weight-decay 0.01
--adam-beta1 0.9
--adam-beta2 0.999
--adam-eps 1e-08
--clip-grad 0.0
--no-gradient-accumulation-fusion
--no-masked-softmax-fusion
--no-check-for-nan-in-loss-and-grad
--transformer-impl transformer_engine
"""
    )
    assert spec.env == (("CUDA_DEVICE_MAX_CONNECTIONS", "1"),)
    assert (spec.num_nodes, spec.ranks_per_node) == (1, 8)


def test_the_arguments_have_the_shape_of_config_json(tmp_path: Path) -> None:
    spec = _launch(tiny_workload(rope_theta=500000.0), tp=2)
    config = json.loads(next(file.text for file in spec.files if file.name == "config.json"))
    arguments = _read(spec, tmp_path)
    assert {
        "num_hidden_layers": arguments.num_layers,
        "hidden_size": arguments.hidden_size,
        "intermediate_size": arguments.ffn_hidden_size,
        "num_attention_heads": arguments.num_attention_heads,
        "num_key_value_heads": arguments.query_groups,
        "vocab_size": arguments.vocab_size,
        "max_position_embeddings": arguments.max_position_embeddings,
        "rms_norm_eps": arguments.layernorm_epsilon,
        "rope_theta": arguments.rotary_base,
        "tie_word_embeddings": not arguments.untie_embeddings_and_output_weights,
    }.items() <= config.items()


def test_rope_parameters_of_newer_transformers_are_read(tmp_path: Path) -> None:
    rope = LLAMA3_ROPE | {"rope_theta": 250000.0, "factor": 32.0}
    arguments = _read(_launch(tiny_workload(rope_parameters=rope)), tmp_path)
    assert (arguments.rotary_base, arguments.use_rope_scaling) == (250000, True)
    assert arguments.rope_scaling_factor == 32.0


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_the_vocabulary_is_padded_alike_for_every_tp(tp: int, tmp_path: Path) -> None:
    arguments = _read(_launch(tiny_workload(vocab_size=509), tp=tp), tmp_path)
    assert arguments.padded_vocab_size == 512


def test_nothing_is_overlapped_without_data_parallel_ranks(tmp_path: Path) -> None:
    arguments = _read(_launch(cluster=_cuda_cluster(2), tp=2, zero_stage=1), tmp_path)
    assert not arguments.overlap_grad_reduce
    assert not arguments.overlap_param_gather


def test_cpu_ranks_get_no_environment() -> None:
    assert _launch(tp=2).env == ()


def test_layers_that_do_not_divide_count_with_the_embedding_and_the_head(tmp_path: Path) -> None:
    workload = tiny_workload(num_hidden_layers=126)
    uneven = _read(_launch(workload, _cuda_cluster(16), pp=16), tmp_path)
    assert uneven.account_for_embedding_in_pipeline_split
    assert uneven.account_for_loss_in_pipeline_split
    even = _read(_launch(workload, _cuda_cluster(14), pp=14), tmp_path)
    assert not even.account_for_embedding_in_pipeline_split


def test_experts_are_split_over_tp_or_spread_whole_over_ep(tmp_path: Path) -> None:
    workload = model_workload(**MIXTRAL)
    split = _read(_launch(workload, tp=2, sequence_parallel=True), tmp_path)
    assert (split.expert_model_parallel_size, split.expert_tensor_parallel_size) == (1, 2)
    whole = _read(_launch(workload, tp=2, ep=4, sequence_parallel=True), tmp_path)
    assert (whole.expert_model_parallel_size, whole.expert_tensor_parallel_size) == (4, 1)


def test_the_arguments_have_the_experts_of_config_json(tmp_path: Path) -> None:
    mixtral = _read(_launch(model_workload(**MIXTRAL)), tmp_path)
    assert (mixtral.num_experts, mixtral.moe_router_topk, mixtral.moe_ffn_hidden_size) == (
        4,
        2,
        128,
    )
    assert not mixtral.moe_router_pre_softmax
    assert mixtral.moe_shared_expert_intermediate_size is None
    qwen = _read(_launch(model_workload(**QWEN2_MOE)), tmp_path)
    assert (qwen.moe_ffn_hidden_size, qwen.moe_shared_expert_intermediate_size) == (32, 48)
    assert qwen.moe_shared_expert_gate
    assert qwen.moe_router_pre_softmax
    renormalized = model_workload(**QWEN2_MOE, norm_topk_prob=True)
    assert not _read(_launch(renormalized), tmp_path).moe_router_pre_softmax


def test_experts_products_are_grouped_on_gpus_in_bf16_only(tmp_path: Path) -> None:
    workload = model_workload(**MIXTRAL)
    fp32 = _launch(workload, _cuda_cluster(4), precision="fp32")
    assert not _read(fp32, tmp_path).moe_grouped_gemm
    assert _read(_launch(workload, _cuda_cluster(4)), tmp_path).moe_grouped_gemm
    assert not _read(_launch(workload), tmp_path).moe_grouped_gemm


def test_a_split_sequence_and_8_bit_products_are_asked_of_transformer_engine(
    tmp_path: Path,
) -> None:
    spec = _launch(cluster=_cuda_cluster(4), cp=2, precision="fp8", zero_stage=1)
    arguments = _read(spec, tmp_path)
    assert (arguments.context_parallel_size, arguments.fp8, arguments.bf16) == (2, "hybrid", True)
    assert arguments.transformer_impl == "transformer_engine"
    assert spec.env == (("CUDA_DEVICE_MAX_CONNECTIONS", "1"),)


def test_an_offloaded_optimizer_is_the_precision_aware_one(tmp_path: Path) -> None:
    spec = _launch(cluster=_cuda_cluster(4), zero_stage=1, offload="optimizer")
    arguments = _read(spec, tmp_path)
    assert arguments.optimizer_cpu_offload
    assert arguments.use_precision_aware_optimizer
    assert arguments.use_distributed_optimizer


def test_a_sliding_window_within_the_sequence_is_what_is_seen_before_a_token(
    tmp_path: Path,
) -> None:
    inside = model_workload(model_type="mistral", sliding_window=8)
    assert _read(_launch(inside), tmp_path).window_size == (7, 0)
    plain = _text(_launch(model_workload(model_type="mistral", sliding_window=None)))
    assert _text(_launch(model_workload(model_type="mistral", sliding_window=32))) == plain


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("--num-layers 4", "required: --hidden-size"),
        ("--bf16 --no-such-option", "--no-such-option"),
        ("--num-layers four", "--num-layers"),
    ],
)
def test_arguments_that_the_bench_does_not_know_are_named(
    text: str, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "megatron.args"
    complete = _text(_launch()) if "--bf16" in text else ""
    path.write_text(complete + text)
    with pytest.raises(ValueError, match=sentence):
        MegatronArguments.read(path)


def test_the_model_of_the_launch_is_the_users_text() -> None:
    workload = tiny_workload()
    assert isinstance(workload.model, HfModel)
    files = {file.name: file.text for file in _launch(workload).files}
    assert files["config.json"] == workload.model.config_text
    assert json.loads(files["training.json"])["backend"] == "megatron"
