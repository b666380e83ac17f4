"""What DeepSpeed cannot do, or not together."""

from __future__ import annotations

from search_spaces.pinned import simple_rule
from search_spaces.rule import Rule, Setting
from tuner.plan import Backend
from tuner.plan_arrays import BoolArray, PlanArrays

_SPLIT_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_STAGED_FAMILIES = ("llama", "qwen2", "qwen3")


def _offload_breaks(arrays: PlanArrays, _: Setting) -> BoolArray:
    zero_stage = arrays.ints("zero_stage")
    optimizer = arrays.equals("offload", "optimizer") & (zero_stage == 0)
    params = arrays.equals("offload", "params") & (zero_stage != 3)
    in_pipeline = ~arrays.equals("offload", "none") & (arrays.ints("pp") > 1)
    return optimizer | params | in_pipeline


def _split_family_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    shape = setting.workload.shape
    known = shape is not None and shape.family in _SPLIT_FAMILIES and not shape.tied_embeddings
    return (arrays.ints("tp") > 1) & (not known)


def _pipeline_model_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    shape = setting.workload.shape
    staged = shape is not None and shape.family in _STAGED_FAMILIES and not shape.tied_embeddings
    return (arrays.ints("pp") > 1) & (not staged)


DEEPSPEED_RULES: tuple[Rule, ...] = (
    simple_rule(
        "DS-20",
        Backend.DEEPSPEED,
        ("pp", "zero_stage"),
        lambda arrays, _: (arrays.ints("pp") > 1) & (arrays.ints("zero_stage") > 1),
        "zero_stage must be 0 or 1 with pp > 1",
        "deepspeed/runtime/pipe/engine.py",
    ),
    simple_rule(
        "DS-24",
        Backend.DEEPSPEED,
        ("pp", "tp"),
        lambda arrays, _: (arrays.ints("pp") > 1) & (arrays.ints("tp") > 1),
        "tp and pp cannot both be above 1: DeepSpeed combines them only through Megatron",
        "deepspeed/module_inject/auto_ep_folding.py; DeepSpeed issue 7147",
    ),
    simple_rule(
        "DS-35",
        Backend.DEEPSPEED,
        ("offload", "zero_stage", "pp"),
        _offload_breaks,
        "offload optimizer needs zero_stage 1 to 3 and offload params zero_stage 3, both pp 1",
        "deepspeed/runtime/zero/config.py; the pipeline engine keeps its states on the device",
    ),
    simple_rule(
        "DS-43",
        Backend.DEEPSPEED,
        ("dp_replicate", "tp"),
        lambda arrays, _: (arrays.ints("dp_replicate") > 1) & (arrays.ints("tp") > 1),
        "dp_replicate and tp cannot both be above 1: hpZ groups are made of neighbouring ranks",
        "deepspeed/utils/groups.py _create_zero_param_parallel_group; tried: the losses differ",
    ),
    simple_rule(
        "DS-61",
        Backend.DEEPSPEED,
        ("pp",),
        _pipeline_model_breaks,
        f"pp must be 1 except for {', '.join(_STAGED_FAMILIES)} models with untied embeddings",
        "ours: the pipeline module is a list of these models' layers",
    ),
    simple_rule(
        "DS-63",
        Backend.DEEPSPEED,
        ("tp",),
        _split_family_breaks,
        f"tp must be 1 except for {', '.join(_SPLIT_FAMILIES)} models with untied embeddings",
        "ours: AutoTP was tried with these; it leaves a tied head's logits split by vocabulary",
    ),
    simple_rule(
        "DS-60",
        Backend.DEEPSPEED,
        ("vpp", "cp", "ep", "sequence_parallel", "precision"),
        lambda arrays, _: (
            (arrays.ints("vpp") > 1)
            | (arrays.ints("cp") > 1)
            | (arrays.ints("ep") > 1)
            | arrays.flags("sequence_parallel")
            | arrays.equals("precision", "fp8")
        ),
        "vpp, cp and ep must be 1, sequence_parallel false and precision not fp8 with DeepSpeed",
        "ours: PipelineModule does not interleave; the others are not carried out yet",
    ),
)
