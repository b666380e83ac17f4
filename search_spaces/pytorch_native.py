"""What PyTorch's own parallelism cannot do, or not together; the models are in their own file."""

from __future__ import annotations

import numpy as np

from search_spaces.pytorch_models import PYTORCH_MODEL_RULES
from search_spaces.rule import Rule, Setting
from tuner.plan import Backend, Offload, ParallelPlan
from tuner.plan_arrays import BoolArray, PlanArrays

_PYTORCH = (Backend.PYTORCH,)
_TORCH = ">=2.9"
"""FSDP2, its replicate and the pipeline schedules as the bench uses them; tried with 2.13.0."""
_SCHEDULES = "torch/distributed/pipelining/schedules.py"


def _torch_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    return np.full(len(arrays), not setting.stack.has("torch", _TORCH))


def _torch_says(_: ParallelPlan, setting: Setting) -> str:
    got = setting.stack.versions.get("torch", "none")
    return (
        f"the stack must have torch{_TORCH} for the pytorch backend, got {got}; install it, or "
        "leave pytorch out of search.backend"
    )


def _too_few_break(arrays: PlanArrays, setting: Setting) -> BoolArray:
    pp = arrays.ints("pp")
    plain = (pp > 1) & (arrays.ints("vpp") == 1)
    return plain & (setting.num_microbatches(arrays) < pp)


def _too_few_say(plan: ParallelPlan, setting: Setting) -> str:
    legal = [n for n in _micro_batches(plan, setting) if _count(n, plan, setting) >= plan.pp]
    return (
        f"the micro-batches of a step must be at least pp ({plan.pp}) in the 1F1B schedule, got "
        f"{_got_text(plan, setting)}; "
        + _advice(legal, f"use pp {_count(1, plan, setting)} or less, or a larger global batch")
    )


def _uneven_rounds_break(arrays: PlanArrays, setting: Setting) -> BoolArray:
    pp = arrays.ints("pp")
    interleaved = (pp > 1) & (arrays.ints("vpp") > 1)
    number = setting.num_microbatches(arrays)
    return interleaved & (number % np.maximum(1, number // pp) != 0)


def _uneven_rounds_say(plan: ParallelPlan, setting: Setting) -> str:
    legal = [
        n
        for n in _micro_batches(plan, setting)
        if not _count(n, plan, setting) % max(1, _count(n, plan, setting) // plan.pp)
    ]
    number = _count(plan.micro_batch, plan, setting)
    return (
        f"with vpp > 1 the rounds (micro-batches // pp = {number} // {plan.pp} = "
        f"{number // plan.pp}) must divide the micro-batches of a step, got "
        f"{_got_text(plan, setting)}; " + _advice(legal, "use vpp 1")
    )


def _micro_batches(plan: ParallelPlan, setting: Setting) -> list[int]:
    """Micro-batches that divide a data-parallel rank's share of the global batch."""
    share = _share(plan, setting)
    return [n for n in range(1, share + 1) if share % n == 0]


def _share(plan: ParallelPlan, setting: Setting) -> int:
    ranks = max(1, plan.data_parallel(setting.cluster.num_gpus))
    return setting.workload.global_batch_sequences // ranks


def _count(micro_batch: int, plan: ParallelPlan, setting: Setting) -> int:
    return _share(plan, setting) // micro_batch


def _got_text(plan: ParallelPlan, setting: Setting) -> str:
    return (
        f"{_count(plan.micro_batch, plan, setting)} ({_share(plan, setting)} sequences a rank in "
        f"micro-batches of {plan.micro_batch})"
    )


def _advice(micro_batches: list[int], otherwise: str) -> str:
    if not micro_batches:
        return otherwise
    return f"make micro_batch one of {', '.join(str(n) for n in micro_batches[-8:])}"


def _offload_breaks(arrays: PlanArrays, _: Setting) -> BoolArray:
    parameters = arrays.equals("offload", str(Offload.PARAMS))
    sharded = arrays.ints("zero_stage") >= 2
    return ~arrays.equals("offload", str(Offload.NONE)) & ~(parameters & sharded)


def _offload_says(plan: ParallelPlan, _: Setting) -> str:
    return (
        "offload must be none, or params with zero_stage 2 or 3, as FSDP2 moves parameters, "
        f"gradients and optimizer states together, got offload {plan.offload} with zero_stage "
        f"{plan.zero_stage}; use offload none, or offload params with zero_stage 3"
    )


def _stage_one_breaks(arrays: PlanArrays, _: Setting) -> BoolArray:
    split = (arrays.ints("tp") > 1) | (arrays.ints("pp") > 1)
    return (arrays.ints("zero_stage") == 1) & split


PYTORCH_RULES: tuple[Rule, ...] = (
    Rule(
        id="PT-09",
        backends=_PYTORCH,
        knobs=("backend",),
        breaks=_torch_breaks,
        says=_torch_says,
        summary=f"the stack must have torch{_TORCH}",
        source="pyproject.toml; tried with 2.13.0",
    ),
    Rule(
        id="PT-10",
        backends=_PYTORCH,
        knobs=("cp",),
        breaks=lambda arrays, _: arrays.ints("cp") > 1,
        says=lambda plan, _: (
            f"cp must be 1 with the pytorch backend, got {plan.cp}: its attention is not split "
            "over the sequence; use megatron for cp > 1"
        ),
        summary="cp must be 1",
        source="ours: the bench does not carry out context parallelism",
    ),
    Rule(
        id="PT-16",
        backends=_PYTORCH,
        knobs=("ep",),
        breaks=lambda arrays, _: arrays.ints("ep") > 1,
        says=lambda plan, _: (
            f"ep must be 1 with the pytorch backend, got {plan.ep}: experts are sharded like "
            "other parameters (zero_stage 3), not dealt out; use megatron for ep > 1"
        ),
        summary="ep must be 1",
        source="ours: the bench does not carry out expert parallelism",
    ),
    Rule(
        id="PT-11",
        backends=_PYTORCH,
        knobs=("precision",),
        breaks=lambda arrays, _: arrays.equals("precision", "fp8"),
        says=lambda plan, _: (
            f"precision must be fp32, fp16 or bf16 with the pytorch backend, got "
            f"{plan.precision}: torch's float8 training is torchao's; use bf16"
        ),
        summary="precision must be fp32, fp16 or bf16",
        source="ours: fp8 needs torchao, which the bench does not use",
    ),
    *PYTORCH_MODEL_RULES,
    Rule(
        id="PT-14",
        backends=_PYTORCH,
        knobs=("offload", "zero_stage"),
        breaks=_offload_breaks,
        says=_offload_says,
        summary="offload must be none, or params with zero_stage 2 or 3",
        source="torch/distributed/fsdp/_fully_shard/_fsdp_api.py (CPUOffloadPolicy)",
    ),
    Rule(
        id="PT-15",
        backends=_PYTORCH,
        knobs=("zero_stage", "tp", "pp"),
        breaks=_stage_one_breaks,
        says=lambda plan, _: (
            f"zero_stage 1 needs tp 1 and pp 1, got tp {plan.tp} and pp {plan.pp}: "
            "ZeroRedundancyOptimizer goes with DDP, which knows neither DTensors nor stages; use "
            "zero_stage 2, which shards the same states and the gradients"
        ),
        summary="zero_stage 1 needs tp 1 and pp 1",
        source="torch/distributed/optim/zero_redundancy_optimizer.py: one group for all parameters",
    ),
    Rule(
        id="PT-01",
        backends=_PYTORCH,
        knobs=("pp", "vpp", "tp", "cp", "micro_batch"),
        breaks=_too_few_break,
        says=_too_few_say,
        summary="the micro-batches of a step must be at least pp (1F1B)",
        source=f"{_SCHEDULES} (Schedule1F1B)",
    ),
    Rule(
        id="PT-02",
        backends=_PYTORCH,
        knobs=("pp", "vpp", "tp", "cp", "micro_batch"),
        breaks=_uneven_rounds_break,
        says=_uneven_rounds_say,
        summary="with vpp > 1, max(1, micro-batches // pp) must divide the micro-batches of a step",
        source=f"{_SCHEDULES} (ScheduleInterleaved1F1B)",
    ),
)
