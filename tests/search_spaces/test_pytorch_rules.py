"""The rules of PyTorch's own parallelism: their sentences, their models and their page."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from search_spaces.enumeration import rejections
from search_spaces.pytorch_native import PYTORCH_RULES
from search_spaces.rule import Rule
from tests.tiny_job import CPU_STACK, cpu_cluster, setting, tiny_workload
from tuner.cluster import Cluster
from tuner.plan import Backend, Offload, ParallelPlan, Precision, Recompute
from tuner.presets import gpu_named
from tuner.stack import Stack
from tuner.workload import HfModel, Workload

PAGE = Path(__file__).parents[2] / "docs" / "rules-pytorch.md"


def plan(**knobs: Any) -> ParallelPlan:
    return ParallelPlan(**{"backend": Backend.PYTORCH, "precision": Precision.FP32, **knobs})


def sentence(
    rule: str, workload: Workload, num_gpus: int, stack: Stack = CPU_STACK, **knobs: Any
) -> str | None:
    judged = setting(workload, cpu_cluster(num_gpus), stack)
    return dict(rejections(plan(**knobs), judged)).get(rule)


def windowed(window: int) -> Workload:
    workload = tiny_workload(model_type="mistral")
    assert isinstance(workload.model, HfModel)
    shape = dataclasses.replace(workload.model.shape, sliding_window=window)
    return dataclasses.replace(workload, model=dataclasses.replace(workload.model, shape=shape))


def batch_of(sequences: int, **config: Any) -> Workload:
    return dataclasses.replace(tiny_workload(**config), global_batch_sequences=sequences)


SENTENCES: list[tuple[str, Workload, int, dict[str, Any], list[str]]] = [
    (
        "PT-01",
        batch_of(8),
        4,
        {"pp": 4, "micro_batch": 4},
        ["at least pp (4)", "got 2 (8 sequences a rank in micro-batches of 4)", "one of 1, 2"],
    ),
    ("PT-01", batch_of(2), 4, {"pp": 4}, ["got 2", "use pp 2 or less"]),
    (
        "PT-02",
        batch_of(9),
        4,
        {"pp": 4, "vpp": 2},
        ["9 // 4 = 2", "got 9 (9 sequences", "one of 3, 9"],
    ),
    ("PT-10", tiny_workload(), 4, {"cp": 2}, ["cp must be 1", "got 2", "megatron"]),
    ("PT-11", tiny_workload(), 4, {"precision": Precision.FP8}, ["got fp8", "use bf16"]),
    ("PT-12", tiny_workload(model_type="gpt2"), 4, {"tp": 2}, ["tp 2", "gpt2", "zero_stage 3"]),
    ("PT-12", tiny_workload(model_type="mixtral"), 4, {"tp": 2}, ["mixtral", "split it by pp"]),
    ("PT-17", tiny_workload(model_type="gpt2"), 4, {"pp": 2}, ["pp 2", "gpt2"]),
    ("PT-13", tiny_workload(tie_word_embeddings=True), 4, {"pp": 4}, ["got 4", "use pp 1"]),
    (
        "PT-14",
        tiny_workload(),
        4,
        {"offload": Offload.OPTIMIZER, "zero_stage": 2},
        ["got offload optimizer with zero_stage 2", "offload params with zero_stage 3"],
    ),
    ("PT-14", tiny_workload(), 4, {"offload": Offload.PARAMS, "zero_stage": 1}, ["zero_stage 1"]),
    ("PT-15", tiny_workload(), 4, {"zero_stage": 1, "tp": 2}, ["got tp 2 and pp 1", "stage 2"]),
    ("PT-16", tiny_workload(), 4, {"ep": 2}, ["ep must be 1", "got 2"]),
    ("PT-18", windowed(16), 4, {"tp": 2}, ["(16)", "got 32 with tp 2 and pp 1", "at most 16"]),
    ("PT-19", tiny_workload(), 8, {"pp": 2, "vpp": 4}, ["(4)", "2 * 4 = 8", "use vpp 2 or less"]),
    ("PT-19", tiny_workload(), 8, {"pp": 8}, ["8 * 1 = 8", "use pp 4 or less"]),
]


@pytest.mark.parametrize(
    ("rule", "workload", "num_gpus", "knobs", "words"),
    SENTENCES,
    ids=[f"{row[0]}-{row[3]}" for row in SENTENCES],
)
def test_a_rule_says_what_was_got_and_what_to_do(
    rule: str, workload: Workload, num_gpus: int, knobs: dict[str, Any], words: list[str]
) -> None:
    said = sentence(rule, workload, num_gpus, **knobs)
    assert said is not None
    for word in words:
        assert word in said, said


def test_a_stack_without_a_recent_torch_has_no_pytorch_plans() -> None:
    old = Stack(versions={"torch": "2.4.1"})
    assert "got 2.4.1" in str(sentence("PT-09", tiny_workload(), 4, old))
    assert "got none" in str(sentence("PT-09", tiny_workload(), 4, Stack(versions={})))
    assert sentence("PT-09", tiny_workload(), 4) is None


def test_an_interleaved_schedule_may_have_fewer_micro_batches_than_stages() -> None:
    assert sentence("PT-02", batch_of(10), 4, pp=4, vpp=2) is None
    assert sentence("PT-02", batch_of(3), 4, pp=4, vpp=2) is None
    assert sentence("PT-01", batch_of(3), 4, pp=4, vpp=2) is None


def test_stages_may_be_uneven() -> None:
    assert sentence("PT-19", tiny_workload(num_hidden_layers=7), 4, pp=4) is None


def test_a_window_that_holds_the_sequence_is_no_window() -> None:
    for window in (0, 32, 4096):
        assert sentence("PT-18", windowed(window), 4, tp=2) is None
        assert sentence("PT-18", windowed(window), 4, pp=2) is None
    assert sentence("PT-18", windowed(16), 4, zero_stage=3) is None


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "mixtral", "deepseek_v3", "falcon"])
def test_any_family_is_sharded_and_recomputed(family: str) -> None:
    judged = setting(tiny_workload(model_type=family), cpu_cluster(4))
    for zero_stage in (0, 1, 2, 3):
        for recompute in Recompute:
            legal = plan(zero_stage=zero_stage, recompute=recompute)
            assert rejections(legal, judged) == ()


def test_experts_are_dealt_out_to_stages_and_not_split_by_tp() -> None:
    judged = setting(tiny_workload(model_type="mixtral"), cpu_cluster(4))
    assert rejections(plan(pp=2, zero_stage=3), judged) == ()
    assert [rule for rule, _ in rejections(plan(tp=2), judged)] == ["PT-12"]


def test_gpus_offload_parameters_that_are_sharded() -> None:
    gpu = gpu_named("h100-sxm-80gb")
    assert gpu is not None
    judged = setting(tiny_workload(), Cluster(gpu=gpu, gpus_per_node=8))
    for zero_stage in (2, 3):
        legal = plan(precision=Precision.BF16, zero_stage=zero_stage, offload=Offload.PARAMS)
        assert rejections(legal, judged) == ()


def test_the_page_is_the_table_of_rules() -> None:
    table = PAGE.read_text().partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| PT-")]
    assert rows == [_row(rule) for rule in sorted(PYTORCH_RULES, key=lambda rule: rule.id)]


def _row(rule: Rule) -> str:
    versions = " ".join(rule.versions) if rule.versions else "all"
    return f"| {rule.id} | {rule.summary} | {rule.source} | {versions} |"
