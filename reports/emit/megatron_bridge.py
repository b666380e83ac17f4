"""Megatron Bridge: overrides of its ``ConfigContainer``, one a line, in Hydra's spelling."""

from __future__ import annotations

from typing import Any

from reports.emit.subject import Need, Subject, check, only
from reports.wording import BENCH_VALUES
from tuner.launch import MEGATRON_FILE, MODEL_FILE, LaunchFile
from tuner.megatron_options import read_arguments
from tuner.plan import Backend, ParallelPlan, Precision

OVERRIDES_FILE = "megatron_bridge.overrides"
_RECIPES = {
    Precision.FP32: "null",
    Precision.FP16: "fp16_mixed",
    Precision.BF16: "bf16_mixed",
}
"""Registered in megatron/bridge/training/mixed_precision.py."""
_MODEL = (
    "seq_length",
    "attention_dropout",
    "hidden_dropout",
    "make_vocab_size_divisible_by",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "sequence_parallel",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "recompute_modules",
    "microbatch_group_size_per_vp_stage",
    "moe_router_load_balancing_type",
    "moe_token_dispatcher_type",
    "moe_grouped_gemm",
    "gradient_accumulation_fusion",
    "masked_softmax_fusion",
    "apply_rope_fusion",
    "bias_dropout_fusion",
    "transformer_impl",
)
"""Arguments of Megatron-LM that the model's provider has under the same name."""
_OPTIMIZER = (
    "lr",
    "min_lr",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_eps",
    "clip_grad",
    "use_distributed_optimizer",
    "use_precision_aware_optimizer",
    "optimizer_cpu_offload",
)
_DDP = (
    "use_distributed_optimizer",
    "num_distributed_optimizer_instances",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "align_param_gather",
)
_RENAMED = {
    "ddp.bucket_size": "ddp_bucket_size",
    "ddp.average_in_collective": "ddp_average_in_collective",
}
"""Bridge's names, with those of Megatron-LM's arguments."""
_SECTIONS = (
    ("model", _MODEL),
    ("train", ("micro_batch_size", "global_batch_size")),
    ("optimizer", _OPTIMIZER),
    ("ddp", _DDP),
    ("scheduler", ("lr_decay_style",)),
    ("dist", ("distributed_backend",)),
)


def bridge_files(subject: Subject) -> tuple[LaunchFile, ...]:
    """The overrides; the model itself comes from ``AutoBridge`` and ``config.json``.

    Raises:
        UserError: the plan is of another framework, or Bridge would train it otherwise.
    """
    check("megatron-bridge", subject, _needs(subject.plan))
    arguments = read_arguments(subject.text(MEGATRON_FILE), named=MEGATRON_FILE)
    lines = [
        f"{key}={_hydra(key, value)}" for key, value in overrides(subject.plan, arguments).items()
    ]
    # Overrides cannot set the environment.
    exports = [f"# Export before: {name}={value}" for name, value in subject.spec.env]
    text = "\n".join([f"# {subject.origin}", f"# {BENCH_VALUES}", *exports, *lines]) + "\n"
    model = (file for file in subject.spec.files if file.name == MODEL_FILE)
    return (LaunchFile(name=OVERRIDES_FILE, text=text), *model)


def _needs(plan: ParallelPlan) -> tuple[Need, ...]:
    return (
        only(plan, Backend.MEGATRON, "torchrun"),
        Need(
            knob="precision",
            holds=plan.precision is not Precision.FP8,
            allowed="fp32, fp16 or bf16",
            why="Bridge's FP8 recipes gather the parameters in 8 bits and scale otherwise than "
            "the bench does",
            instead="use --format megatron, or a plan with precision=bf16",
        ),
    )


def overrides(plan: ParallelPlan, arguments: dict[str, Any]) -> dict[str, Any]:
    """The same as Megatron-LM's arguments, by Bridge's names; what is not said is its default."""
    given: dict[str, Any] = {}
    for section, names in _SECTIONS:
        given |= {f"{section}.{name}": arguments[name] for name in names if name in arguments}
    given |= {
        "model.sequence_parallel": plan.sequence_parallel,
        "optimizer.use_distributed_optimizer": plan.zero_stage == 1,
        "ddp.use_distributed_optimizer": plan.zero_stage == 1,
        "ddp.overlap_grad_reduce": arguments.get("overlap_grad_reduce", False),
        "ddp.overlap_param_gather": arguments.get("overlap_param_gather", False),
        "ddp.check_for_nan_in_grad": False,
        "mixed_precision": _RECIPES[plan.precision],
    }
    for key, name in _RENAMED.items():
        if name in arguments:
            given[key] = arguments[name]
    if plan.vpp > 1:
        given["model.virtual_pipeline_model_parallel_size"] = plan.vpp
    return given


def _hydra(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list) and key != "model.moe_router_load_balancing_type":
        return f"[{','.join(str(item) for item in value)}]"
    return str(value[0] if isinstance(value, list) else value)
