"""What PyTorch's own parallelism cannot do, or not together."""

from __future__ import annotations

import numpy as np

from search_spaces.pinned import simple_rule
from search_spaces.rule import Rule, Setting
from tuner.plan import Backend
from tuner.plan_arrays import BoolArray, PlanArrays

_TP_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def _tp_family_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    shape = setting.workload.shape
    split = (arrays.ints("tp") > 1) | (arrays.ints("pp") > 1)
    return split if shape is not None and shape.family not in _TP_FAMILIES else split & False


def _tied_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    shape = setting.workload.shape
    tied = shape is not None and shape.tied_embeddings
    return np.asarray((arrays.ints("pp") > 1) & tied)


def _schedule_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    pp, vpp = arrays.ints("pp"), arrays.ints("vpp")
    microbatches = setting.num_microbatches(arrays)
    plain = (vpp == 1) & (microbatches < pp)
    rounds = np.maximum(1, microbatches // pp)
    interleaved = (vpp > 1) & ((microbatches % rounds != 0) | (microbatches < pp))
    return (pp > 1) & (plain | interleaved)


PYTORCH_RULES: tuple[Rule, ...] = (
    simple_rule(
        "PT-10",
        Backend.PYTORCH,
        ("cp", "ep"),
        lambda arrays, _: (arrays.ints("cp") > 1) | (arrays.ints("ep") > 1),
        "context and expert parallelism are not carried out by the pytorch backend yet: cp and "
        "ep must be 1",
        "ours",
    ),
    simple_rule(
        "PT-11",
        Backend.PYTORCH,
        ("precision",),
        lambda arrays, _: arrays.equals("precision", "fp8"),
        "precision must be fp32, fp16 or bf16 with the pytorch backend",
        "ours: fp8 needs torchao",
    ),
    simple_rule(
        "PT-12",
        Backend.PYTORCH,
        ("tp", "pp"),
        _tp_family_breaks,
        f"tp and pp must be 1 except for {', '.join(_TP_FAMILIES)} models",
        "ours: only these have separate query, key and value matrices and a known layer list",
    ),
    simple_rule(
        "PT-13",
        Backend.PYTORCH,
        ("pp",),
        _tied_breaks,
        "pp must be 1 for a model with tied embeddings, which the first and last stage would share",
        "torch.distributed.pipelining does not reduce shared parameters",
    ),
    simple_rule(
        "PT-14",
        Backend.PYTORCH,
        ("offload", "zero_stage"),
        lambda arrays, _: (
            arrays.equals("offload", "optimizer")
            | (arrays.equals("offload", "params") & (arrays.ints("zero_stage") < 2))
        ),
        "offload must be none, or params with zero_stage 2 or 3: FSDP2 offloads parameters, "
        "gradients and optimizer states together",
        "torch/distributed/fsdp/_fully_shard/_fsdp_api.py (CPUOffloadPolicy)",
    ),
    simple_rule(
        "PT-15",
        Backend.PYTORCH,
        ("zero_stage", "tp", "pp"),
        lambda arrays, _: (
            (arrays.ints("zero_stage") == 1) & ((arrays.ints("tp") > 1) | (arrays.ints("pp") > 1))
        ),
        "zero_stage 1 needs tp 1 and pp 1; with them use stage 2, which shards the same states",
        "ours: ZeroRedundancyOptimizer goes with DDP, which knows neither DTensors nor stages",
    ),
    simple_rule(
        "PT-01",
        Backend.PYTORCH,
        ("pp", "vpp", "tp", "cp", "micro_batch"),
        _schedule_breaks,
        "the micro-batches of a step must be at least pp, and with vpp > 1 go round evenly",
        "torch/distributed/pipelining/schedules.py (Schedule1F1B, ScheduleInterleaved1F1B)",
    ),
)
