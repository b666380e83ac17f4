"""A plan as DeepSpeed runs it: ``ds_config.json``, complete, without "auto"."""

from __future__ import annotations

import json
from typing import Any

from runners.backends.training_file import shared_files
from tuner.cluster import Cluster, Device
from tuner.launch import DEEPSPEED_FILE, LaunchFile, LaunchSpec, Measurement
from tuner.plan import Offload, ParallelPlan, Precision, Recompute
from tuner.workload import Workload

_LARGEST_BUCKET = 500_000_000
"""Elements; DeepSpeed's own default, 1 GB in 16 bits."""
_STAGE_PARTITION = "type:PipelineLayer"
"""Stages of equally many decoder layers, as the other frameworks cut them."""


def deepspeed_launch(
    plan: ParallelPlan, workload: Workload, cluster: Cluster, measurement: Measurement
) -> LaunchSpec:
    """The launch of a plan that the rules call legal; pure."""
    config = json.dumps(_config(plan, workload, cluster), indent=2) + "\n"
    # DeepSpeed leaves recomputation to the training script, but for whole layers of a pipeline.
    in_config = plan.pp > 1 and plan.recompute is Recompute.FULL
    recompute = Recompute.NONE if in_config else plan.recompute
    on_cpu = cluster.gpu.device is Device.CPU
    return LaunchSpec(
        plan=plan,
        num_nodes=cluster.num_nodes,
        ranks_per_node=cluster.gpus_per_node,
        files=(
            *shared_files(plan, workload, cluster, measurement, recompute=recompute),
            LaunchFile(name=DEEPSPEED_FILE, text=config),
        ),
        env=(("DS_ACCELERATOR", "cpu"),) if on_cpu else (),
    )


def _config(plan: ParallelPlan, workload: Workload, cluster: Cluster) -> dict[str, Any]:
    """``train_batch_size`` is left out: before torch.distributed is up, it is checked against 1."""
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.num_microbatches(
            cluster.num_gpus, workload.global_batch_sequences
        ),
        "optimizer": _optimizer(plan, workload, cluster),
        "zero_optimization": _zero(plan, workload, cluster),
        "gradient_clipping": 0.0,
        "steps_per_print": 1_000_000_000,
        "wall_clock_breakdown": False,
    }
    if plan.precision is Precision.BF16:
        config["bf16"] = {"enabled": True}
    if plan.precision is Precision.FP16:
        config["fp16"] = {"enabled": True, "loss_scale": 0, "initial_scale_power": 14}
    if plan.tp > 1:
        config["tensor_parallel"] = {"autotp_size": plan.tp}
    if plan.pp > 1:
        config["pipeline"] = {
            "stages": plan.pp,
            "partition": _STAGE_PARTITION,
            "activation_checkpoint_interval": int(plan.recompute is Recompute.FULL),
        }
    return config


def _optimizer(plan: ParallelPlan, workload: Workload, cluster: Cluster) -> dict[str, Any]:
    params: dict[str, Any] = {
        "lr": workload.learning_rate,
        "betas": [0.9, 0.999],
        "eps": 1e-8,
        "weight_decay": 0.01,
    }
    if cluster.gpu.device is Device.CPU and plan.offload is Offload.NONE:
        params["torch_adam"] = True  # the fused kernels would have to be compiled first
    return {"type": "AdamW", "params": params}


def _zero(plan: ParallelPlan, workload: Workload, cluster: Cluster) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": plan.zero_stage}
    if plan.zero_stage >= 1:
        zero |= _buckets(plan, workload)
        # With a pipeline DeepSpeed turns it off by itself: what is emitted is what runs.
        zero["overlap_comm"] = cluster.gpu.device is Device.CUDA and plan.pp == 1
        zero["contiguous_gradients"] = True
    if plan.offload is not Offload.NONE:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if plan.offload is Offload.PARAMS:
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    if plan.zero_stage == 3 and plan.dp_replicate > 1:
        shards = plan.data_parallel(cluster.num_gpus) // plan.dp_replicate
        zero["zero_hpz_partition_size"] = shards
    return zero


def _buckets(plan: ParallelPlan, workload: Workload) -> dict[str, int]:
    """Sizes in elements. DeepSpeed allocates them whole, so they must not exceed a small model."""
    shape = workload.shape
    most = _LARGEST_BUCKET if shape is None else min(_LARGEST_BUCKET, _even(shape.num_params))
    buckets = {"reduce_bucket_size": most}
    if plan.zero_stage < 3:
        return buckets | {"allgather_bucket_size": most}
    # DeepSpeed's defaults, cut to the model: what is fetched ahead, and what is never sharded.
    return buckets | {
        "stage3_prefetch_bucket_size": min(50_000_000, most),
        "stage3_param_persistence_threshold": min(100_000, most),
        "stage3_max_live_parameters": 1_000_000_000,
        "stage3_max_reuse_distance": 1_000_000_000,
    }


def _even(number: int) -> int:
    """Rounded up: an all-gather bucket must be a multiple of NCCL's start alignment, 2."""
    return number + number % 2
