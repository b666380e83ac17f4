"""A plan as DeepSpeed runs it: ``ds_config.json``, complete, without "auto"."""

from __future__ import annotations

import json
from typing import Any

from runners.backends.training_file import shared_files
from tuner.cluster import Cluster, Device
from tuner.framework_settings.setting import SettingCase
from tuner.framework_settings.table import settled
from tuner.launch import DEEPSPEED_FILE, LaunchFile, LaunchSpec, Measurement, Settings
from tuner.plan import Offload, ParallelPlan, Precision, Recompute
from tuner.workload import Workload

_SIZES = (
    "reduce_bucket_size",
    "allgather_bucket_size",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
)
"""Settings that are always said: DeepSpeed's own defaults are for large models."""
_STAGE_PARTITION = "type:PipelineLayer"
"""Stages of equally many decoder layers, as the other frameworks cut them."""


def deepspeed_launch(
    plan: ParallelPlan,
    workload: Workload,
    cluster: Cluster,
    measurement: Measurement,
    settings: Settings = (),
) -> LaunchSpec:
    """The launch of a plan that the rules call legal; pure."""
    case = SettingCase(plan=plan, workload=workload, cluster=cluster)
    config = json.dumps(_config(case, settings), indent=2) + "\n"
    # DeepSpeed leaves recomputation to the training script, but for whole layers of a pipeline.
    in_config = plan.pp > 1 and plan.recompute is Recompute.FULL
    recompute = Recompute.NONE if in_config else plan.recompute
    on_cpu = cluster.gpu.device is Device.CPU
    return LaunchSpec(
        plan=plan,
        num_nodes=cluster.num_nodes,
        ranks_per_node=cluster.gpus_per_node,
        files=(
            *shared_files(plan, workload, cluster, measurement, settings, recompute=recompute),
            LaunchFile(name=DEEPSPEED_FILE, text=config),
        ),
        env=(("DS_ACCELERATOR", "cpu"),) if on_cpu else (),
    )


def _config(case: SettingCase, settings: Settings) -> dict[str, Any]:
    """``train_batch_size`` is left out: before torch.distributed is up, it is checked against 1."""
    plan, workload, cluster = case.plan, case.workload, case.cluster
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.num_microbatches(
            cluster.num_gpus, workload.global_batch_sequences
        ),
        "optimizer": _optimizer(plan, workload, cluster),
        "zero_optimization": _zero(case, settings),
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


def _zero(case: SettingCase, settings: Settings) -> dict[str, Any]:
    plan, values = case.plan, settled(case, settings)
    zero: dict[str, Any] = {"stage": plan.zero_stage}
    zero |= {name: values[name] for name in _SIZES if name in values}
    if plan.zero_stage >= 1:
        # Said even where DeepSpeed would turn it off by itself: what is emitted is what runs.
        zero["overlap_comm"] = values.get("overlap_comm", False)
        zero["contiguous_gradients"] = values.get("contiguous_gradients", True)
    if values.get("round_robin_gradients"):
        zero["round_robin_gradients"] = True
    if plan.offload is not Offload.NONE:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if plan.offload is Offload.PARAMS:
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    if plan.zero_stage == 3 and plan.dp_replicate > 1:
        shards = case.data_parallel // plan.dp_replicate
        zero["zero_hpz_partition_size"] = shards
    return zero
