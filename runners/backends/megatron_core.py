"""A Megatron-Core plan as a launch: ``megatron.args``, an argument list of ``pretrain_gpt.py``.

The spellings are Megatron-LM's (core 0.16); data, tokenizer, length and checkpoints are left to
the user's own command line.
"""

from __future__ import annotations

from runners.backends.megatron_model import model_lines
from runners.backends.training_file import shared_files
from tuner.cluster import Cluster, Device
from tuner.framework_settings.setting import SettingCase
from tuner.framework_settings.table import settled
from tuner.launch import MEGATRON_FILE, LaunchFile, LaunchSpec, Measurement, Settings
from tuner.plan import Offload, ParallelPlan, Precision, Recompute
from tuner.workload import Workload

_SWITCHED_ON = {
    "overlap_grad_reduce": "--overlap-grad-reduce",
    "overlap_param_gather": "--overlap-param-gather",
    "ddp_average_in_collective": "--ddp-average-in-collective",
}
_SIZES = {
    "ddp_bucket_size": "--ddp-bucket-size",
    "microbatch_group_size": "--microbatch-group-size-per-virtual-pipeline-stage",
}


def megatron_launch(
    plan: ParallelPlan,
    workload: Workload,
    cluster: Cluster,
    measurement: Measurement,
    settings: Settings = (),
) -> LaunchSpec:
    """The launch of a legal plan; pure. What is legal is the rule table's to say."""
    case = SettingCase(plan=plan, workload=workload, cluster=cluster)
    lines = (
        *model_lines(workload, plan, cluster.gpu),
        *_layout_lines(plan, workload),
        *_setting_lines(case, settings),
        *_recompute_lines(plan.recompute),
        *_precision_lines(plan.precision),
        *_optimizer_lines(plan, workload),
        *_device_lines(cluster.gpu.device),
    )
    needs_one_queue = cluster.gpu.device is Device.CUDA and plan.tp * plan.cp > 1
    return LaunchSpec(
        plan=plan,
        num_nodes=cluster.num_nodes,
        ranks_per_node=cluster.gpus_per_node,
        files=(
            *shared_files(plan, workload, cluster, measurement, settings),
            LaunchFile(name=MEGATRON_FILE, text="\n".join(lines) + "\n"),
        ),
        # Megatron overlaps tensor and context-parallel communication by the order of its launches.
        env=(("CUDA_DEVICE_MAX_CONNECTIONS", "1"),) if needs_one_queue else (),
    )


def _layout_lines(plan: ParallelPlan, workload: Workload) -> list[str]:
    return [
        f"--micro-batch-size {plan.micro_batch}",
        f"--global-batch-size {workload.global_batch_sequences}",
        f"--tensor-model-parallel-size {plan.tp}",
        *(["--sequence-parallel"] if plan.sequence_parallel else []),
        *_stage_lines(plan, workload),
        *([f"--context-parallel-size {plan.cp}"] if plan.cp > 1 else []),
        *_expert_lines(plan, workload),
        *_data_parallel_lines(plan),
    ]


def _stage_lines(plan: ParallelPlan, workload: Workload) -> list[str]:
    shape = workload.shape
    assert shape is not None, "rule G-13 keeps modules without a shape away"
    lines = [f"--pipeline-model-parallel-size {plan.pp}"]
    if plan.vpp > 1:
        lines.append(f"--num-virtual-stages-per-pipeline-rank {plan.vpp}")
    if shape.num_layers % (plan.pp * plan.vpp):
        # The embedding and the head then count as a layer each (rules MC-22 and MC-23), as
        # Llama 3.1 405B with its 126 layers was trained (arXiv 2407.21783, 3.3.2).
        lines += [
            "--account-for-embedding-in-pipeline-split",
            "--account-for-loss-in-pipeline-split",
        ]
    return lines


def _expert_lines(plan: ParallelPlan, workload: Workload) -> list[str]:
    if workload.shape is None or workload.shape.experts is None:
        return []
    # An expert is split as the layers are, unless whole experts are spread over the ranks.
    return [
        f"--expert-model-parallel-size {plan.ep}",
        f"--expert-tensor-parallel-size {plan.tp if plan.ep == 1 else 1}",
    ]


def _data_parallel_lines(plan: ParallelPlan) -> list[str]:
    lines = []
    if plan.zero_stage == 1:
        lines.append("--use-distributed-optimizer")
    if plan.dp_replicate > 1:
        lines.append(f"--num-distributed-optimizer-instances {plan.dp_replicate}")
    return lines


def _setting_lines(case: SettingCase, settings: Settings) -> list[str]:
    """Options that Megatron-LM does not take by itself, of the settings that apply."""
    values = settled(case, settings)
    lines = [option for name, option in _SWITCHED_ON.items() if values.get(name)]
    if not values.get("align_param_gather", True):
        lines.append("--no-align-param-gather")
    given = dict(settings)
    return lines + [f"{option} {given[name]}" for name, option in _SIZES.items() if name in given]


def _recompute_lines(recompute: Recompute) -> list[str]:
    match recompute:
        case Recompute.NONE:
            return []
        case Recompute.SELECTIVE:
            return ["--recompute-granularity selective", "--recompute-modules core_attn"]
        case Recompute.FULL:
            return [
                "--recompute-granularity full",
                "--recompute-method uniform",
                "--recompute-num-layers 1",
            ]


def _precision_lines(precision: Precision) -> list[str]:
    match precision:
        case Precision.BF16:
            return ["--bf16", "--accumulate-allreduce-grads-in-fp32"]
        case Precision.FP16:
            # Megatron's own start, 2**32, loses the first seventeen steps to overflows.
            return ["--fp16", "--accumulate-allreduce-grads-in-fp32", "--initial-loss-scale 65536"]
        case Precision.FP8:
            # The matrix products in 8 bits; weights, gradients and the rest as with bf16.
            return ["--bf16", "--accumulate-allreduce-grads-in-fp32", "--fp8-format hybrid"]
        case Precision.FP32:
            return []


def _optimizer_lines(plan: ParallelPlan, workload: Workload) -> list[str]:
    assert plan.offload is not Offload.PARAMS, "rule MC-91 keeps it away"
    offload = (
        ["--use-precision-aware-optimizer", "--optimizer-cpu-offload"]
        if plan.offload is Offload.OPTIMIZER
        else []
    )
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
        *offload,
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
