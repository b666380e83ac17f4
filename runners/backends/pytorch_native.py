"""A plan for PyTorch's own parallelism as a launch: ``pytorch.toml``, in torchtitan's words.

What torchtitan has no word for stands in the table ``paratune``.
"""

from __future__ import annotations

from runners.backends.training_file import shared_files
from tuner.cluster import Cluster
from tuner.framework_settings.pytorch_settings import ALLOCATOR_SETTINGS
from tuner.launch import PYTORCH_FILE, LaunchFile, LaunchSpec, Measurement, Settings
from tuner.plan import Offload, ParallelPlan, Precision
from tuner.workload import Workload

_DTYPES = {Precision.FP32: "float32", Precision.FP16: "float16", Precision.BF16: "bfloat16"}
_IN_ENVIRONMENT = tuple(setting.name for setting in ALLOCATOR_SETTINGS)


def pytorch_launch(
    plan: ParallelPlan,
    workload: Workload,
    cluster: Cluster,
    measurement: Measurement,
    settings: Settings = (),
) -> LaunchSpec:
    """The launch of a legal plan; pure. What is legal is said by the rules, not here."""
    return LaunchSpec(
        plan=plan,
        num_nodes=cluster.num_nodes,
        ranks_per_node=cluster.gpus_per_node,
        files=(
            *shared_files(plan, workload, cluster, measurement, settings),
            LaunchFile(name=PYTORCH_FILE, text=_text(plan, workload, cluster.num_gpus, settings)),
        ),
    )


def _text(plan: ParallelPlan, workload: Workload, num_gpus: int, settings: Settings) -> str:
    data_parallel = plan.data_parallel(num_gpus)
    replicas = plan.dp_replicate if plan.zero_stage >= 2 else data_parallel
    local_samples = workload.global_batch_sequences // data_parallel
    tables: dict[str, dict[str, str | int | float | bool]] = {
        "parallelism": {
            "data_parallel_replicate_degree": replicas,
            "data_parallel_shard_degree": data_parallel // replicas,
            "fsdp_reshard_after_forward": "always" if plan.zero_stage == 3 else "never",
            "tensor_parallel_degree": plan.tp,
            "enable_sequence_parallel": plan.sequence_parallel,
            "context_parallel_degree": plan.cp,
            "expert_parallel_degree": plan.ep,
            "pipeline_parallel_degree": plan.pp,
            "pipeline_parallel_schedule": "Interleaved1F1B" if plan.vpp > 1 else "1F1B",
            "pipeline_parallel_microbatch_size": plan.micro_batch,
        },
        "training": {
            # Torchtitan's pipeline takes a rank's whole share of the batch and splits it itself.
            "local_batch_size": local_samples if plan.pp > 1 else plan.micro_batch,
            "global_batch_size": workload.global_batch_sequences,
            "seq_len": workload.seq_len,
            "mixed_precision_param": _DTYPES[plan.precision],
            "mixed_precision_reduce": "float32",
            "enable_cpu_offload": plan.offload is Offload.PARAMS,
        },
        "activation_checkpoint": {"mode": str(plan.recompute)},
        "optimizer": {"name": "AdamW", "lr": workload.learning_rate},
        "paratune": {
            "zero_stage": plan.zero_stage,
            "pipeline_parallel_stages_per_rank": plan.vpp,
            **{name: value for name, value in settings if name not in _IN_ENVIRONMENT},
        },
    }
    return "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in table.items())
        for name, table in tables.items()
    )


def _toml(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else repr(value)
