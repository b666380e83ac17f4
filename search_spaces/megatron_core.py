"""What Megatron-Core cannot do, or not together: heads, stages, states.

Rules of experts are in ``megatron_experts``; what follows from the model alone is in
``megatron_models``, what Transformer Engine decides in ``transformer_engine``. Rules that every
framework has (MC-01, 05, 11, 14, 16, 26) are general.
"""

from __future__ import annotations

import numpy as np

from search_spaces.megatron_experts import MEGATRON_EXPERT_RULES
from search_spaces.megatron_models import MEGATRON_MODEL_RULES
from search_spaces.options_text import divisors, options_text
from search_spaces.rule import Rule, Setting
from search_spaces.transformer_engine import TRANSFORMER_ENGINE_RULES
from tuner.model_shape import ModelShape
from tuner.plan import Backend, ParallelPlan
from tuner.plan_arrays import BoolArray, IntArray, PlanArrays

MEGATRON = (Backend.MEGATRON,)


def _shape(setting: Setting) -> ModelShape | None:
    return setting.workload.shape


def _known(setting: Setting) -> ModelShape:
    shape = _shape(setting)
    assert shape is not None, "rule G-13 keeps modules without a shape away"
    return shape


def _none(arrays: PlanArrays) -> BoolArray:
    return np.zeros(len(arrays), dtype=np.bool_)


# --- key-value heads -----------------------------------------------------------------------------


def _groups_break(arrays: PlanArrays, setting: Setting) -> BoolArray:
    groups = 1 if (shape := _shape(setting)) is None else shape.num_kv_heads
    tp = arrays.ints("tp")
    return (groups % tp != 0) & (tp % groups != 0)


def _groups_say(plan: ParallelPlan, setting: Setting) -> str:
    shape = _known(setting)
    groups = shape.num_kv_heads
    return (
        f"tp must divide the key-value heads ({groups}) or be a multiple of them, got {plan.tp}; "
        "try "
        + options_text(divisors(shape.num_heads), lambda tp: groups % tp == 0 or tp % groups == 0)
    )


def _whole_groups_break(arrays: PlanArrays, setting: Setting) -> BoolArray:
    groups = 1 if (shape := _shape(setting)) is None else shape.num_kv_heads
    return groups % arrays.ints("tp") != 0


def _whole_groups_say(plan: ParallelPlan, setting: Setting) -> str:
    groups = _known(setting).num_kv_heads
    version = setting.stack.versions["megatron-core"]
    return (
        f"tp must divide the key-value heads ({groups}) with megatron-core {version}, got "
        f"{plan.tp}; try {options_text(divisors(groups), lambda _: True)}, or megatron-core 0.16"
    )


# --- pipeline stages -----------------------------------------------------------------------------


def _divides_layers(num_layers: int, parts: IntArray) -> BoolArray:
    """Evenly, or with the embedding and the head counted as a layer each."""
    return (num_layers % parts == 0) | ((num_layers + 2) % parts == 0)


def _stages_break(arrays: PlanArrays, setting: Setting) -> BoolArray:
    if (shape := _shape(setting)) is None:
        return _none(arrays)
    return ~_divides_layers(shape.num_layers, arrays.ints("pp"))


def _stages_say(plan: ParallelPlan, setting: Setting) -> str:
    layers = _known(setting).num_layers
    options = sorted({*divisors(layers), *divisors(layers + 2)})
    return (
        f"pp must divide the layers ({layers}), or the layers with the embedding and the head "
        f"({layers + 2}), got {plan.pp}; try {options_text(options, lambda pp: pp <= layers)}"
    )


def _chunks_break(arrays: PlanArrays, setting: Setting) -> BoolArray:
    if (shape := _shape(setting)) is None:
        return _none(arrays)
    pp = arrays.ints("pp")
    chunks = pp * arrays.ints("vpp")
    stages_fit = _divides_layers(shape.num_layers, pp)
    return stages_fit & ~_divides_layers(shape.num_layers, chunks)


def _chunks_say(plan: ParallelPlan, setting: Setting) -> str:
    layers = _known(setting).num_layers
    options = options_text(
        range(1, layers + 1),
        lambda vpp: layers % (plan.pp * vpp) == 0 or (layers + 2) % (plan.pp * vpp) == 0,
    )
    return (
        f"pp * vpp must divide the layers ({layers}), or the layers with the embedding and the "
        f"head ({layers + 2}), got {plan.pp} * {plan.vpp}; make vpp {options}"
    )


def _interleaved_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    pp = arrays.ints("pp")
    microbatches = setting.num_microbatches(arrays)
    return (arrays.ints("vpp") > 1) & ((microbatches % pp != 0) | (microbatches < pp))


def _interleaved_say(plan: ParallelPlan, setting: Setting) -> str:
    batch = setting.workload.global_batch_sequences
    num_gpus = setting.cluster.num_gpus
    dp = max(1, plan.data_parallel(num_gpus))
    got = plan.num_microbatches(num_gpus, batch) if plan.data_parallel(num_gpus) else 0

    def is_legal(micro_batch: int) -> bool:
        rows = micro_batch * dp
        return batch % rows == 0 and batch // rows % plan.pp == 0

    return (
        f"the micro-batches of a step must be a multiple of pp ({plan.pp}) with vpp > 1, got "
        f"{got}; make micro_batch {options_text(range(1, batch + 1), is_legal)}, or vpp 1"
    )


# --- states --------------------------------------------------------------------------------------


def _cpu_optimizer_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    return arrays.equals("offload", "optimizer") & (arrays.ints("zero_stage") != 1)


def _cpu_optimizer_stack_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    missing = not setting.stack.has("transformer-engine")
    return arrays.equals("offload", "optimizer") & missing


def _sequence_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    # With cp 1 this is rule G-11.
    pieces = arrays.ints("tp") * arrays.ints("cp")
    uneven = setting.workload.seq_len % pieces != 0
    return arrays.flags("sequence_parallel") & (arrays.ints("cp") > 1) & uneven


_LAYOUT_RULES: tuple[Rule, ...] = (
    Rule(
        id="MC-90",
        backends=MEGATRON,
        knobs=("zero_stage",),
        breaks=lambda arrays, _: arrays.ints("zero_stage") > 1,
        says=lambda plan, _: (
            f"zero_stage must be 0 or 1 with Megatron-Core, got {plan.zero_stage}; use 1, its "
            "distributed optimizer"
        ),
        summary="zero_stage must be 0 or 1 with Megatron-Core",
        source="ours: Megatron-FSDP is not carried out yet",
    ),
    Rule(
        id="MC-91",
        backends=MEGATRON,
        knobs=("offload",),
        breaks=lambda arrays, _: arrays.equals("offload", "params"),
        says=lambda plan, _: (
            f"offload must be none or optimizer with Megatron-Core, got {plan.offload}; "
            "use optimizer, or DeepSpeed"
        ),
        summary="offload must be none or optimizer with Megatron-Core",
        source="ours: Megatron-Core has no offload of parameters",
    ),
    Rule(
        id="MC-12",
        backends=MEGATRON,
        knobs=("tp",),
        breaks=_groups_break,
        says=_groups_say,
        summary="tp must divide the key-value heads or be a multiple of them",
        source="megatron/core/transformer/transformer_config.py",
    ),
    Rule(
        id="MC-12a",
        backends=MEGATRON,
        knobs=("tp",),
        breaks=_whole_groups_break,
        says=_whole_groups_say,
        summary="tp must divide the key-value heads with megatron-core before 0.16",
        source="megatron/core/transformer/transformer_config.py (core_v0.15)",
        versions=("megatron-core", "<0.16"),
    ),
    Rule(
        id="MC-17",
        backends=MEGATRON,
        knobs=("sequence_parallel", "tp", "cp"),
        breaks=_sequence_breaks,
        says=lambda plan, setting: (
            f"tp * cp must divide the sequence ({setting.workload.seq_len}) with "
            f"sequence_parallel, got {plan.tp} * {plan.cp}; use less of either, or "
            "sequence_parallel false"
        ),
        summary="tp * cp must divide the sequence with sequence_parallel",
        source="megatron/core/tensor_parallel/mappings.py; schedules.py floors it",
    ),
    Rule(
        id="MC-22",
        backends=MEGATRON,
        knobs=("pp",),
        breaks=_stages_break,
        says=_stages_say,
        summary="pp must divide the layers, or the layers with the embedding and the head",
        source="megatron/core/transformer/transformer_config.py, transformer_block.py",
    ),
    Rule(
        id="MC-23",
        backends=MEGATRON,
        knobs=("pp", "vpp"),
        breaks=_chunks_break,
        says=_chunks_say,
        summary="pp * vpp must divide the layers, or the layers with the embedding and the head",
        source="megatron/core/transformer/transformer_config.py, transformer_block.py",
    ),
    Rule(
        id="MC-21",
        backends=MEGATRON,
        knobs=("vpp", "pp", "tp", "cp", "micro_batch"),
        breaks=_interleaved_breaks,
        says=_interleaved_say,
        summary="the micro-batches of a step must be a multiple of pp with vpp > 1",
        source="megatron/core/pipeline_parallel/schedules.py",
    ),
    Rule(
        id="MC-68",
        backends=MEGATRON,
        knobs=("offload", "zero_stage"),
        breaks=_cpu_optimizer_breaks,
        says=lambda plan, _: (
            f"offload optimizer needs zero_stage 1, the distributed optimizer, got "
            f"{plan.zero_stage}; use zero_stage 1 or offload none"
        ),
        summary="offload optimizer needs zero_stage 1",
        source="megatron/core/optimizer/optimizer_config.py; megatron/training/arguments.py",
    ),
    Rule(
        id="MC-67",
        backends=MEGATRON,
        knobs=("offload",),
        breaks=_cpu_optimizer_stack_breaks,
        says=lambda plan, _: (
            "offload optimizer needs Megatron's precision-aware optimizer, and that "
            "transformer-engine, which is not installed; install it, or use offload none"
        ),
        summary="offload optimizer needs transformer-engine",
        source="megatron/core/optimizer/optimizer_config.py: asks for its version, whatever it is",
    ),
)

MEGATRON_RULES: tuple[Rule, ...] = (
    *MEGATRON_MODEL_RULES,
    *_LAYOUT_RULES,
    *MEGATRON_EXPERT_RULES,
    *TRANSFORMER_ENGINE_RULES,
)
