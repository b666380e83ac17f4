"""A plan for PyTorch's own parallelism as a launch: ``pytorch.toml``, in torchtitan's words.

What torchtitan has no word for stands in the table ``paratune``.
"""

from __future__ import annotations

from runners.backends.training_file import shared_files
from tuner.cluster import Cluster, Device
from tuner.errors import UserError
from tuner.launch import PYTORCH_FILE, LaunchFile, LaunchSpec, Measurement
from tuner.plan import Offload, ParallelPlan, Precision
from tuner.workload import HfModel, Workload

SPLIT_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Hugging Face model types whose layers can be split (tp) or dealt out to stages (pp)."""
_DTYPES = {Precision.FP32: "float32", Precision.FP16: "float16", Precision.BF16: "bfloat16"}


def pytorch_launch(
    plan: ParallelPlan, workload: Workload, cluster: Cluster, measurement: Measurement
) -> LaunchSpec:
    """The launch of this plan; pure.

    Raises:
        UserError: the model or the plan is one that the bench cannot train.
    """
    broken = [
        sentence
        for is_broken, sentence in (
            *_unsupported(plan, cluster),
            *_combined(plan),
            *_model_refusals(plan, workload),
        )
        if is_broken
    ]
    if broken:
        raise UserError(f"a pytorch plan must have {'; '.join(broken)}; try another plan")
    return LaunchSpec(
        plan=plan,
        num_nodes=cluster.num_nodes,
        ranks_per_node=cluster.gpus_per_node,
        files=(
            *shared_files(plan, workload, cluster, measurement),
            LaunchFile(name=PYTORCH_FILE, text=_text(plan, workload, cluster.num_gpus)),
        ),
    )


def _unsupported(plan: ParallelPlan, cluster: Cluster) -> tuple[tuple[bool, str], ...]:
    offloads = plan.offload is Offload.PARAMS
    on_cuda = cluster.gpu.device is Device.CUDA
    return (
        (plan.cp > 1, f"cp 1, got {plan.cp}"),
        (plan.ep > 1, f"ep 1, got {plan.ep}"),
        (plan.precision is Precision.FP8, "precision fp32, fp16 or bf16, got fp8"),
        (plan.offload is Offload.OPTIMIZER, "offload none or params, got optimizer"),
        (offloads and plan.zero_stage < 2, f"zero_stage 2 or 3 to offload, got {plan.zero_stage}"),
        (offloads and not on_cuda, "offload none where ranks run on CPUs, got params"),
    )


def _combined(plan: ParallelPlan) -> tuple[tuple[bool, str], ...]:
    split = plan.tp > 1 or plan.pp > 1
    return (
        (plan.zero_stage == 1 and split, f"tp and pp 1 for zero_stage 1, got {plan.tp}, {plan.pp}"),
        (
            plan.dp_replicate > 1 and plan.zero_stage < 2,
            f"zero_stage 2 or 3 for dp_replicate {plan.dp_replicate}, got {plan.zero_stage}",
        ),
        (plan.sequence_parallel and plan.tp == 1, "tp above 1 for sequence_parallel, got tp 1"),
        (plan.vpp > 1 and plan.pp == 1, f"pp above 1 for vpp {plan.vpp}, got pp 1"),
    )


def _model_refusals(plan: ParallelPlan, workload: Workload) -> tuple[tuple[bool, str], ...]:
    model, split = workload.model, plan.tp > 1 or plan.pp > 1
    if not isinstance(model, HfModel):
        return ((split, f"tp and pp 1 for a model of your own ({model.name})"),)
    shape = model.shape
    families = ", ".join(SPLIT_FAMILIES)
    return (
        (
            split and shape.family not in SPLIT_FAMILIES,
            f"tp and pp 1 except for {families} models, got {shape.family}",
        ),
        (plan.pp > 1 and shape.tied_embeddings, f"pp 1 for tied embeddings, got {plan.pp}"),
        (
            bool(shape.num_kv_heads % plan.tp),
            f"a tp that divides num_key_value_heads ({shape.num_kv_heads}), got {plan.tp}",
        ),
        (
            shape.num_layers < plan.pp * plan.vpp,
            f"pp * vpp of at most num_layers ({shape.num_layers}), got {plan.pp * plan.vpp}",
        ),
        (
            plan.sequence_parallel and bool(workload.seq_len % plan.tp),
            f"a tp that divides seq_len ({workload.seq_len}) for sequence_parallel, got {plan.tp}",
        ),
    )


def _text(plan: ParallelPlan, workload: Workload, num_gpus: int) -> str:
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
