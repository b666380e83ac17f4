"""The text of DeepSpeed's JSON: complete, plain, and only with keys that DeepSpeed reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from runners.backends.deepspeed_zero import deepspeed_launch
from tests.tiny_job import cpu_cluster, tiny_workload
from tuner.cluster import Cluster, Device
from tuner.launch import LaunchSpec, Measurement
from tuner.plan import ParallelPlan
from tuner.workload import Workload

TOP_LEVEL_KEYS = {
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "optimizer",
    "zero_optimization",
    "bf16",
    "fp16",
    "tensor_parallel",
    "pipeline",
    "gradient_clipping",
    "steps_per_print",
    "wall_clock_breakdown",
}
"""Of DeepSpeed's own (runtime/config.py); an unknown one it would ignore in silence."""


def _cuda_cluster(num_gpus: int) -> Cluster:
    cluster = cpu_cluster(num_gpus)
    return replace(cluster, gpu=replace(cluster.gpu, name="h100", device=Device.CUDA))


def _launch(
    cluster: Cluster | None = None, workload: Workload | None = None, **knobs: Any
) -> LaunchSpec:
    plan = ParallelPlan.from_dict({"backend": "deepspeed", **knobs})
    return deepspeed_launch(
        plan, workload or tiny_workload(), cluster or _cuda_cluster(4), Measurement()
    )


def _file(spec: LaunchSpec, name: str = "ds_config.json") -> dict[str, Any]:
    (text,) = [file.text for file in spec.files if file.name == name]
    values: dict[str, Any] = json.loads(text)
    return values


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


@pytest.mark.parametrize("cluster", [cpu_cluster(4), _cuda_cluster(4)], ids=["cpu", "cuda"])
@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"zero_stage": 1, "micro_batch": 2, "precision": "fp16"},
        {"zero_stage": 2, "tp": 2, "precision": "fp32"},
        {"zero_stage": 3, "dp_replicate": 2},
        {"zero_stage": 1, "pp": 2, "recompute": "full"},
    ],
    ids=str,
)
def test_every_key_is_one_that_deepspeed_reads(cluster: Cluster, knobs: dict[str, Any]) -> None:
    config = _file(_launch(cluster, **knobs))
    assert set(config) <= TOP_LEVEL_KEYS
    assert "auto" not in list(_leaves(config))


def test_the_config_is_this_for_zero_3_on_gpus() -> None:
    config = _file(_launch(zero_stage=3, dp_replicate=2, offload="params"))
    assert config == {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01},
        },
        "zero_optimization": {
            "stage": 3,
            # The bench's tiny model says that it has one parameter.
            "reduce_bucket_size": 2,
            "stage3_prefetch_bucket_size": 2,
            "stage3_param_persistence_threshold": 2,
            "stage3_max_live_parameters": 1_000_000_000,
            "stage3_max_reuse_distance": 1_000_000_000,
            "overlap_comm": True,
            "contiguous_gradients": True,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "offload_param": {"device": "cpu", "pin_memory": True},
            "zero_hpz_partition_size": 2,
        },
        "gradient_clipping": 0.0,
        "steps_per_print": 1_000_000_000,
        "wall_clock_breakdown": False,
        "bf16": {"enabled": True},
    }


def test_the_pipeline_section_recomputes_whole_layers_itself() -> None:
    spec = _launch(zero_stage=1, pp=2, recompute="full")
    assert _file(spec)["pipeline"] == {
        "stages": 2,
        "partition": "type:PipelineLayer",
        "activation_checkpoint_interval": 1,
    }
    assert _file(spec, "training.json")["recompute"] == "none"


@pytest.mark.parametrize(
    "knobs", [{"recompute": "full"}, {"recompute": "selective", "pp": 2}], ids=str
)
def test_other_recomputation_is_left_to_the_script(knobs: dict[str, Any]) -> None:
    spec = _launch(**knobs)
    assert _file(spec, "training.json")["recompute"] == knobs["recompute"]
    assert not _file(spec).get("pipeline", {}).get("activation_checkpoint_interval")


def test_only_cpu_ranks_name_their_accelerator_and_take_adam_from_torch() -> None:
    on_cpu, on_cuda = _launch(cpu_cluster(4)), _launch(_cuda_cluster(4))
    assert on_cpu.env == (("DS_ACCELERATOR", "cpu"),)
    assert on_cuda.env == ()
    assert _file(on_cpu)["optimizer"]["params"]["torch_adam"] is True
    assert "torch_adam" not in _file(on_cuda)["optimizer"]["params"]


def test_a_pipeline_on_gpus_does_not_ask_for_the_overlap_that_deepspeed_turns_off() -> None:
    staged, flat = _launch(zero_stage=1, pp=2), _launch(zero_stage=1)
    assert _file(staged)["zero_optimization"]["overlap_comm"] is False
    assert _file(flat)["zero_optimization"]["overlap_comm"] is True
