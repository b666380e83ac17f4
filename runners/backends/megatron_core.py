"""A Megatron-Core plan as a launch: ``megatron.args``, an argument list of ``pretrain_gpt.py``.

The spellings are Megatron-LM's (core 0.16); data, tokenizer, length and checkpoints are left to
the user's own command line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from runners.backends.training_file import shared_files
from tuner.cluster import Cluster, Device
from tuner.errors import UserError
from tuner.launch import MEGATRON_FILE, LaunchFile, LaunchSpec, Measurement
from tuner.model_shape import ModelShape
from tuner.plan import Offload, ParallelPlan, Precision, Recompute
from tuner.workload import HfModel, Workload

ROPE_FAMILIES = ("llama", "mistral", "qwen2")
FAMILIES = (*ROPE_FAMILIES, "gpt2")
"""Hugging Face model types that Megatron's GPT model can be shaped into."""
VOCAB_MULTIPLE = 8
"""The vocabulary is padded to this (what tensor cores like), the same for tp 1, 2, 4 and 8: the
padded columns take part in the softmax, so unequal padding would make the losses differ."""
LLAMA3_ROPE = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""What Megatron's ``--use-rope-scaling`` has built in; only the factor is an option."""


def megatron_launch(
    plan: ParallelPlan, workload: Workload, cluster: Cluster, measurement: Measurement
) -> LaunchSpec:
    """The launch of this plan; pure.

    Raises:
        UserError: the model or the plan is one that Megatron-Core is not launched with here.
    """
    _refuse_unsupported(plan)
    lines = (
        *_model_lines(workload, plan.tp),
        *_layout_lines(plan, workload, cluster.num_gpus),
        *_precision_lines(plan.precision),
        *_optimizer_lines(workload),
        *_device_lines(cluster.gpu.device),
    )
    needs_one_queue = cluster.gpu.device is Device.CUDA and plan.tp > 1
    return LaunchSpec(
        plan=plan,
        num_nodes=cluster.num_nodes,
        ranks_per_node=cluster.gpus_per_node,
        files=(
            *shared_files(plan, workload, cluster, measurement),
            LaunchFile(name=MEGATRON_FILE, text="\n".join(lines) + "\n"),
        ),
        # Megatron overlaps tensor-parallel communication by the order of its kernel launches.
        env=(("CUDA_DEVICE_MAX_CONNECTIONS", "1"),) if needs_one_queue else (),
    )


def _refuse_unsupported(plan: ParallelPlan) -> None:
    refusals = (
        (plan.zero_stage > 1, f"zero_stage 0 or 1, got {plan.zero_stage}"),
        (
            plan.dp_replicate > 1 and plan.zero_stage == 0,
            f"dp_replicate 1 with zero_stage 0, got {plan.dp_replicate}",
        ),
        (plan.cp > 1, f"cp 1, got {plan.cp}"),
        (plan.ep > 1, f"ep 1, got {plan.ep}"),
        (plan.precision is Precision.FP8, "precision fp32, fp16 or bf16, got fp8"),
        (plan.offload is not Offload.NONE, f"offload none, got {plan.offload}"),
        (plan.sequence_parallel and plan.tp == 1, "tp above 1 for sequence_parallel, got tp 1"),
        (plan.vpp > 1 and plan.pp == 1, f"pp above 1 for vpp {plan.vpp}, got pp 1"),
    )
    broken = [sentence for is_broken, sentence in refusals if is_broken]
    if broken:
        raise UserError(f"a megatron plan must have {'; '.join(broken)}; try another plan")


def _model_lines(workload: Workload, tp: int) -> list[str]:
    model = workload.model
    if not isinstance(model, HfModel) or model.shape.family not in FAMILIES:
        name = model.shape.family if isinstance(model, HfModel) else model.name
        raise UserError(
            f"megatron builds models of the types {', '.join(FAMILIES)}, got {name}; "
            "use another backend for this model"
        )
    shape, config = model.shape, json.loads(model.config_text)
    lines = [
        f"--num-layers {shape.num_layers}",
        f"--hidden-size {shape.hidden}",
        f"--ffn-hidden-size {shape.ffn}",
        f"--num-attention-heads {shape.num_heads}",
        f"--kv-channels {shape.head_dim}",
        f"--vocab-size {shape.vocab}",
        f"--make-vocab-size-divisible-by {max(1, VOCAB_MULTIPLE // tp)}",
        f"--seq-length {workload.seq_len}",
        f"--max-position-embeddings {max(shape.max_positions, workload.seq_len)}",
        "--attention-dropout 0.0",
        "--hidden-dropout 0.0",
    ]
    if shape.num_kv_heads != shape.num_heads:
        lines += ["--group-query-attention", f"--num-query-groups {shape.num_kv_heads}"]
    if not shape.tied_embeddings:
        lines.append("--untie-embeddings-and-output-weights")
    return lines + (
        _gpt2_lines(config) if shape.family == "gpt2" else _rope_lines(shape, config, workload)
    )


def _gpt2_lines(config: Mapping[str, Any]) -> list[str]:
    _must_be(config, "activation_function", ("gelu_new", "gelu", "gelu_pytorch_tanh"), "gelu_new")
    return [
        "--normalization LayerNorm",
        f"--norm-epsilon {config.get('layer_norm_epsilon', 1e-5)}",
        "--position-embedding-type learned_absolute",
    ]


def _rope_lines(shape: ModelShape, config: Mapping[str, Any], workload: Workload) -> list[str]:
    _must_be(config, "hidden_act", ("silu", "swish"), "silu")
    _must_be(config, "mlp_bias", (False,), False)
    if shape.family != "qwen2":
        _must_be(config, "attention_bias", (False,), False)
    # transformers 5 gathers these in rope_parameters; older files have them one by one.
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    lines = [
        "--swiglu",
        "--disable-bias-linear",
        "--normalization RMSNorm",
        f"--norm-epsilon {config.get('rms_norm_eps', 1e-6)}",
        "--position-embedding-type rope",
        f"--rotary-base {round(theta)}",
        *_rope_scaling_lines(rope),
    ]
    if shape.family == "qwen2":
        lines.append("--add-qkv-bias")
    _refuse_short_window(shape, config, workload.seq_len)
    return lines


def _rope_scaling_lines(rope: Mapping[str, Any]) -> list[str]:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return []
    built_in = all(rope.get(key) == value for key, value in LLAMA3_ROPE.items())
    if kind == "llama3" and built_in:
        return ["--use-rope-scaling", f"--rope-scaling-factor {rope['factor']}"]
    raise UserError(
        f"megatron scales rotary positions only as llama3 with {LLAMA3_ROPE}, got {dict(rope)}; "
        "use another backend for this model"
    )


def _refuse_short_window(shape: ModelShape, config: Mapping[str, Any], seq_len: int) -> None:
    in_use = shape.family == "mistral" or config.get("use_sliding_window", False)
    window = config.get("sliding_window") if in_use else None
    if window is not None and window < seq_len:
        raise UserError(
            f"seq_len must be within the model's sliding_window ({window}) for megatron, "
            f"got {seq_len}; use another backend or a shorter sequence"
        )


def _must_be(
    config: Mapping[str, Any], key: str, known: tuple[str | bool, ...], default: str | bool
) -> None:
    value = config.get(key, default)
    if value not in known:
        raise UserError(
            f"config.json: {key} must be one of {', '.join(map(str, known))} for megatron, "
            f"got {value}; use another backend for this model"
        )


def _layout_lines(plan: ParallelPlan, workload: Workload, num_gpus: int) -> list[str]:
    lines = [
        f"--micro-batch-size {plan.micro_batch}",
        f"--global-batch-size {workload.global_batch_sequences}",
        f"--tensor-model-parallel-size {plan.tp}",
        f"--pipeline-model-parallel-size {plan.pp}",
    ]
    if plan.vpp > 1:
        lines.append(f"--num-virtual-stages-per-pipeline-rank {plan.vpp}")
    if plan.sequence_parallel:
        lines.append("--sequence-parallel")
    if plan.zero_stage == 1:
        lines.append("--use-distributed-optimizer")
    if plan.dp_replicate > 1:
        lines.append(f"--num-distributed-optimizer-instances {plan.dp_replicate}")
    if plan.data_parallel(num_gpus) > 1:
        lines.append("--overlap-grad-reduce")
        if plan.zero_stage == 1:
            lines.append("--overlap-param-gather")
    match plan.recompute:
        case Recompute.NONE:
            pass
        case Recompute.SELECTIVE:
            lines += ["--recompute-granularity selective", "--recompute-modules core_attn"]
        case Recompute.FULL:
            lines += [
                "--recompute-granularity full",
                "--recompute-method uniform",
                "--recompute-num-layers 1",
            ]
    return lines


def _precision_lines(precision: Precision) -> list[str]:
    match precision:
        case Precision.BF16:
            return ["--bf16", "--accumulate-allreduce-grads-in-fp32"]
        case Precision.FP16:
            # Megatron's own start, 2**32, loses the first seventeen steps to overflows.
            return ["--fp16", "--accumulate-allreduce-grads-in-fp32", "--initial-loss-scale 65536"]
        case _:
            return []


def _optimizer_lines(workload: Workload) -> list[str]:
    if workload.optimizer != "adamw":
        raise UserError(f"optimizer must be adamw for megatron, got {workload.optimizer}")
    return [
        "--optimizer adam",
        f"--lr {workload.learning_rate}",
        f"--min-lr {workload.learning_rate}",
        "--lr-decay-style constant",
        "--weight-decay 0.01",
        "--adam-beta1 0.9",
        "--adam-beta2 0.999",
        "--adam-eps 1e-08",
        "--clip-grad 0.0",
    ]


def _device_lines(device: Device) -> list[str]:
    lines = [
        # The fused kernels of these two come with APEX, not with Megatron-Core.
        "--no-gradient-accumulation-fusion",
        "--no-masked-softmax-fusion",
        "--no-check-for-nan-in-loss-and-grad",
    ]
    if device is Device.CUDA:
        return [*lines, "--transformer-impl transformer_engine"]
    return [
        *lines,
        "--transformer-impl local",
        "--distributed-backend gloo",
        "--no-rope-fusion",
        # These are compiled at the first step, and faster only on a GPU.
        "--no-bias-gelu-fusion",
        "--no-bias-swiglu-fusion",
        "--no-bias-dropout-fusion",
    ]
