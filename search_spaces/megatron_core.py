"""What Megatron-Core cannot do, or not together, without Transformer Engine."""

from __future__ import annotations

from search_spaces.pinned import simple_rule
from search_spaces.rule import Rule, Setting
from tuner.plan import Backend
from tuner.plan_arrays import BoolArray, PlanArrays


def _interleaved_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    pp = arrays.ints("pp")
    return (arrays.ints("vpp") > 1) & (setting.num_microbatches(arrays) % pp != 0)


def _groups_break(arrays: PlanArrays, setting: Setting) -> BoolArray:
    shape = setting.workload.shape
    groups = 1 if shape is None else shape.num_kv_heads
    tp = arrays.ints("tp")
    return (groups % tp != 0) & (tp % groups != 0)


MEGATRON_RULES: tuple[Rule, ...] = (
    simple_rule(
        "MC-90",
        Backend.MEGATRON,
        ("zero_stage",),
        lambda arrays, _: arrays.ints("zero_stage") > 1,
        "zero_stage must be 0 or 1 with Megatron-Core",
        "ours: Megatron-FSDP is not carried out yet",
    ),
    simple_rule(
        "MC-18",
        Backend.MEGATRON,
        ("cp", "ep", "precision", "offload"),
        lambda arrays, _: (
            (arrays.ints("cp") > 1)
            | (arrays.ints("ep") > 1)
            | arrays.equals("precision", "fp8")
            | ~arrays.equals("offload", "none")
        ),
        "cp and ep must be 1, precision not fp8 and offload none with Megatron-Core",
        "megatron/core/transformer/dot_product_attention.py: cp needs Transformer Engine",
    ),
    simple_rule(
        "MC-12",
        Backend.MEGATRON,
        ("tp",),
        _groups_break,
        "tp must divide the key-value heads or be a multiple of them",
        "megatron/core/transformer/transformer_config.py (0.16)",
    ),
    simple_rule(
        "MC-21",
        Backend.MEGATRON,
        ("vpp", "pp", "tp", "cp", "micro_batch"),
        _interleaved_breaks,
        "the micro-batches of a step must be a multiple of pp with vpp > 1",
        "megatron/core/pipeline_parallel/schedules.py",
    ),
)
