"""Which models DeepSpeed's AutoTP and PipelineModule can split as the bench drives them."""

from __future__ import annotations

import numpy as np

from search_spaces.rule import Rule, Setting
from tuner.model_shape import ModelShape
from tuner.plan import Backend, ParallelPlan
from tuner.plan_arrays import BoolArray, PlanArrays

SPLIT_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Hugging Face model types whose layers AutoTP was seen to split (tp)."""
STAGED_FAMILIES = ("llama", "qwen2", "qwen3")
"""Those that the bench can write as a list of layers (pp)."""


def _shape(setting: Setting) -> ModelShape:
    shape = setting.workload.shape
    assert shape is not None, "a model rule speaks only of a model with a shape"
    return shape


def _breaks_if(arrays: PlanArrays, degree: str, *, unfit: bool) -> BoolArray:
    return np.asarray((arrays.ints(degree) > 1) & unfit)


def _unsplit_family_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    shape = setting.workload.shape  # None: a user's own module, which rule G-13 speaks of
    return _breaks_if(arrays, "tp", unfit=shape is not None and shape.family not in SPLIT_FAMILIES)


def _unstaged_family_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    shape = setting.workload.shape
    return _breaks_if(arrays, "pp", unfit=shape is not None and shape.family not in STAGED_FAMILIES)


def _tied_breaks(degree: str, arrays: PlanArrays, setting: Setting) -> BoolArray:
    shape = setting.workload.shape
    return _breaks_if(arrays, degree, unfit=shape is not None and shape.tied_embeddings)


def _window_breaks(arrays: PlanArrays, setting: Setting) -> BoolArray:
    shape = setting.workload.shape
    cut = shape is not None and 0 < shape.sliding_window < setting.workload.seq_len
    return _breaks_if(arrays, "pp", unfit=cut)


def _family_says(plan: ParallelPlan, setting: Setting, degree: str, known: tuple[str, ...]) -> str:
    return (
        f"{degree} > 1 with DeepSpeed needs a model of {', '.join(known)}, got "
        f"{_shape(setting).family} with {degree} {getattr(plan, degree)}; use {degree} 1, with "
        "zero_stage 3 to shard the model"
    )


def _tied_says(plan: ParallelPlan, setting: Setting, degree: str, why: str) -> str:
    return (
        f"{degree} > 1 with DeepSpeed needs a model without tied embeddings, got "
        f"tie_word_embeddings true ({setting.workload.model.name}) with {degree} "
        f"{getattr(plan, degree)}: {why}; use {degree} 1, with zero_stage 3 to shard the model"
    )


DEEPSPEED_MODEL_RULES: tuple[Rule, ...] = (
    Rule(
        id="DS-61",
        backends=(Backend.DEEPSPEED,),
        knobs=("pp",),
        breaks=_unstaged_family_breaks,
        says=lambda plan, setting: _family_says(plan, setting, "pp", STAGED_FAMILIES),
        summary=f"pp must be 1 except for {', '.join(STAGED_FAMILIES)} models",
        source="ours: the pipeline module is a list of these models' layers",
    ),
    Rule(
        id="DS-62",
        backends=(Backend.DEEPSPEED,),
        knobs=("pp",),
        breaks=lambda arrays, setting: _tied_breaks("pp", arrays, setting),
        says=lambda plan, setting: _tied_says(
            plan, setting, "pp", "the first and the last stage would each train their own"
        ),
        summary="pp must be 1 for a model with tied embeddings",
        source="ours: a LayerSpec a part; only TiedLayerSpec (runtime/pipe/module.py) ties them",
    ),
    Rule(
        id="DS-72",
        backends=(Backend.DEEPSPEED,),
        knobs=("pp",),
        breaks=_window_breaks,
        says=lambda plan, setting: (
            "pp > 1 needs sequences within the model's sliding window "
            f"({_shape(setting).sliding_window} tokens), got {setting.workload.seq_len} tokens "
            f"with pp {plan.pp}: layers of a stage get no window mask; use pp 1, or seq_len "
            f"{_shape(setting).sliding_window}"
        ),
        summary="pp must be 1 for sequences longer than the model's sliding window",
        source="ours: a pipeline layer is given hidden states only, so its mask is causal",
    ),
    Rule(
        id="DS-63",
        backends=(Backend.DEEPSPEED,),
        knobs=("tp",),
        breaks=_unsplit_family_breaks,
        says=lambda plan, setting: _family_says(plan, setting, "tp", SPLIT_FAMILIES),
        summary=f"tp must be 1 except for {', '.join(SPLIT_FAMILIES)} models",
        source="ours: AutoTP was tried with these only",
    ),
    Rule(
        id="DS-64",
        backends=(Backend.DEEPSPEED,),
        knobs=("tp",),
        breaks=lambda arrays, setting: _tied_breaks("tp", arrays, setting),
        says=lambda plan, setting: _tied_says(
            plan, setting, "tp", "AutoTP leaves a tied head's logits split by vocabulary"
        ),
        summary="tp must be 1 for a model with tied embeddings",
        source="ours: module_inject/auto_tp.py splits a tied head by vocabulary, ungathered",
    ),
)
"""About models; what a model's sizes must divide by is in the general rules S-01 to S-04."""
