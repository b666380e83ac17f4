"""What DeepSpeed cannot do, or not together, and what of it is not carried out here."""

from __future__ import annotations

from search_spaces.deepspeed_models import DEEPSPEED_MODEL_RULES
from search_spaces.rule import Rule, Setting
from tuner.cluster import Device
from tuner.plan import Backend, ParallelPlan
from tuner.plan_arrays import BoolArray, PlanArrays

_ONLY = (Backend.DEEPSPEED,)
_DEGREES = ("tp", "pp", "cp")
"""Knobs that the data-parallel degree follows from."""


def _fp16_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    gpu = setting.cluster.gpu
    known = gpu.device is Device.CUDA and gpu.compute_capability != (0, 0)
    too_old = known and gpu.compute_capability < (7, 0)
    return arrays.equals("precision", "fp16") & too_old


def _fp16_says(plan: ParallelPlan, setting: Setting) -> str:
    gpu = setting.cluster.gpu
    known = ", ".join(name for name in gpu.flops_per_s if name != "fp16")
    major, minor = gpu.compute_capability
    return (
        "DeepSpeed trains in fp16 on GPUs of compute capability 7.0 or later, got "
        f"{gpu.name} with {major}.{minor}; use precision {known}"
    )


def _stage_and_pipeline_says(plan: ParallelPlan, setting: Setting) -> str:
    stage = 1 if plan.data_parallel(setting.cluster.num_gpus) > 1 else 0
    return (
        f"zero_stage must be 0 or 1 with pp > 1, got zero_stage {plan.zero_stage} with pp "
        f"{plan.pp}: DeepSpeed's pipeline keeps whole gradients and parameters of its stage; use "
        f"zero_stage {stage}, or pp 1"
    )


def _sharded_anyway_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    return (
        (arrays.ints("pp") > 1)
        & (arrays.ints("zero_stage") == 0)
        & arrays.equals("precision", "bf16")
        & (setting.data_parallel(arrays) > 1)
    )


def _sharded_anyway_says(plan: ParallelPlan, setting: Setting) -> str:
    return (
        "zero_stage must be 1 for pp > 1 in bf16 with more than one data-parallel rank, got "
        f"zero_stage 0 with pp {plan.pp} and "
        f"{plan.data_parallel(setting.cluster.num_gpus)} data-parallel ranks: DeepSpeed's "
        "BF16_Optimizer shards the optimizer's states whatever the stage; use zero_stage 1, "
        "which says so"
    )


def _params_offload_says(plan: ParallelPlan, _: Setting) -> str:
    instead = "optimizer" if plan.zero_stage else "none"
    return (
        f"offload params needs zero_stage 3, got zero_stage {plan.zero_stage}, where DeepSpeed "
        f"reads the setting and does nothing; use zero_stage 3, or offload {instead}"
    )


def _autotp_zero3_breaks(arrays: PlanArrays, _: Setting) -> BoolArray:
    return (arrays.ints("tp") > 1) & (arrays.ints("zero_stage") == 3)


def _autotp_zero3_says(plan: ParallelPlan, setting: Setting) -> str:
    version = setting.stack.versions.get("deepspeed", "none")
    return (
        f"tp > 1 with zero_stage 3 needs deepspeed 0.19.4 or later, got tp {plan.tp} with "
        f"deepspeed {version}; use zero_stage 2, tp 1, or a newer deepspeed"
    )


FRAMEWORK_RULES: tuple[Rule, ...] = (
    Rule(
        id="DS-11",
        backends=_ONLY,
        knobs=("precision",),
        breaks=_fp16_breaks,
        says=_fp16_says,
        summary="fp16 needs a GPU of compute capability 7.0 or later",
        source="accelerator/cuda_accelerator.py is_fp16_supported; runtime/engine.py "
        "_do_sanity_check",
    ),
    Rule(
        id="DS-20",
        backends=_ONLY,
        knobs=("pp", "zero_stage"),
        breaks=lambda arrays, _: (arrays.ints("pp") > 1) & (arrays.ints("zero_stage") > 1),
        says=_stage_and_pipeline_says,
        summary="zero_stage must be 0 or 1 with pp > 1",
        source="runtime/pipe/engine.py PipelineEngine.__init__",
    ),
    Rule(
        id="DS-24",
        backends=_ONLY,
        knobs=("pp", "tp"),
        breaks=lambda arrays, _: (arrays.ints("pp") > 1) & (arrays.ints("tp") > 1),
        says=lambda plan, _: (
            f"tp and pp cannot both be above 1 with DeepSpeed, got tp {plan.tp} and pp {plan.pp}: "
            f"AutoTP knows no layers of a PipelineModule; use tp {plan.tp} with pp 1, or pp "
            f"{plan.pp} with tp 1"
        ),
        summary="tp and pp cannot both be above 1",
        source="module_inject/auto_tp.py supported; DeepSpeed issue 7147",
    ),
    Rule(
        id="DS-35",
        backends=_ONLY,
        knobs=("offload", "zero_stage"),
        breaks=lambda arrays, _: (
            arrays.equals("offload", "params") & (arrays.ints("zero_stage") != 3)
        ),
        says=_params_offload_says,
        summary="offload params needs zero_stage 3",
        source="runtime/zero/config.py offload_param; silently ignored below stage 3",
    ),
    Rule(
        id="DS-50",
        backends=_ONLY,
        knobs=("tp", "zero_stage"),
        breaks=_autotp_zero3_breaks,
        says=_autotp_zero3_says,
        summary="tp > 1 with zero_stage 3 needs deepspeed 0.19.4 or later",
        source="runtime/engine.py _configure_tensor_parallel_states, which asserts it up to 0.19.3",
        versions=("deepspeed", "<0.19.4"),
    ),
    Rule(
        id="DS-65",
        backends=_ONLY,
        knobs=("zero_stage", "precision", *_DEGREES),
        breaks=_sharded_anyway_breaks,
        says=_sharded_anyway_says,
        summary="zero_stage must be 1 for pp > 1 in bf16 with several data-parallel ranks",
        source="runtime/engine.py _do_optimizer_sanity_check; runtime/bf16_optimizer.py",
    ),
    Rule(
        id="DS-71",
        backends=_ONLY,
        knobs=("offload", "zero_stage"),
        breaks=lambda arrays, _: (
            arrays.equals("offload", "optimizer") & (arrays.ints("zero_stage") == 0)
        ),
        says=lambda plan, _: (
            "offload optimizer needs zero_stage 1, 2 or 3, got zero_stage 0, where DeepSpeed "
            "reads the setting and leaves the states on the device; use zero_stage 1, or offload "
            "none"
        ),
        summary="offload optimizer needs zero_stage 1, 2 or 3",
        source="runtime/zero/config.py offload_optimizer; silently ignored at stage 0",
    ),
)
"""What DeepSpeed refuses, or reads and then does something else."""


OWN_RULES: tuple[Rule, ...] = (
    Rule(
        id="DS-43",
        backends=_ONLY,
        knobs=("dp_replicate", "tp"),
        breaks=lambda arrays, _: (arrays.ints("dp_replicate") > 1) & (arrays.ints("tp") > 1),
        says=lambda plan, _: (
            f"dp_replicate and tp cannot both be above 1 with DeepSpeed, got dp_replicate "
            f"{plan.dp_replicate} and tp {plan.tp}: it makes hpZ groups of neighbouring ranks, so "
            f"of tensor-parallel ones; use dp_replicate 1, or tp 1"
        ),
        summary="dp_replicate and tp cannot both be above 1",
        source="ours: utils/groups.py _create_zero_param_parallel_group; tried, the losses differ",
    ),
    Rule(
        id="DS-60",
        backends=_ONLY,
        knobs=("vpp",),
        breaks=lambda arrays, _: arrays.ints("vpp") > 1,
        says=lambda plan, _: (
            f"vpp must be 1 with DeepSpeed, whose PipelineModule does not interleave, got vpp "
            f"{plan.vpp}; use vpp 1, or the megatron or pytorch backend"
        ),
        summary="vpp must be 1",
        source="ours: runtime/pipe/module.py has one range of layers a rank",
    ),
    Rule(
        id="DS-66",
        backends=_ONLY,
        knobs=("cp",),
        breaks=lambda arrays, _: arrays.ints("cp") > 1,
        says=lambda plan, _: (
            f"cp must be 1 with DeepSpeed, got cp {plan.cp}: Ulysses is not carried out here; use "
            "cp 1, and recompute or a higher tp for longer sequences"
        ),
        summary="cp must be 1",
        source="ours: Ulysses (runtime/sequence_parallel) is not carried out yet",
    ),
    Rule(
        id="DS-67",
        backends=_ONLY,
        knobs=("ep",),
        breaks=lambda arrays, _: arrays.ints("ep") > 1,
        says=lambda plan, _: (
            f"ep must be 1 with DeepSpeed, got ep {plan.ep}: AutoEP is not carried out here; use "
            "ep 1, with zero_stage 3 to shard the experts"
        ),
        summary="ep must be 1",
        source="ours: AutoEP (module_inject/auto_ep.py) is not carried out yet",
    ),
    Rule(
        id="DS-68",
        backends=_ONLY,
        knobs=("sequence_parallel",),
        breaks=lambda arrays, _: arrays.flags("sequence_parallel"),
        says=lambda plan, _: (
            "sequence_parallel must be false with DeepSpeed, got true: AutoTP keeps whole "
            "sequences between its split layers; use false, or the megatron or pytorch backend"
        ),
        summary="sequence_parallel must be false",
        source="ours: module_inject/auto_tp.py has no such mode",
    ),
    Rule(
        id="DS-69",
        backends=_ONLY,
        knobs=("precision",),
        breaks=lambda arrays, _: arrays.equals("precision", "fp8"),
        says=lambda plan, setting: (
            "precision must be fp32, fp16 or bf16 with DeepSpeed, got fp8; use "
            + (" or ".join(name for name in setting.cluster.gpu.flops_per_s if name != "fp8"))
        ),
        summary="precision must be fp32, fp16 or bf16",
        source="ours: the config has no fp8 block; it needs Transformer Engine's layers",
    ),
    Rule(
        id="DS-70",
        backends=_ONLY,
        knobs=("offload", "pp"),
        breaks=lambda arrays, _: ~arrays.equals("offload", "none") & (arrays.ints("pp") > 1),
        says=lambda plan, _: (
            f"offload must be none with pp > 1, got offload {plan.offload} with pp {plan.pp}; use "
            "offload none, or pp 1 with zero_stage 3"
        ),
        summary="offload must be none with pp > 1",
        source="ours: not tried, and a stage's states are few",
    ),
)
"""What is not carried out here, or known to train something else."""


DEEPSPEED_RULES: tuple[Rule, ...] = (*FRAMEWORK_RULES, *OWN_RULES, *DEEPSPEED_MODEL_RULES)
