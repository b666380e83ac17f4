"""Megatron's rules: each refuses with its numbers and what to do; what is documented is true."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest

from search_spaces.enumeration import rejections, search_space
from search_spaces.megatron_core import MEGATRON_RULES
from search_spaces.rule import Setting
from tests.runners.megatron_models import EXPERTS, family_workload, model_workload
from tests.tiny_job import CPU_STACK, cpu_cluster
from tuner.cluster import Cluster
from tuner.plan import ParallelPlan
from tuner.presets import gpu_named
from tuner.stack import Stack
from tuner.workload import Workload

PAGE = Path(__file__).parents[2] / "docs" / "rules-megatron.md"
LLAMA = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16}
FP8 = {"precision": "fp8"}
BF16 = {"precision": "bf16"}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def _stack(**versions: str) -> Stack:
    named = {name.replace("_", "-"): version for name, version in versions.items()}
    return Stack(versions={**CPU_STACK.versions, **named})


ENGINE = _stack(transformer_engine="2.8.0")


def _setting(
    workload: Workload,
    *,
    gpus: int = 8,
    gpu: str | None = None,
    stack: Stack = CPU_STACK,
    **sizes: Any,
) -> Setting:
    cluster = cpu_cluster(gpus)
    if gpu is not None:
        preset = gpu_named(gpu)
        assert preset is not None
        cluster = Cluster(gpu=preset, gpus_per_node=gpus)
    workload = dataclasses.replace(workload, **sizes)
    return Setting(workload=workload, cluster=cluster, stack=stack)


def _h100s(workload: Workload, stack: Stack = ENGINE, **sizes: Any) -> Setting:
    return _setting(workload, gpu="h100-sxm-80gb", stack=stack, **sizes)


def _plan(**knobs: Any) -> ParallelPlan:
    return ParallelPlan.from_dict({"backend": "megatron", "precision": "fp32"} | knobs)


def _llama(**changes: Any) -> Workload:
    return model_workload(**LLAMA | changes)


def _mixtral(**changes: Any) -> Workload:
    return family_workload("mixtral", **changes)


@functools.cache  # not at import: transformers counts every model
def _cases() -> list[tuple[str, Setting, dict[str, Any], list[str]]]:
    old = _stack(megatron_core="0.15.3")
    windowed = _h100s(family_workload("mistral, windowed"))
    fp8_llama = _llama(hidden_size=96, intermediate_size=160)
    return [
        ("MC-90", _setting(_llama()), {"zero_stage": 3}, ["0 or 1", "got 3", "use 1"]),
        ("MC-91", _h100s(_llama()), {"offload": "params"}, ["none or optimizer", "got params"]),
        ("MC-12", _setting(_llama(num_key_value_heads=2), gpus=3), {"tp": 3}, ["(2)", "got 3"]),
        ("MC-12a", _setting(_llama(), stack=old), {"tp": 8}, ["(4)", "0.15.3", "1, 2, 4"]),
        ("MC-22", _setting(_llama(num_hidden_layers=7)), {"pp": 4}, ["(7)", "(9)", "1, 3, 7"]),
        ("MC-23", _setting(_llama()), {"pp": 2, "vpp": 4}, ["(4)", "(6)", "2 * 4", "vpp 1, 2, 3"]),
        (
            "MC-21",
            _setting(_llama(), gpus=2, global_batch_sequences=12),
            {"pp": 2, "vpp": 2, "micro_batch": 4},
            ["(2)", "got 3", "micro_batch 1, 2, 3, 6"],
        ),
        ("MC-40", _setting(_llama()), {"ep": 2}, ["without experts", "got 2", "use ep 1"]),
        ("MC-40", _setting(_mixtral()), {"ep": 8}, ["(4)", "got 8", "1, 2, 4"]),
        ("MC-40a", _setting(_mixtral()), {"ep": 2, "precision": "fp16"}, ["fp16", "got 2", "bf16"]),
        ("MC-02", _setting(_mixtral()), {"ep": 4, "pp": 4}, ["(8)", "4 * 4 = 16", "ep 1, 2"]),
        (
            "MC-04",
            _setting(_mixtral()),
            {"ep": 4, "dp_replicate": 4, "zero_stage": 1},
            ["(2)", "got 4", "1, 2"],
        ),
        (
            "MC-14",
            _setting(family_workload("qwen2_moe", shared_expert_intermediate_size=36)),
            {"tp": 8, "sequence_parallel": True},
            ["(32)", "(36)", "got 8", "1, 2, 4"],
        ),
        ("MC-41", _setting(_mixtral()), {"tp": 2}, ["sequence_parallel", "tp 2"]),
        ("MC-45", _setting(_mixtral(num_experts_per_tok=1)), {}, ["at least 2", "got 1"]),
        (
            "MC-17",
            _h100s(_llama(), seq_len=36),
            {"tp": 4, "cp": 2, "sequence_parallel": True} | BF16,
            ["(36)", "4 * 2"],
        ),
        ("MC-18", _setting(_llama()), {"cp": 2}, ["CUDA", "cp 2"]),
        ("MC-18", _h100s(_llama(), CPU_STACK), {"cp": 2} | BF16, ["none installed"]),
        ("MC-18a", _h100s(_llama(), seq_len=36), {"cp": 4} | BF16, ["(36)", "cp 4", "1, 2"]),
        ("TE-08", windowed, {"cp": 2} | BF16, ["(8)", "(32)", "got 2"]),
        ("TE-08a", _h100s(_llama()), {"cp": 2}, ["fp32", "bf16"]),
        ("TE-01", _h100s(_llama(), CPU_STACK), FP8, ["transformer-engine", "none installed"]),
        (
            "TE-01",
            _setting(_llama(), gpu="a100-sxm-80gb", stack=ENGINE),
            FP8,
            ["8.9", "8.0"],
        ),
        ("MC-52", _h100s(_mixtral(), _stack(transformer_engine="1.9")), FP8, ["1.11", "1.9"]),
        (
            "TE-05",
            _h100s(fp8_llama),
            {"tp": 4} | FP8,
            ["multiples of 16", "feed-forward size / tp 40", "tp 4"],
        ),
        (
            "TE-05a",
            _h100s(_llama(), seq_len=36),
            {"tp": 2, "sequence_parallel": True} | FP8,
            ["multiple of 8", "got 18"],
        ),
        ("MC-68", _h100s(_llama()), {"offload": "optimizer"} | BF16, ["zero_stage 1", "got 0"]),
        (
            "MC-67",
            _h100s(_llama(), CPU_STACK),
            {"offload": "optimizer", "zero_stage": 1} | BF16,
            ["transformer-engine", "not installed"],
        ),
        ("MC-92", _setting(model_workload(model_type="gemma")), {}, ["llama", "got gemma"]),
        ("MC-93", _setting(_llama(hidden_act="gelu")), {}, ["silu, swish", "got gelu"]),
        ("MC-94", _setting(_llama(attention_bias=True)), {}, ["attention_bias", "got true"]),
        ("MC-94", _setting(_llama(mlp_bias=True)), {}, ["mlp_bias", "got true"]),
        ("MC-95", _setting(_llama(rope_scaling=YARN)), {}, ["llama3", "yarn"]),
        ("MC-95", _setting(_llama(rope_scaling=LLAMA3 | {"low_freq_factor": 2.0})), {}, ["2.0"]),
        (
            "MC-96",
            _setting(
                model_workload(
                    model_type="qwen2",
                    use_sliding_window=True,
                    sliding_window=16,
                    max_window_layers=2,
                )
            ),
            {},
            ["(16)", "2 of 4", "got 32"],
        ),
        (
            "MC-97",
            _setting(family_workload("qwen3_moe", mlp_only_layers=[0])),
            {},
            ["all 4 layers", "got 1"],
        ),
        ("MC-99", _setting(family_workload("gpt2"), seq_len=256), {}, ["(128)", "got 256"]),
        ("MC-98", _setting(_llama(), optimizer="sgd"), {}, ["adamw", "got sgd"]),
    ]


@pytest.mark.parametrize("rule", [rule.id for rule in MEGATRON_RULES])
def test_every_rule_refuses_with_its_numbers(rule: str) -> None:
    cases = [case for case in _cases() if case[0] == rule]
    assert cases, f"{rule} has no case"
    for _, setting, knobs, words in cases:
        broken = dict(rejections(_plan(**knobs), setting))
        assert rule in broken, broken
        for word in words:
            assert word in broken[rule], broken[rule]


def test_what_megatron_trains_is_legal() -> None:
    llama, mixtral = _llama(), _mixtral()
    trained: list[tuple[Setting, dict[str, Any]]] = [
        (_setting(llama), {"tp": 8}),  # twice the key-value heads
        (_h100s(llama), {"cp": 2, "zero_stage": 1} | BF16),
        (_h100s(llama), {"tp": 2, "sequence_parallel": True, "cp": 2} | BF16),
        (_h100s(llama), {"tp": 2} | FP8),
        (_h100s(llama), {"offload": "optimizer", "zero_stage": 1} | BF16),
        (_h100s(mixtral), {"ep": 4, "zero_stage": 1} | FP8),
        (_h100s(mixtral, CPU_STACK), {"ep": 4, "tp": 2, "sequence_parallel": True} | BF16),
        (_setting(family_workload("mistral, windowed")), {"tp": 2}),
        (_setting(_llama(rope_scaling=LLAMA3)), {}),
        (_setting(llama, stack=_stack(megatron_core="0.15.3")), {"tp": 4}),
    ]
    for setting, knobs in trained:
        assert rejections(_plan(**knobs), setting) == (), knobs


def test_the_126_layers_of_llama_405b_are_not_refused_at_16_stages() -> None:
    setting = _setting(_llama(num_hidden_layers=126), gpus=16, global_batch_sequences=16)
    for knobs in ({"pp": 16}, {"pp": 16, "vpp": 8}, {"pp": 14}, {"pp": 14, "vpp": 9}):
        broken = dict(rejections(_plan(**knobs), setting))
        assert not {"MC-22", "MC-23"} & broken.keys()
    assert "MC-22" in dict(rejections(_plan(pp=5), setting))


def test_transformer_engine_in_the_stack_opens_context_parallelism_and_fp8() -> None:
    asked = {"backend": ("megatron",)}
    with_engine = search_space(_h100s(_llama()), asked).plans
    without = search_space(_h100s(_llama(), CPU_STACK), asked).plans
    for name, value in (("cp", 2), ("precision", "fp8"), ("offload", "optimizer")):
        assert value in {plan.to_dict()[name] for plan in with_engine}
        assert value not in {plan.to_dict()[name] for plan in without}


def test_experts_open_expert_parallelism() -> None:
    space = search_space(_setting(model_workload(model_type="mixtral", **EXPERTS)), {})
    degrees = {plan.ep for plan in space.plans if plan.backend == "megatron"}
    assert degrees == {1, 2, 4}


def test_the_page_lists_every_rule_as_it_is() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(("| MC-", "| TE-"))]
    assert rows == [
        f"| {rule.id} | {rule.summary} | {rule.source} | "
        f"{' '.join(rule.versions) if rule.versions else 'all'} |"
        for rule in MEGATRON_RULES
    ]
