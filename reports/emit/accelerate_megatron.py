"""A Megatron plan in the words of accelerate's plugin, where it has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.emit.subject import Need, Subject, unsaid_settings
from tuner.plan import Offload, ParallelPlan, Precision, Recompute

MEGATRON_MODELS = ("gpt2", "llama")
"""Decoder families that accelerate's plugin can turn into Megatron's arguments."""

_SETTING_DEFAULTS: Mapping[str, bool | int | None] = {
    "overlap_grad_reduce": True,
    "overlap_param_gather": True,
    "align_param_gather": True,
    "ddp_bucket_size": None,
    "ddp_average_in_collective": False,
    "microbatch_group_size": None,
}


def megatron_section(plan: ParallelPlan, num_microbatches: int) -> dict[str, Any]:
    """``megatron_lm_config``: every degree is said, since the plugin's cp is 2 unless told."""
    offloads = plan.offload is Offload.OPTIMIZER
    return {
        "megatron_lm_config": {
            "megatron_lm_tp_degree": plan.tp,
            "megatron_lm_pp_degree": plan.pp,
            "megatron_lm_num_micro_batches": num_microbatches,
            "megatron_lm_sequence_parallelism": plan.sequence_parallel,
            "megatron_lm_context_parallel_size": plan.cp,
            "megatron_lm_expert_model_parallel_size": plan.ep,
            "megatron_lm_expert_tensor_parallel_size": plan.tp if plan.ep == 1 else 1,
            "megatron_lm_use_distributed_optimizer": plan.zero_stage == 1,
            "megatron_lm_optimizer_cpu_offload": offloads,
            "megatron_lm_use_precision_aware_optimizer": offloads,
            "megatron_lm_recompute_granularity": "full",
            "megatron_lm_recompute_method": "uniform",
            "megatron_lm_recompute_num_layers": 1,
            "megatron_lm_attention_dropout": 0.0,
            "megatron_lm_hidden_dropout": 0.0,
            "megatron_lm_calculate_per_token_loss": False,
            "megatron_lm_gradient_clipping": 0.0,
        }
    }


def megatron_needs(subject: Subject) -> tuple[Need, ...]:
    """What the plugin cannot say."""
    plan = subject.plan
    lm = "use --format megatron, or a plan with"
    return (
        Need(
            knob="recompute",
            holds=plan.recompute is Recompute.FULL,
            allowed="full",
            why="the plugin recomputes whole layers, whatever it is told",
            instead=f"{lm} recompute=full",
        ),
        Need(
            knob="vpp",
            holds=plan.vpp == 1,
            allowed="1",
            why="the plugin reads no number of virtual stages from its file",
            instead=f"{lm} vpp=1",
        ),
        Need(
            knob="dp_replicate",
            holds=plan.dp_replicate == 1,
            allowed="1",
            why="the plugin has no instances of the distributed optimizer",
            instead=f"{lm} dp_replicate=1",
        ),
        Need(
            knob="precision",
            holds=plan.precision is not Precision.FP8,
            allowed="fp32, fp16 or bf16",
            why="the plugin hands no FP8 format to Megatron",
            instead=f"{lm} precision=bf16",
        ),
        *unsaid_settings(
            subject,
            _SETTING_DEFAULTS,
            "the plugin hands no settings of the data-parallel buckets to Megatron",
            "megatron",
        ),
    )
