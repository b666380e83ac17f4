"""Framework settings as data: where they apply, what is legal, what reaches the launch files."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runners.backends.launch import launch_for
from tests.tiny_job import cpu_cluster, tiny_workload
from tests.tuner.importing.the_job import NODE, WORKLOAD
from tuner.framework_settings.setting import SettingCase
from tuner.framework_settings.table import (
    SETTINGS,
    applied,
    applying,
    broken,
    other_options,
    settled,
    unfollowed,
)
from tuner.launch import DEEPSPEED_FILE, MEGATRON_FILE, PYTORCH_FILE, Measurement, Settings
from tuner.plan import Backend, ParallelPlan


def on_gpus(**knobs: Any) -> SettingCase:
    """An 8B Llama on eight H100."""
    return SettingCase(plan=ParallelPlan.from_dict(knobs), workload=WORKLOAD, cluster=NODE)


def on_cpus(num_ranks: int = 4, **knobs: Any) -> SettingCase:
    plan = ParallelPlan.from_dict({"precision": "fp32", **knobs})
    return SettingCase(plan=plan, workload=tiny_workload(), cluster=cpu_cluster(num_ranks))


def names(case: SettingCase) -> set[str]:
    return {setting.name for setting in applying(case)}


def text(case: SettingCase, settings: Settings, name: str) -> str:
    spec = launch_for(case.plan, case.workload, case.cluster, Measurement(), settings)
    return next(file.text for file in spec.files if file.name == name)


CASES = (
    on_gpus(backend="pytorch"),
    on_gpus(backend="pytorch", zero_stage=3),
    on_gpus(backend="deepspeed", zero_stage=1, pp=2),
    on_gpus(backend="deepspeed", zero_stage=2, offload="optimizer"),
    on_gpus(backend="deepspeed", zero_stage=3),
    on_gpus(backend="megatron", zero_stage=1, tp=2, pp=2, vpp=2),
    on_cpus(backend="megatron"),
)


@pytest.mark.parametrize("case", CASES)
def test_every_option_is_legal_differs_and_comes_first_to_the_launch_files(
    case: SettingCase,
) -> None:
    plain = launch_for(case.plan, case.workload, case.cluster, Measurement())
    for setting in applying(case):
        for settings in other_options(case, (), setting.name):
            assert broken(case, settings) == ()
            assert settled(case, settings)[setting.name] != settled(case, ())[setting.name]
            spec = launch_for(case.plan, case.workload, case.cluster, Measurement(), settings)
            assert spec.settings == settings
            own = {file.name: file.text for file in spec.files if file.name != "training.json"}
            was = {file.name: file.text for file in plain.files if file.name != "training.json"}
            assert (own, spec.env) != (was, plain.env), f"{setting.name} is in no launch file"


def test_what_is_not_asked_for_leaves_the_launch_files_as_they_were() -> None:
    for case in CASES:
        values = settled(case, ())
        for name, value in values.items():
            if (name, value) not in (("ddp_bucket_size", 40_000_000),):
                assert dict(applied(case, ((name, value),))) == {name: value}
        assert applied(case, ()) == ()


def test_each_setting_says_where_it_stands_and_where_it_was_found() -> None:
    for setting in SETTINGS:
        assert setting.source
        assert setting.written.startswith(
            (DEEPSPEED_FILE, MEGATRON_FILE, PYTORCH_FILE, "the environment")
        )


def test_a_pipeline_and_cpu_ranks_do_not_overlap_in_deepspeed() -> None:
    assert "overlap_comm" in names(on_gpus(backend="deepspeed", zero_stage=2))
    assert "overlap_comm" not in names(on_gpus(backend="deepspeed", zero_stage=1, pp=2))
    on_cpu = on_cpus(backend="deepspeed", zero_stage=2)
    assert "overlap_comm" not in names(on_cpu)
    assert (
        json.loads(text(on_cpu, (("overlap_comm", True),), DEEPSPEED_FILE))["zero_optimization"][
            "overlap_comm"
        ]
        is False
    )


def test_static_graph_is_only_for_ranks_that_do_not_accumulate() -> None:
    assert "ddp_static_graph" in names(on_cpus(backend="pytorch", micro_batch=2))
    assert "ddp_static_graph" not in names(on_cpus(backend="pytorch", micro_batch=1))


def test_without_overlapped_reduction_megatron_overlaps_no_gather_and_has_no_buckets() -> None:
    case = on_gpus(backend="megatron", zero_stage=1)
    (off,) = other_options(case, (), "overlap_grad_reduce")
    assert dict(off) == {"overlap_grad_reduce": False, "overlap_param_gather": False}
    assert "--overlap" not in text(case, off, MEGATRON_FILE)
    assert other_options(case, off, "ddp_bucket_size") == ()
    assert other_options(case, off, "overlap_param_gather") == ()
    asked = (("overlap_grad_reduce", False), ("overlap_param_gather", True))
    ((name, sentence),) = broken(case, asked)
    assert name == "overlap_param_gather"
    assert "MC-60" in sentence


@pytest.mark.parametrize(
    ("knobs", "asked", "rule"),
    [
        ({"zero_stage": 2}, ("allgather_bucket_size", 5_000_001), "DS-33"),
        ({"zero_stage": 2}, ("reduce_bucket_size", 0), "DS-31"),
        ({"zero_stage": 3}, ("stage3_prefetch_bucket_size", -1), "DS-31"),
    ],
)
def test_what_deepspeed_refuses_is_named_with_its_rule(
    knobs: dict[str, Any], asked: tuple[str, int], rule: str
) -> None:
    ((name, sentence),) = broken(on_gpus(backend="deepspeed", **knobs), (asked,))
    assert name == asked[0]
    assert rule in sentence
    assert str(asked[1]) in sentence


def test_a_group_of_microbatches_follows_rule_mc_21() -> None:
    case = on_cpus(backend="megatron", pp=2, vpp=2, micro_batch=1)  # four micro-batches a rank
    assert [dict(one) for one in other_options(case, (), "microbatch_group_size")] == [
        {"microbatch_group_size": 4}
    ]
    assert "MC-21" in broken(case, (("microbatch_group_size", 3),))[0][1]


def test_the_allocator_is_told_by_the_environment_of_every_framework_on_gpus() -> None:
    asked = (("expandable_segments", True),)
    for backend in Backend:
        case = on_gpus(backend=str(backend))
        spec = launch_for(case.plan, case.workload, case.cluster, Measurement(), asked)
        assert ("PYTORCH_ALLOC_CONF", "expandable_segments:True") in spec.env
        on_cpu = on_cpus(backend=str(backend))
        spec = launch_for(on_cpu.plan, on_cpu.workload, on_cpu.cluster, Measurement(), asked)
        assert spec.settings == ()


def test_another_value_than_was_asked_for_is_said_in_a_sentence() -> None:
    said = unfollowed({"overlap_comm": True, "a": 1}, {"overlap_comm": False, "b": 2})
    assert said == (
        "overlap_comm was asked to be true, and the framework runs false",
        "a was asked to be 1, and the framework runs without it",
    )
    assert unfollowed({"a": 1}, {"a": 1, "b": 2}) == ()
