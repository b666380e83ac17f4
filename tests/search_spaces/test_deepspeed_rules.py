"""DeepSpeed's rules: each refuses alone, says its numbers, and its advice is legal."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from search_spaces.deepspeed_zero import DEEPSPEED_RULES
from search_spaces.enumeration import rejections, search_space
from search_spaces.rule import Setting
from tests.tiny_job import CPU_STACK, setting, tiny_workload
from tuner.cluster import Cluster, Device, Gpu
from tuner.plan import ParallelPlan
from tuner.stack import Stack
from tuner.workload import FactoryModel, HfModel, Workload

PAGE = Path(__file__).parents[2] / "docs" / "rules-deepspeed.md"


def gpu(**changes: Any) -> Gpu:
    """An accelerator that computes in everything."""
    return dataclasses.replace(
        Gpu(
            name="any-gpu",
            device=Device.CUDA,
            memory_bytes=2**36,
            flops_per_s={"fp32": 1e14, "fp16": 1e15, "bf16": 1e15, "fp8": 2e15},
            memory_bytes_per_s=3e12,
            link_bytes_per_s=4e11,
            compute_capability=(9, 0),
        ),
        **changes,
    )


def gpus(num_gpus: int = 8, **changes: Any) -> Cluster:
    return Cluster(gpu=gpu(**changes), gpus_per_node=num_gpus)


def windowed(tokens: int) -> Workload:
    """Sequences of 32 tokens, each of which sees this many back."""
    workload = tiny_workload()
    assert isinstance(workload.model, HfModel)
    shape = dataclasses.replace(workload.model.shape, sliding_window=tokens)
    return dataclasses.replace(workload, model=dataclasses.replace(workload.model, shape=shape))


def plan(**knobs: Any) -> ParallelPlan:
    return ParallelPlan.from_dict({"backend": "deepspeed", "precision": "fp32", **knobs})


LLAMA = tiny_workload()
TIED = tiny_workload(tie_word_embeddings=True)
GPT2 = tiny_workload(model_type="gpt2")
MISTRAL = tiny_workload(model_type="mistral")
OLD = Stack(versions={**CPU_STACK.versions, "deepspeed": "0.19.3"})
EIGHT = setting(LLAMA, gpus())

REFUSED: list[tuple[str, Setting, dict[str, Any], list[str], dict[str, Any]]] = [
    # rule, setting, knobs, what the sentence must hold, what the sentence advises
    (
        "DS-11",
        setting(
            LLAMA,
            gpus(name="p100", compute_capability=(6, 0), flops_per_s={"fp32": 1e13, "fp16": 2e13}),
        ),
        {"precision": "fp16"},
        ["7.0", "p100 with 6.0", "fp32"],
        {"precision": "fp32"},
    ),
    (
        "DS-20",
        EIGHT,
        {"pp": 2, "zero_stage": 3},
        ["0 or 1", "zero_stage 3 with pp 2", "use zero_stage 1"],
        {"zero_stage": 1},
    ),
    ("DS-24", EIGHT, {"pp": 4, "tp": 2}, ["tp 2 and pp 4", "tp 2 with pp 1"], {"pp": 1}),
    (
        "DS-35",
        EIGHT,
        {"offload": "params", "zero_stage": 2},
        ["zero_stage 3", "got zero_stage 2", "offload optimizer"],
        {"offload": "optimizer"},
    ),
    (
        "DS-35",
        EIGHT,
        {"offload": "params"},
        ["got zero_stage 0", "offload none"],
        {"offload": "none"},
    ),
    (
        "DS-43",
        EIGHT,
        {"dp_replicate": 2, "tp": 2, "zero_stage": 3},
        ["dp_replicate 2 and tp 2"],
        {"dp_replicate": 1},
    ),
    (
        "DS-50",
        setting(LLAMA, gpus(), OLD),
        {"tp": 2, "zero_stage": 3},
        ["0.19.4", "deepspeed 0.19.3", "tp 2"],
        {"zero_stage": 2},
    ),
    ("DS-60", EIGHT, {"vpp": 2, "pp": 2}, ["vpp must be 1", "got vpp 2"], {"vpp": 1}),
    (
        "DS-61",
        setting(MISTRAL, gpus()),
        {"pp": 2},
        ["llama, qwen2, qwen3", "mistral with pp 2", "zero_stage 3"],
        {"pp": 1, "zero_stage": 3},
    ),
    (
        "DS-62",
        setting(TIED, gpus()),
        {"pp": 2},
        ["tie_word_embeddings true", "pp 2"],
        {"pp": 1, "zero_stage": 3},
    ),
    (
        "DS-63",
        setting(GPT2, gpus()),
        {"tp": 2},
        ["llama, mistral, qwen2, qwen3", "gpt2 with tp 2"],
        {"tp": 1, "zero_stage": 3},
    ),
    (
        "DS-64",
        setting(TIED, gpus()),
        {"tp": 2},
        ["tie_word_embeddings true", "tp 2"],
        {"tp": 1, "zero_stage": 3},
    ),
    (
        "DS-65",
        EIGHT,
        {"pp": 2, "precision": "bf16"},
        ["pp 2 and 4 data-parallel ranks", "use zero_stage 1"],
        {"zero_stage": 1},
    ),
    ("DS-66", EIGHT, {"cp": 2}, ["got cp 2", "use cp 1"], {"cp": 1}),
    (
        "DS-68",
        EIGHT,
        {"sequence_parallel": True, "tp": 2},
        ["got true", "use false"],
        {"sequence_parallel": False},
    ),
    (
        "DS-69",
        EIGHT,
        {"precision": "fp8"},
        ["got fp8", "fp32 or fp16 or bf16"],
        {"precision": "bf16"},
    ),
    (
        "DS-70",
        EIGHT,
        {"offload": "optimizer", "pp": 2, "zero_stage": 1},
        ["got offload optimizer with pp 2", "pp 1 with zero_stage 3"],
        {"pp": 1, "zero_stage": 3},
    ),
    (
        "DS-71",
        EIGHT,
        {"offload": "optimizer"},
        ["1, 2 or 3", "got zero_stage 0", "use zero_stage 1"],
        {"zero_stage": 1},
    ),
    (
        "DS-72",
        setting(windowed(16), gpus()),
        {"pp": 2},
        ["16 tokens", "got 32 tokens with pp 2", "seq_len 16"],
        {"pp": 1},
    ),
]


@pytest.mark.parametrize(
    ("rule", "where", "knobs", "words", "advice"),
    REFUSED,
    ids=[f"{r} {k}" for r, _, k, _, _ in REFUSED],
)
def test_a_rule_refuses_alone_with_its_numbers_and_its_advice_is_legal(
    rule: str, where: Setting, knobs: dict[str, Any], words: list[str], advice: dict[str, Any]
) -> None:
    broken = dict(rejections(plan(**knobs), where))
    assert list(broken) == [rule], broken
    for word in words:
        assert word in broken[rule], broken[rule]
    assert rejections(plan(**(knobs | advice)), where) == ()


def test_every_rule_is_tried_above() -> None:
    # ep > 1 is asked of models with experts only, which breaks more than one rule here.
    assert {rule.id for rule in DEEPSPEED_RULES} == {rule for rule, *_ in REFUSED} | {"DS-67"}
    broken = dict(rejections(plan(ep=2), EIGHT))
    assert "got ep 2" in broken["DS-67"]


def test_the_stage_that_is_advised_for_a_pipeline_is_0_where_one_rank_holds_a_stage() -> None:
    broken = dict(rejections(plan(pp=2, zero_stage=2), setting(LLAMA, gpus(2))))
    assert "use zero_stage 0" in broken["DS-20"]


@pytest.mark.parametrize(
    ("where", "knobs"),
    [
        (setting(LLAMA, gpus(2)), {"pp": 2, "precision": "bf16"}),
        (EIGHT, {"pp": 2, "precision": "fp16"}),
        (EIGHT, {"tp": 2, "zero_stage": 3}),
        (EIGHT, {"zero_stage": 3, "dp_replicate": 2}),
        (EIGHT, {"zero_stage": 3, "offload": "params", "precision": "bf16"}),
        (setting(windowed(32), gpus()), {"pp": 2}),
        (setting(windowed(16), gpus()), {"tp": 2}),
        (setting(TIED, gpus()), {"zero_stage": 3, "precision": "bf16"}),
        (setting(LLAMA, gpus(compute_capability=(0, 0))), {"precision": "fp16"}),
        (setting(LLAMA, gpus(), OLD), {"tp": 2, "zero_stage": 2}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_is_near_a_rule_is_legal(where: Setting, knobs: dict[str, Any]) -> None:
    assert rejections(plan(**knobs), where) == ()


def test_a_users_own_module_is_left_to_the_general_rule() -> None:
    own = dataclasses.replace(LLAMA, model=FactoryModel(factory="package.module:make", vocab=64))
    for knobs in ({"tp": 2}, {"pp": 2}):
        assert set(dict(rejections(plan(**knobs), setting(own, gpus())))) == {"G-13"}
    assert rejections(plan(zero_stage=3), setting(own, gpus())) == ()


@pytest.mark.parametrize("tied", [False, True])
def test_the_space_holds_only_what_breaks_no_rule(tied: bool) -> None:
    where = setting(tiny_workload(tie_word_embeddings=tied), gpus(4))
    space = search_space(where, {"backend": ("deepspeed",), "precision": ("fp16", "bf16", "fp8")})
    assert space.plans
    for legal in space.plans:
        assert rejections(legal, where) == ()


def test_the_page_lists_every_rule_with_its_sentence_source_and_versions() -> None:
    expected = [
        f"| {rule.id} | {rule.summary} | {rule.source} | {' '.join(rule.versions or ('all',))} |"
        for rule in DEEPSPEED_RULES
    ]
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| DS-")]
    assert rows == expected
