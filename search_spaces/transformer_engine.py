"""What Megatron-Core does only with Transformer Engine: context parallelism and 8-bit products."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from search_spaces.rule import Rule, Setting
from tuner.cluster import Device
from tuner.model_shape import ModelShape
from tuner.plan import Backend, ParallelPlan
from tuner.plan_arrays import BoolArray, IntArray, PlanArrays

MEGATRON = (Backend.MEGATRON,)
_ENGINE = "transformer-engine"
_FP8_CAPABILITY = (8, 9)


def _has_engine(setting: Setting, versions: str = "") -> bool:
    return setting.cluster.gpu.device is Device.CUDA and setting.stack.has(_ENGINE, versions)


def _without_engine(setting: Setting) -> str:
    if setting.cluster.gpu.device is not Device.CUDA:
        return f"CUDA, got {setting.cluster.gpu.name}"
    version = setting.stack.versions.get(_ENGINE)
    return f"{_ENGINE}, got {version or 'none installed'}"


def _context_engine_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    return (arrays.ints("cp") > 1) & (not _has_engine(setting, ">=1.0"))


def _context_pieces_break(arrays: PlanArrays, setting: Setting) -> BoolArray:
    cp = arrays.ints("cp")
    return (cp > 1) & (setting.workload.seq_len % (2 * cp) != 0)


def _context_pieces_say(plan: ParallelPlan, setting: Setting) -> str:
    length = setting.workload.seq_len
    options = [str(cp) for cp in range(2, plan.cp) if length % (2 * cp) == 0]
    return (
        f"2 * cp must divide the sequence ({length}): a rank has an early and a late piece; got "
        f"cp {plan.cp}; try {', '.join(['1', *options])}"
    )


def _window(setting: Setting) -> int:
    """The sliding window that is shorter than the sequence; 0 = there is none."""
    shape = setting.workload.shape
    if shape is None or not shape.num_windowed_layers:
        return 0
    return shape.sliding_window if shape.sliding_window < setting.workload.seq_len else 0


def _context_window_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    return (arrays.ints("cp") > 1) & (_window(setting) > 0)


def _context_precision_breaks(arrays: PlanArrays, _: Setting) -> BoolArray:
    return (arrays.ints("cp") > 1) & arrays.equals("precision", "fp32")


def _fp8_engine_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    able = _has_engine(setting) and setting.cluster.gpu.compute_capability >= _FP8_CAPABILITY
    return arrays.equals("precision", "fp8") & (not able)


def _fp8_engine_says(plan: ParallelPlan, setting: Setting) -> str:
    gpu = setting.cluster.gpu
    if not _has_engine(setting):
        return f"fp8 with megatron needs {_without_engine(setting)}; install it, or use bf16"
    major, minor = gpu.compute_capability
    return f"fp8 needs compute capability 8.9, got {major}.{minor} ({gpu.name}); use bf16"


def _fp8_experts_break(arrays: PlanArrays, setting: Setting) -> BoolArray:
    shape = setting.workload.shape
    too_old = _has_engine(setting) and not _has_engine(setting, ">=1.11")
    has_experts = shape is not None and shape.experts is not None
    return arrays.equals("precision", "fp8") & (too_old and has_experts)


def _fp8_sizes(shape: ModelShape, tp: IntArray, expert_tp: IntArray) -> Mapping[str, IntArray]:
    """Rows and columns of one rank's matrices that are multiplied in 8 bits."""
    kv_heads = np.maximum(1, shape.num_kv_heads // tp)
    heads = shape.num_heads // tp
    sizes = {
        "hidden": np.full_like(tp, shape.hidden),
        "attention heads / tp * head size": heads * shape.head_dim,
        "query, key and value heads / tp * head size": (heads + 2 * kv_heads) * shape.head_dim,
    }
    experts = shape.experts
    if experts is None:
        return sizes | {"feed-forward size / tp": shape.ffn // tp}
    sizes |= {"expert size / its tp": experts.ffn // expert_tp}
    if experts.shared_ffn:
        sizes |= {"shared expert size / tp": experts.shared_ffn // tp}
    return sizes


def _plan_fp8_sizes(arrays: PlanArrays, shape: ModelShape) -> Mapping[str, IntArray]:
    tp = arrays.ints("tp")
    return _fp8_sizes(shape, tp, np.where(arrays.ints("ep") == 1, tp, 1))


def _fp8_sizes_break(arrays: PlanArrays, setting: Setting) -> BoolArray:
    shape = setting.workload.shape
    uneven = np.zeros(len(arrays), dtype=np.bool_)
    if shape is None:
        return uneven
    for size in _plan_fp8_sizes(arrays, shape).values():
        uneven |= size % 16 != 0
    return arrays.equals("precision", "fp8") & uneven


def _fp8_sizes_say(plan: ParallelPlan, setting: Setting) -> str:
    shape = setting.workload.shape
    assert shape is not None, "the rule speaks only of a model with a shape"
    sizes = _plan_fp8_sizes(PlanArrays.of_plans([plan]), shape)
    wrong = [f"{name} {int(size[0])}" for name, size in sizes.items() if size[0] % 16]
    return (
        "fp8 needs every matrix of a rank to have rows and columns that are multiples of 16, got "
        f"{', '.join(wrong)} with tp {plan.tp}; use less tp, or bf16"
    )


def _fp8_tokens(arrays: PlanArrays, setting: Setting) -> IntArray:
    """Tokens of one rank in a micro-batch."""
    pieces = arrays.ints("cp") * np.where(arrays.flags("sequence_parallel"), arrays.ints("tp"), 1)
    return arrays.ints("micro_batch") * setting.workload.seq_len // pieces


def _fp8_tokens_break(arrays: PlanArrays, setting: Setting) -> BoolArray:
    return arrays.equals("precision", "fp8") & (_fp8_tokens(arrays, setting) % 8 != 0)


def _fp8_tokens_say(plan: ParallelPlan, setting: Setting) -> str:
    tokens = int(_fp8_tokens(PlanArrays.of_plans([plan]), setting)[0])
    return (
        f"fp8 needs the tokens of a rank in a micro-batch to be a multiple of 8, got {tokens}; "
        "use a larger micro_batch, less cp or tp, or bf16"
    )


TRANSFORMER_ENGINE_RULES: tuple[Rule, ...] = (
    Rule(
        id="MC-18",
        backends=MEGATRON,
        knobs=("cp",),
        breaks=_context_engine_breaks,
        says=lambda plan, setting: (
            f"cp > 1 with megatron needs {_without_engine(setting)} (1.0 or later), for cp "
            f"{plan.cp}; install it, or use cp 1"
        ),
        summary="cp > 1 with megatron needs CUDA and transformer-engine",
        source="megatron/core/transformer/dot_product_attention.py; extensions/transformer_engine",
    ),
    Rule(
        id="MC-18a",
        backends=MEGATRON,
        knobs=("cp",),
        breaks=_context_pieces_break,
        says=_context_pieces_say,
        summary="2 * cp must divide the sequence with megatron",
        source="megatron/training/arguments.py (core_v0.16.1); megatron/core/utils.py",
    ),
    Rule(
        id="TE-08",
        backends=MEGATRON,
        knobs=("cp",),
        breaks=_context_window_breaks,
        says=lambda plan, setting: (
            f"cp must be 1 with a sliding window ({_window(setting)}) within the sequence "
            f"({setting.workload.seq_len}), got {plan.cp}; use cp 1"
        ),
        summary="cp must be 1 with a sliding window within the sequence, for megatron",
        source="transformer_engine/pytorch/attention: cp_comm_type p2p has no window",
    ),
    Rule(
        id="TE-08a",
        backends=MEGATRON,
        knobs=("cp", "precision"),
        breaks=_context_precision_breaks,
        says=lambda plan, _: (
            f"cp > 1 needs fused attention, which computes in 16 bits, got cp {plan.cp} in "
            f"{plan.precision}; use bf16, or cp 1"
        ),
        summary="cp > 1 needs a precision of 16 bits or less, for megatron",
        source="transformer_engine/pytorch/attention: neither fused nor flash attention has fp32",
    ),
    Rule(
        id="TE-01",
        backends=MEGATRON,
        knobs=("precision",),
        breaks=_fp8_engine_breaks,
        says=_fp8_engine_says,
        summary="fp8 with megatron needs transformer-engine and compute capability 8.9",
        source="transformer_engine/pytorch/quantization.py check_fp8_support",
    ),
    Rule(
        id="MC-52",
        backends=MEGATRON,
        knobs=("precision",),
        breaks=_fp8_experts_break,
        says=lambda _, setting: (
            "fp8 with experts needs transformer-engine 1.11 (grouped products), got "
            f"{setting.stack.versions.get(_ENGINE)}; install a later one, or use bf16"
        ),
        summary="fp8 with experts needs transformer-engine 1.11",
        source="megatron/core/transformer/transformer_config.py",
    ),
    Rule(
        id="TE-05",
        backends=MEGATRON,
        knobs=("precision", "tp", "ep"),
        breaks=_fp8_sizes_break,
        says=_fp8_sizes_say,
        summary="fp8 needs a rank's matrices to have rows and columns that are multiples of 16",
        source="transformer_engine/pytorch/utils.py assert_dim_for_fp8_exec",
    ),
    Rule(
        id="TE-05a",
        backends=MEGATRON,
        knobs=("precision", "tp", "cp", "micro_batch", "sequence_parallel"),
        breaks=_fp8_tokens_break,
        says=_fp8_tokens_say,
        summary="fp8 needs a rank's tokens in a micro-batch to be a multiple of 8",
        source="transformer_engine/pytorch/utils.py assert_dim_for_fp8_exec",
    ),
)
