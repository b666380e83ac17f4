"""Rules that follow from arithmetic and from the model's shape, whatever the framework."""

from __future__ import annotations

from math import gcd

import numpy as np

from search_spaces.options_text import divisors, options_text
from search_spaces.rule import ALL, Rule, Setting
from tuner.cluster import Device
from tuner.model_shape import ModelShape
from tuner.plan import Backend, ParallelPlan
from tuner.plan_arrays import BoolArray, IntArray, PlanArrays


def _divisors_text(number: int) -> str:
    return options_text(divisors(number), lambda _: True)


_DISTRIBUTIONS = {
    Backend.PYTORCH: "torch",
    Backend.DEEPSPEED: "deepspeed",
    Backend.MEGATRON: "megatron-core",
}
"""What must be installed for a backend to run."""


def _missing_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    missing = [str(b) for b, name in _DISTRIBUTIONS.items() if not setting.stack.has(name)]
    return arrays.equals("backend", *missing)


def _degrees_break(arrays: PlanArrays, setting: Setting) -> BoolArray:
    split = arrays.ints("tp") * arrays.ints("pp") * arrays.ints("cp")
    return setting.cluster.num_gpus % split != 0


def _degrees_say(plan: ParallelPlan, setting: Setting) -> str:
    product = plan.tp * plan.pp * plan.cp
    return (
        f"tp * pp * cp must divide the GPUs ({setting.cluster.num_gpus}), got {plan.tp} * "
        f"{plan.pp} * {plan.cp} = {product}; make it one of "
        f"{_divisors_text(setting.cluster.num_gpus)}"
    )


def _batch_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    rows = arrays.ints("micro_batch") * setting.data_parallel(arrays)
    return setting.workload.global_batch_sequences % rows != 0


def _batch_says(plan: ParallelPlan, setting: Setting) -> str:
    dp = plan.data_parallel(setting.cluster.num_gpus)
    batch = setting.workload.global_batch_sequences
    advice = (
        f"make micro_batch one of {_divisors_text(batch // dp)}"
        if dp and batch % dp == 0
        else f"make the global batch a multiple of {dp}, or use more tp or pp"
    )
    return (
        f"micro_batch * data-parallel degree must divide the global batch ({batch}), got "
        f"{plan.micro_batch} * {dp} = {plan.micro_batch * dp}; {advice}"
    )


def _tp_node_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    return setting.cluster.gpus_per_nvlink_domain % arrays.ints("tp") != 0


def _tp_node_says(plan: ParallelPlan, setting: Setting) -> str:
    inside = setting.cluster.gpus_per_nvlink_domain
    return (
        f"tp must divide the GPUs of an NVLink domain ({inside}), got {plan.tp}; "
        f"try {_divisors_text(inside)}"
    )


def _precision_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    return ~arrays.equals("precision", *setting.cluster.gpu.flops_per_s)


def _precision_says(plan: ParallelPlan, setting: Setting) -> str:
    known = ", ".join(setting.cluster.gpu.flops_per_s)
    return (
        f"precision must be one that a {setting.cluster.gpu.name} computes in ({known}), "
        f"got {plan.precision}"
    )


def _sharding_ranks(arrays: PlanArrays, setting: Setting) -> IntArray:
    """Ranks that states can be sharded over, shape (n,): Megatron's include those of cp."""
    context = np.where(arrays.equals("backend", "megatron"), arrays.ints("cp"), 1)
    return setting.data_parallel(arrays) * context


def _zero_alone_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    alone = (arrays.ints("zero_stage") > 0) & (_sharding_ranks(arrays, setting) == 1)
    # ZeRO-Offload on one GPU is common: there the stage decides what goes to the host.
    return alone & arrays.equals("offload", "none")


def _replicas_break(arrays: PlanArrays, setting: Setting) -> BoolArray:
    replicas = arrays.ints("dp_replicate")
    data = _sharding_ranks(arrays, setting)
    megatron = arrays.equals("backend", "megatron")
    deepspeed = arrays.equals("backend", "deepspeed")
    least = np.where(megatron, 1, np.where(deepspeed, 3, 2))
    sharded = arrays.ints("zero_stage") >= least
    return (replicas > 1) & (~sharded | (data % replicas != 0) | (data <= replicas))


def _replicas_say(plan: ParallelPlan, setting: Setting) -> str:
    dp = plan.data_parallel(setting.cluster.num_gpus)
    return (
        "dp_replicate > 1 needs zero_stage 2 or 3 (deepspeed: 3, megatron: 1) and must divide the "
        "data-parallel degree, "
        f"leaving at least 2 ranks a shard group; got dp_replicate {plan.dp_replicate}, "
        f"zero_stage {plan.zero_stage}, data-parallel degree {dp}"
    )


def _shape_rule(
    rule_id: str, degree: str, size: str, name: str, backends: tuple[Backend, ...] = ALL
) -> Rule:
    """A degree that must divide a size of the model."""

    def breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
        shape = setting.workload.shape
        if shape is None:
            return np.zeros(len(arrays), dtype=np.bool_)
        return np.asarray(getattr(shape, size) % arrays.ints(degree) != 0)

    def says(plan: ParallelPlan, setting: Setting) -> str:
        number = getattr(_shape(setting), size)
        return (
            f"{degree} must divide {name} ({number}), got {getattr(plan, degree)}; "
            f"try {_divisors_text(number)}"
        )

    return Rule(
        id=rule_id,
        backends=backends,
        knobs=(degree,),
        breaks=breaks,
        says=says,
        summary=f"{degree} must divide {name}",
        source="heads and rows of a matrix are split whole over the ranks",
    )


def _shape(setting: Setting) -> ModelShape:
    shape = setting.workload.shape
    assert shape is not None, "a shape rule speaks only of a model with a shape"
    return shape


def _layers_break(arrays: PlanArrays, setting: Setting) -> BoolArray:
    shape = setting.workload.shape
    if shape is None:
        return np.zeros(len(arrays), dtype=np.bool_)
    return np.asarray(shape.num_layers % (arrays.ints("pp") * arrays.ints("vpp")) != 0)


def _layers_say(plan: ParallelPlan, setting: Setting) -> str:
    layers = _shape(setting).num_layers
    return (
        f"pp * vpp must divide the layers ({layers}), got {plan.pp} * {plan.vpp}; "
        f"make it one of {_divisors_text(layers)}"
    )


def _sequence_parallel_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    tp = arrays.ints("tp")
    return arrays.flags("sequence_parallel") & ((tp == 1) | (setting.workload.seq_len % tp != 0))


def _own_module_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    if setting.workload.shape is not None:
        return np.zeros(len(arrays), dtype=np.bool_)
    split = (arrays.ints("tp") > 1) | (arrays.ints("pp") > 1)
    recomputed = arrays.equals("backend", "deepspeed") & ~arrays.equals("recompute", "none")
    return split | recomputed | arrays.equals("backend", "megatron")


def _offload_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    if setting.cluster.gpu.device is Device.CUDA:
        return np.zeros(len(arrays), dtype=np.bool_)
    return ~arrays.equals("offload", "none")


GENERAL_RULES: tuple[Rule, ...] = (
    Rule(
        id="G-14",
        backends=ALL,
        knobs=("backend",),
        breaks=_missing_breaks,
        says=lambda plan, _: (
            f"backend {plan.backend} needs {_DISTRIBUTIONS[plan.backend]}, which is not "
            "installed; install it, name it under stack to plan for another machine, or use "
            "another backend"
        ),
        summary="the backend's framework must be installed, or named under stack",
        source="ours: nothing is tried that cannot start",
    ),
    Rule(
        id="G-02",
        backends=ALL,
        knobs=("tp", "pp", "cp"),
        breaks=_degrees_break,
        says=_degrees_say,
        summary="tp * pp * cp must divide the GPUs",
        source="ours: all leased GPUs are used",
    ),
    Rule(
        id="G-03",
        backends=ALL,
        knobs=("tp",),
        breaks=_tp_node_breaks,
        says=_tp_node_says,
        summary="tp must divide the GPUs of an NVLink domain (a node, unless told otherwise)",
        source="ours: tensor parallelism over the network is never the fastest",
    ),
    Rule(
        id="G-01",
        backends=ALL,
        knobs=("tp", "pp", "cp", "micro_batch"),
        breaks=_batch_breaks,
        says=_batch_says,
        summary="micro_batch * data-parallel degree must divide the global batch",
        source="ours: frameworks floor the accumulation and train on a smaller batch",
    ),
    Rule(
        id="G-05",
        backends=ALL,
        knobs=("precision",),
        breaks=_precision_breaks,
        says=_precision_says,
        summary="precision must be one that the GPU computes in",
        source="datasheets; bf16 needs SM 8.0, fp8 SM 8.9",
    ),
    Rule(
        id="G-08",
        backends=ALL,
        knobs=("zero_stage", "tp", "pp", "cp", "offload"),
        breaks=_zero_alone_breaks,
        says=lambda plan, setting: (
            f"zero_stage > 0 shards over data-parallel ranks and needs at least 2, got 1 "
            f"(tp {plan.tp} * pp {plan.pp} * cp {plan.cp} take all "
            f"{setting.cluster.num_gpus} GPUs); use zero_stage 0, the same layout"
        ),
        summary="zero_stage > 0 needs at least 2 data-parallel ranks, or offload",
        source="ours: with one rank every stage is the same layout as stage 0",
    ),
    Rule(
        id="G-09",
        backends=ALL,
        knobs=("dp_replicate", "zero_stage", "tp", "pp", "cp"),
        breaks=_replicas_break,
        says=_replicas_say,
        summary="dp_replicate > 1 needs sharded states and must divide the data-parallel ranks",
        source="torch/distributed/fsdp/_fully_shard/_fsdp_init.py; deepspeed/utils/groups.py",
    ),
    Rule(
        id="G-10",
        backends=ALL,
        knobs=("vpp", "pp"),
        breaks=lambda arrays, _: (arrays.ints("vpp") > 1) & (arrays.ints("pp") == 1),
        says=lambda plan, _: (
            f"vpp > 1 interleaves pipeline stages and needs pp > 1, got vpp {plan.vpp} with "
            "pp 1; use vpp 1"
        ),
        summary="vpp > 1 needs pp > 1",
        source="megatron/training/arguments.py (core_v0.16.1)",
    ),
    Rule(
        id="G-11",
        backends=ALL,
        knobs=("sequence_parallel", "tp"),
        breaks=_sequence_parallel_breaks,
        says=lambda plan, setting: (
            "sequence_parallel needs tp > 1 and tp must divide the sequence "
            f"({setting.workload.seq_len}), got tp {plan.tp}; use sequence_parallel false, or tp "
            f"{_divisors_text(gcd(setting.workload.seq_len, setting.cluster.gpus_per_node))}"
        ),
        summary="sequence_parallel needs tp > 1, and tp must divide the sequence",
        source="megatron/core/model_parallel_config.py; DTensor styles",
    ),
    Rule(
        id="G-12",
        backends=ALL,
        knobs=("offload",),
        breaks=_offload_breaks,
        says=lambda plan, _: (
            f"offload must be none where ranks compute on the CPU, got {plan.offload}: host "
            "memory is the device's memory"
        ),
        summary="offload needs a GPU",
        source="ours",
    ),
    Rule(
        id="G-13",
        backends=ALL,
        knobs=("tp", "pp", "recompute"),
        breaks=_own_module_breaks,
        says=lambda plan, setting: (
            f"a user's own module ({setting.workload.model.name}) must have tp 1, pp 1, a backend "
            "other than megatron, and recompute none with deepspeed: its layers are not known; got "
            f"{plan.label()}; give a config.json to split the model"
        ),
        summary="a user's own module is not split; not megatron, no recompute in deepspeed",
        source="ours: nothing is known of the module's layers",
    ),
    _shape_rule("S-01", "tp", "num_heads", "the attention heads"),
    _shape_rule(
        "S-02",
        "tp",
        "num_kv_heads",
        "the key-value heads",
        (Backend.PYTORCH, Backend.DEEPSPEED),
    ),
    _shape_rule(
        "S-03",
        "tp",
        "ffn",
        "the feed-forward size",
        (Backend.PYTORCH, Backend.DEEPSPEED),
    ),
    Rule(
        id="S-04",
        backends=(Backend.DEEPSPEED,),
        knobs=("pp", "vpp"),
        breaks=_layers_break,
        says=_layers_say,
        summary="pp * vpp must divide the layers",
        source="ours: equal stages; an uneven one sets the pace of all",
    ),
)
