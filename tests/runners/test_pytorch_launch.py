"""The text of ``pytorch.toml``."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from runners.backends.pytorch_native import pytorch_launch
from tests.tiny_job import cpu_cluster, tiny_workload
from tuner.launch import PYTORCH_FILE, Measurement
from tuner.plan import Backend, ParallelPlan, Recompute
from tuner.workload import Workload


def pytorch_toml(workload: Workload | None = None, **knobs: Any) -> str:
    plan = ParallelPlan(backend=Backend.PYTORCH, **knobs)
    spec = pytorch_launch(plan, workload or tiny_workload(), cpu_cluster(8), Measurement())
    (text,) = [file.text for file in spec.files if file.name == PYTORCH_FILE]
    return text


def test_a_whole_file_is_in_torchtitan_words() -> None:
    text = pytorch_toml(
        zero_stage=3, dp_replicate=2, tp=2, sequence_parallel=True, recompute=Recompute.FULL
    )
    assert (
        text
        == """\
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 2
fsdp_reshard_after_forward = "always"
tensor_parallel_degree = 2
enable_sequence_parallel = true
context_parallel_degree = 1
expert_parallel_degree = 1
pipeline_parallel_degree = 1
pipeline_parallel_schedule = "1F1B"
pipeline_parallel_microbatch_size = 1

[training]
local_batch_size = 1
global_batch_size = 8
seq_len = 32
mixed_precision_param = "bfloat16"
mixed_precision_reduce = "float32"
enable_cpu_offload = false

[activation_checkpoint]
mode = "full"

[optimizer]
name = "AdamW"
lr = 0.001

[paratune]
zero_stage = 3
pipeline_parallel_stages_per_rank = 1
"""
    )


@pytest.mark.parametrize(("zero_stage", "degrees"), [(0, (8, 1)), (1, (8, 1)), (2, (1, 8))])
def test_only_fsdp_has_a_shard_degree(zero_stage: int, degrees: tuple[int, int]) -> None:
    table = tomllib.loads(pytorch_toml(zero_stage=zero_stage))["parallelism"]
    replicate, shard = "data_parallel_replicate_degree", "data_parallel_shard_degree"
    assert (table[replicate], table[shard]) == degrees


def test_a_pipeline_takes_the_whole_share_of_a_rank() -> None:
    values = tomllib.loads(pytorch_toml(pp=2, vpp=2, micro_batch=1))
    assert values["training"]["local_batch_size"] == 2
    assert values["parallelism"]["pipeline_parallel_microbatch_size"] == 1
    assert values["parallelism"]["pipeline_parallel_schedule"] == "Interleaved1F1B"
