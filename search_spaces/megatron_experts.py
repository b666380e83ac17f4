"""What Megatron-Core cannot do, or not together, with a mixture of experts.

Launched with ep 1, each expert is split over tp; with ep above 1 experts are whole and spread over
the data, context and tensor-parallel ranks together.
"""

from __future__ import annotations

import numpy as np

from search_spaces.options_text import divisors, options_text
from search_spaces.rule import Rule, Setting
from tuner.model_shape import Experts
from tuner.plan import Backend, ParallelPlan
from tuner.plan_arrays import BoolArray, IntArray, PlanArrays

MEGATRON = (Backend.MEGATRON,)


def _experts(setting: Setting) -> Experts | None:
    shape = setting.workload.shape
    return None if shape is None else shape.experts


def _none(arrays: PlanArrays) -> BoolArray:
    return np.zeros(len(arrays), dtype=np.bool_)


def _expert_count_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    experts = _experts(setting)
    count = 1 if experts is None else experts.num_experts
    return count % arrays.ints("ep") != 0


def _expert_count_says(plan: ParallelPlan, setting: Setting) -> str:
    experts = _experts(setting)
    if experts is None:
        return f"ep must be 1 for a model without experts, got {plan.ep}; use ep 1"
    count = experts.num_experts
    return (
        f"ep must divide the experts of a layer ({count}), got {plan.ep}; "
        f"try {options_text(divisors(count), lambda _: True)}"
    )


def _expert_ranks_break(arrays: PlanArrays, setting: Setting) -> BoolArray:
    ep = arrays.ints("ep")
    return (ep > 1) & (setting.cluster.num_gpus % (ep * arrays.ints("pp")) != 0)


def _expert_ranks_say(plan: ParallelPlan, setting: Setting) -> str:
    gpus = setting.cluster.num_gpus
    options = options_text(divisors(gpus), lambda ep: gpus % (ep * plan.pp) == 0)
    return (
        f"ep * pp must divide the GPUs ({gpus}), got {plan.ep} * {plan.pp} = "
        f"{plan.ep * plan.pp}; make ep {options}"
    )


def _expert_replicas(arrays: PlanArrays, setting: Setting) -> IntArray:
    """Ranks that hold the same experts: with ep 1 an expert is split over tp, else it is whole."""
    ep = arrays.ints("ep")
    split = np.where(ep == 1, arrays.ints("tp"), 1)
    return np.maximum(1, setting.cluster.num_gpus // (ep * split * arrays.ints("pp")))


def _expert_instances_break(arrays: PlanArrays, setting: Setting) -> BoolArray:
    if _experts(setting) is None:
        return _none(arrays)
    replicate = arrays.ints("dp_replicate")
    return (replicate > 1) & (_expert_replicas(arrays, setting) % replicate != 0)


def _expert_instances_say(plan: ParallelPlan, setting: Setting) -> str:
    replicas = int(_expert_replicas(PlanArrays.of_plans([plan]), setting)[0])
    return (
        f"dp_replicate must divide the ranks that hold the same experts ({replicas}), got "
        f"{plan.dp_replicate}; try {options_text(divisors(replicas), lambda _: True)}"
    )


def _expert_size_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    if (experts := _experts(setting)) is None:
        return _none(arrays)
    tp = arrays.ints("tp")
    split_expert = (arrays.ints("ep") == 1) & (experts.ffn % tp != 0)
    return split_expert | (experts.shared_ffn % tp != 0)


def _expert_size_says(plan: ParallelPlan, setting: Setting) -> str:
    experts = _experts(setting)
    assert experts is not None, "the rule speaks only of models with experts"
    shared = f" and of the shared ones ({experts.shared_ffn})" if experts.shared_ffn else ""
    options = options_text(
        divisors(experts.ffn), lambda tp: experts.shared_ffn % tp == 0 and tp <= plan.tp
    )
    return (
        f"tp must divide the inner size of the experts ({experts.ffn}){shared}, got {plan.tp}; "
        f"try {options}" + ("" if experts.shared_ffn % plan.tp else ", or ep above 1")
    )


def _expert_precision_breaks(arrays: PlanArrays, _: Setting) -> BoolArray:
    return (arrays.ints("ep") > 1) & arrays.equals("precision", "fp16")


def _expert_sequence_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    if _experts(setting) is None:
        return _none(arrays)
    return (arrays.ints("tp") > 1) & ~arrays.flags("sequence_parallel")


MEGATRON_EXPERT_RULES: tuple[Rule, ...] = (
    Rule(
        id="MC-40",
        backends=MEGATRON,
        knobs=("ep",),
        breaks=_expert_count_breaks,
        says=_expert_count_says,
        summary="ep must divide the experts of a layer, and be 1 without experts",
        source="megatron/core/transformer/transformer_config.py, moe/moe_layer.py",
    ),
    Rule(
        id="MC-40a",
        backends=MEGATRON,
        knobs=("ep", "precision"),
        breaks=_expert_precision_breaks,
        says=lambda plan, _: f"ep must be 1 in fp16, got {plan.ep}; use ep 1, or bf16 or fp32",
        summary="ep must be 1 in fp16",
        source="megatron/training/arguments.py (core_v0.16.1)",
    ),
    Rule(
        id="MC-02",
        backends=MEGATRON,
        knobs=("ep", "pp"),
        breaks=_expert_ranks_break,
        says=_expert_ranks_say,
        summary="ep * pp must divide the GPUs",
        source="megatron/core/parallel_state.py; experts are not split over tp where ep > 1",
    ),
    Rule(
        id="MC-04",
        backends=MEGATRON,
        knobs=("dp_replicate", "ep", "tp", "pp"),
        breaks=_expert_instances_break,
        says=_expert_instances_say,
        summary="dp_replicate must divide the ranks that hold the same experts",
        source="megatron/core/parallel_state.py",
    ),
    Rule(
        id="MC-14",
        backends=MEGATRON,
        knobs=("tp", "ep"),
        breaks=_expert_size_breaks,
        says=_expert_size_says,
        summary="tp must divide the inner size of shared experts, and of the others with ep 1",
        source="megatron/core/utils.py divide; megatron/core/tensor_parallel/layers.py",
    ),
    Rule(
        id="MC-41",
        backends=MEGATRON,
        knobs=("tp", "sequence_parallel"),
        breaks=_expert_sequence_breaks,
        says=lambda plan, _: (
            f"a model with experts needs sequence_parallel with tp > 1, got tp {plan.tp} without; "
            "use sequence_parallel, or tp 1 and ep instead"
        ),
        summary="a model with experts needs sequence_parallel with tp > 1",
        source="megatron/core/transformer/moe/moe_layer.py",
    ),
)
