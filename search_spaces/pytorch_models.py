"""Which models PyTorch's own tensor and pipeline parallelism can split, and how far."""

from __future__ import annotations

import numpy as np

from search_spaces.rule import Rule, Setting
from tuner.model_shape import ModelShape
from tuner.plan import Backend, ParallelPlan
from tuner.plan_arrays import BoolArray, PlanArrays

_PYTORCH = (Backend.PYTORCH,)
TP_FAMILIES = (
    "arcee",
    "ernie4_5",
    "llama",
    "mistral",
    "nemotron",
    "olmo",
    "qwen2",
    "qwen3",
    "smollm3",
    "starcoder2",
)
"""Model types whose matrices are split: they train under tp as one rank does (tried)."""
PP_FAMILIES = (
    *TP_FAMILIES,
    "deepseek_v2",
    "deepseek_v3",
    "glm4",
    "glm4_moe",
    "mixtral",
    "olmoe",
    "phi3",
    "qwen2_moe",
    "qwen3_moe",
)
"""Model types whose layers are dealt out to stages: they train under pp as one rank does."""


def _shape(setting: Setting) -> ModelShape:
    shape = setting.workload.shape
    assert shape is not None, "these rules speak only of a model with a shape"
    return shape


def _nowhere(arrays: PlanArrays) -> BoolArray:
    return np.zeros(len(arrays), dtype=np.bool_)


def _family_rule(rule_id: str, degree: str, families: tuple[str, ...], why: str) -> Rule:
    """A degree that must be 1 except for these model types."""

    def breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
        shape = setting.workload.shape
        if shape is None or shape.family in families:
            return _nowhere(arrays)
        return np.asarray(arrays.ints(degree) > 1)

    def says(plan: ParallelPlan, setting: Setting) -> str:
        other = "pp" if degree == "tp" and _shape(setting).family in PP_FAMILIES else "zero_stage 3"
        return (
            f"{degree} must be 1 except for {', '.join(families)} models, got {degree} "
            f"{getattr(plan, degree)} for a {_shape(setting).family} model: {why}; use {degree} 1 "
            f"and split it by {other}"
        )

    return Rule(
        id=rule_id,
        backends=_PYTORCH,
        knobs=(degree,),
        breaks=breaks,
        says=says,
        summary=f"{degree} must be 1 except for {', '.join(families)} models",
        source=f"ours: {why}",
    )


def _tied_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    shape = setting.workload.shape
    if shape is None or not shape.tied_embeddings:
        return _nowhere(arrays)
    return np.asarray(arrays.ints("pp") > 1)


def _window_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    shape = setting.workload.shape
    if shape is None or not 0 < shape.sliding_window < setting.workload.seq_len:
        return _nowhere(arrays)
    return np.asarray((arrays.ints("tp") > 1) | (arrays.ints("pp") > 1))


def _window_says(plan: ParallelPlan, setting: Setting) -> str:
    window = _shape(setting).sliding_window
    return (
        f"seq_len must be within the model's sliding window ({window}) for tp or pp, got "
        f"{setting.workload.seq_len} with tp {plan.tp} and pp {plan.pp}: a stage makes no window "
        f"mask; use tp 1 and pp 1, or a seq_len of at most {window}"
    )


def _stages_break(arrays: PlanArrays, setting: Setting) -> BoolArray:
    shape = setting.workload.shape
    if shape is None:
        return _nowhere(arrays)
    return np.asarray(arrays.ints("pp") * arrays.ints("vpp") > shape.num_layers)


def _stages_say(plan: ParallelPlan, setting: Setting) -> str:
    layers = _shape(setting).num_layers
    most = f"vpp {layers // plan.pp}" if plan.pp <= layers else f"pp {layers}"
    return (
        f"pp * vpp must be at most the layers ({layers}), got {plan.pp} * {plan.vpp} = "
        f"{plan.pp * plan.vpp}: every stage has a layer; use {most} or less"
    )


PYTORCH_MODEL_RULES: tuple[Rule, ...] = (
    _family_rule(
        "PT-12", "tp", TP_FAMILIES, "only of these is known how every matrix of a layer is split"
    ),
    _family_rule(
        "PT-17", "pp", PP_FAMILIES, "only of these is known what stands around the layers"
    ),
    Rule(
        id="PT-13",
        backends=_PYTORCH,
        knobs=("pp",),
        breaks=_tied_breaks,
        says=lambda plan, _: (
            f"pp must be 1 for a model with tied embeddings, got {plan.pp}: the first and the last "
            "stage would each train their own copy; use pp 1, or untie (tie_word_embeddings: "
            "false) which is another model"
        ),
        summary="pp must be 1 for a model with tied embeddings",
        source="torch/distributed/pipelining: no reduction of parameters that stages share",
    ),
    Rule(
        id="PT-18",
        backends=_PYTORCH,
        knobs=("tp", "pp"),
        breaks=_window_breaks,
        says=_window_says,
        summary="a sequence longer than the model's sliding window needs tp 1 and pp 1",
        source="ours: runners/bench/pytorch_stage.py attends causally, without a mask",
    ),
    Rule(
        id="PT-19",
        backends=_PYTORCH,
        knobs=("pp", "vpp"),
        breaks=_stages_break,
        says=_stages_say,
        summary="pp * vpp must be at most the layers; stages may be uneven",
        source="ours: runners/bench/pytorch_stage.py; a stage without layers has nothing to do",
    ),
)
