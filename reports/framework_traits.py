"""What a plan asks of the user's own code, and what its framework lacks here; pure.

What a plan asks is how the framework is used by anyone, as our launch programs do; it is not
measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from tuner.plan import Backend, Offload, ParallelPlan, Recompute

_OWN_RULES = {
    Backend.PYTORCH: ("PT-", "F2-"),
    Backend.DEEPSPEED: ("DS-",),
    Backend.MEGATRON: ("MC-", "TE-"),
}
"""How the ids of rules that bind one framework alone begin: docs/rules.md."""


def code_demands(plan: ParallelPlan) -> tuple[str, ...]:
    """What the user's training program must do for this plan, a sentence each."""
    match plan.backend:
        case Backend.PYTORCH:
            return _pytorch_demands(plan)
        case Backend.DEEPSPEED:
            return _deepspeed_demands(plan)
        case Backend.MEGATRON:
            return _megatron_demands(plan)
    assert_never(plan.backend)


def lost_features(backend: Backend, waterfall: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Rule and sentence of what this framework alone refused of the options asked for here.

    Those that removed most first.
    """
    own = [
        removal
        for removal in waterfall["removed"]
        if removal["removed"] and str(removal["rule"]).startswith(_OWN_RULES[backend])
    ]
    own.sort(key=lambda removal: -removal["removed"])
    return tuple((str(removal["rule"]), str(removal["sentence"])) for removal in own)


def _pytorch_demands(plan: ParallelPlan) -> tuple[str, ...]:
    demands = []
    if plan.zero_stage >= 2:
        demands.append("call fully_shard on every layer and on the model")
    elif plan.zero_stage == 1:
        demands.append("wrap the model in DistributedDataParallel")
        demands.append("wrap the optimizer in ZeroRedundancyOptimizer")
    else:
        demands.append("wrap the model in DistributedDataParallel")
    if plan.tp > 1:
        demands.append("name how each matrix of a layer is split (parallelize_module)")
    if plan.pp > 1:
        demands.append("cut the model into stages and step a pipeline schedule")
    if plan.recompute is not Recompute.NONE:
        demands.append("wrap what is recomputed in torch.utils.checkpoint")
    if plan.offload is not Offload.NONE:
        demands.append("give fully_shard a CPUOffloadPolicy")
    return tuple(demands)


def _deepspeed_demands(plan: ParallelPlan) -> tuple[str, ...]:
    if plan.pp > 1:
        demands = [
            "write the model as a PipelineModule, a list of layers",
            "train with engine.train_batch, fed by an iterator",
        ]
    else:
        demands = [
            "pass the model through deepspeed.initialize",
            "call engine.backward and engine.step",
        ]
    if plan.recompute is not Recompute.NONE:
        demands.append("turn on the model's own gradient checkpointing")
    return tuple(demands)


def _megatron_demands(plan: ParallelPlan) -> tuple[str, ...]:
    demands = [
        "build the model of Megatron-Core's layers, or launch Megatron-LM's pretrain_gpt.py",
        "convert Hugging Face checkpoints, both ways",
    ]
    if plan.pp > 1:
        demands.append("write the forward step that its pipeline schedules call")
    return tuple(demands)
