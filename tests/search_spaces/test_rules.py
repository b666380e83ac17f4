"""The rules: each refuses what it says with its numbers, and lets through what is legal."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.enumeration import rejections, search_space
from search_spaces.rule import Rule, backend_mask
from search_spaces.rule_table import RULES
from tests.tiny_job import CPU_STACK, cpu_cluster, setting, tiny_workload
from tuner.cluster import Cluster
from tuner.plan import Backend, Offload, ParallelPlan, Precision, Recompute
from tuner.plan_arrays import PlanArrays
from tuner.presets import gpu_named
from tuner.stack import Stack
from tuner.workload import FactoryModel, Workload

WORKLOAD = tiny_workload()
CLUSTER = cpu_cluster(4)

REFUSED: list[tuple[str, dict[str, Any], list[str]]] = [
    ("G-02", {"tp": 2, "pp": 3}, ["4", "2 * 3"]),
    ("G-03", {"tp": 3}, ["4", "3"]),
    ("G-01", {"micro_batch": 4}, ["8", "4 * 4", "1, 2"]),
    ("G-05", {"precision": Precision.FP8}, ["fp32", "fp8"]),
    ("G-08", {"zero_stage": 1, "tp": 2, "pp": 2}, ["zero_stage 0"]),
    ("G-09", {"dp_replicate": 4, "zero_stage": 3}, ["dp_replicate 4"]),
    ("G-10", {"vpp": 2}, ["pp > 1"]),
    ("G-11", {"sequence_parallel": True}, ["tp > 1"]),
    ("G-12", {"offload": Offload.OPTIMIZER}, ["offload"]),
    ("S-02", {"tp": 4}, ["(2)", "4"]),
    ("S-04", {"backend": Backend.DEEPSPEED, "pp": 2, "vpp": 4}, ["(4)", "2 * 4"]),
    ("PT-10", {"cp": 2}, ["cp"]),
    ("PT-15", {"zero_stage": 1, "pp": 2}, ["zero_stage 1"]),
    ("PT-01", {"pp": 4, "micro_batch": 8}, ["pp"]),
    ("DS-20", {"backend": Backend.DEEPSPEED, "zero_stage": 2, "pp": 2}, ["0 or 1"]),
    ("DS-24", {"backend": Backend.DEEPSPEED, "tp": 2, "pp": 2}, ["tp and pp"]),
    ("DS-60", {"backend": Backend.DEEPSPEED, "pp": 2, "vpp": 2}, ["vpp"]),
    ("MC-90", {"backend": Backend.MEGATRON, "zero_stage": 3}, ["0 or 1"]),
    ("MC-18", {"backend": Backend.MEGATRON, "cp": 2}, ["cp"]),
]


def plan(**knobs: Any) -> ParallelPlan:
    return ParallelPlan(**{"backend": Backend.PYTORCH, "precision": Precision.FP32, **knobs})


@pytest.mark.parametrize(("rule", "knobs", "words"), REFUSED, ids=[r for r, _, _ in REFUSED])
def test_a_rule_refuses_with_its_numbers(
    rule: str, knobs: dict[str, Any], words: list[str]
) -> None:
    broken = dict(rejections(plan(**knobs), setting(WORKLOAD, CLUSTER)))
    assert rule in broken
    for word in words:
        assert word in broken[rule], broken[rule]


def test_interleaving_needs_whole_rounds_of_microbatches() -> None:
    workload = dataclasses.replace(WORKLOAD, global_batch_sequences=3)
    interleaved = plan(backend=Backend.MEGATRON, pp=2, vpp=2)
    broken = dict(rejections(interleaved, setting(workload, cpu_cluster(2))))
    assert "MC-21" in broken


@pytest.mark.parametrize(
    "legal",
    [
        plan(zero_stage=3, tp=2, recompute=Recompute.SELECTIVE),
        plan(pp=2, vpp=2, zero_stage=2),
        plan(zero_stage=3, dp_replicate=2),
        plan(backend=Backend.DEEPSPEED, zero_stage=2, tp=2),
        plan(backend=Backend.DEEPSPEED, zero_stage=1, pp=2),
        plan(backend=Backend.MEGATRON, zero_stage=1, tp=2, sequence_parallel=True),
        plan(backend=Backend.MEGATRON, zero_stage=0, tp=4),
    ],
    ids=lambda p: p.label(),
)
def test_what_the_frameworks_train_is_legal(legal: ParallelPlan) -> None:
    assert rejections(legal, setting(WORKLOAD, CLUSTER)) == ()


def test_a_users_own_module_is_not_split() -> None:
    model = FactoryModel(factory="pkg:make", vocab=64)
    workload = Workload(model=model, seq_len=16, global_batch_sequences=8)
    assert rejections(plan(zero_stage=3), setting(workload, CLUSTER)) == ()
    assert rejections(plan(recompute=Recompute.FULL), setting(workload, CLUSTER)) == ()
    in_deepspeed = {"backend": Backend.DEEPSPEED, "recompute": Recompute.FULL}
    for knobs in ({"tp": 2}, {"pp": 2}, in_deepspeed):
        assert "G-13" in dict(rejections(plan(**knobs), setting(workload, CLUSTER)))
    assert "G-13" in dict(rejections(plan(backend=Backend.MEGATRON), setting(workload, CLUSTER)))


def test_tied_embeddings_are_not_split_over_pytorch_stages() -> None:
    tied = tiny_workload(tie_word_embeddings=True)
    assert "PT-13" in dict(rejections(plan(pp=2), setting(tied, CLUSTER)))


def test_a_framework_that_is_not_installed_is_refused_with_what_to_install() -> None:
    stack = Stack(versions={"torch": "2.13.0"})
    bare = setting(WORKLOAD, CLUSTER, stack)
    broken = dict(rejections(plan(backend=Backend.MEGATRON), bare))
    assert "needs megatron-core, which is not installed" in broken["G-14"]
    assert rejections(plan(), bare) == ()
    assert {p.backend for p in search_space(bare, {}).plans} == {Backend.PYTORCH}


def test_the_optimizer_of_a_single_gpu_may_be_offloaded_at_any_stage() -> None:
    gpu = gpu_named("h100-sxm-80gb")
    assert gpu is not None
    alone = setting(WORKLOAD, Cluster(gpu=gpu))
    kept = plan(backend=Backend.DEEPSPEED, zero_stage=2, precision=Precision.BF16)
    assert set(dict(rejections(kept, alone))) == {"G-08"}
    assert rejections(dataclasses.replace(kept, offload=Offload.OPTIMIZER), alone) == ()


def test_rule_ids_are_unique_and_every_rule_names_its_source() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert all(rule.source and rule.summary for rule in RULES)


@pytest.mark.parametrize("num_gpus", [1, 2, 4, 8])
def test_the_enumeration_is_what_the_rules_leave(num_gpus: int) -> None:
    cluster = cpu_cluster(num_gpus)
    space = search_space(setting(WORKLOAD, cluster), {})
    assert space.plans
    assert len(set(space.plans)) == len(space.plans)
    assert len(space.plans) + sum(r.removed for r in space.waterfall) == space.num_combinations
    for legal in space.plans:
        assert rejections(legal, setting(WORKLOAD, cluster)) == ()


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_plan_is_enumerated_exactly_when_it_breaks_no_rule(data: st.DataObject) -> None:
    space = _space(CLUSTER)
    knobs = {name: data.draw(st.sampled_from(options)) for name, options in space.knobs}
    drawn = ParallelPlan.from_dict(knobs)
    assert (drawn in set(space.plans)) == (rejections(drawn, setting(WORKLOAD, CLUSTER)) == ())


def _space(cluster: Cluster) -> Any:
    return search_space(setting(WORKLOAD, cluster), {"precision": ("fp32", "bf16")})


@pytest.mark.parametrize("rule", RULES, ids=[rule.id for rule in RULES])
def test_a_rule_looks_only_at_the_knobs_that_it_names(rule: Rule) -> None:
    plans = search_space(setting(WORKLOAD, CLUSTER), {"precision": ("fp32",)}).plans
    named = {name: plans.columns[name] for name in ("backend", *rule.knobs)}
    broken = rule.breaks(PlanArrays(columns=named), setting(WORKLOAD, CLUSTER))
    assert broken.shape == (len(plans),)
    assert not (broken & backend_mask(plans, rule.backends)).any() or not rule.binds(CPU_STACK)
