"""The text of ``pytorch.toml``, and the plans that are not launched."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from runners.backends.pytorch_native import pytorch_launch
from tests.tiny_job import cpu_cluster, tiny_workload
from tuner.errors import UserError
from tuner.launch import PYTORCH_FILE, Measurement
from tuner.plan import Backend, Offload, ParallelPlan, Precision, Recompute
from tuner.workload import FactoryModel, Workload


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


@pytest.mark.parametrize(
    ("knobs", "sentence"),
    [
        ({"cp": 2}, "cp 1, got 2"),
        ({"ep": 2}, "ep 1, got 2"),
        ({"precision": Precision.FP8}, "got fp8"),
        ({"offload": Offload.OPTIMIZER}, "offload none or params, got optimizer"),
        ({"offload": Offload.PARAMS, "zero_stage": 3}, "offload none where ranks run on CPUs"),
        ({"zero_stage": 1, "tp": 2}, "tp and pp 1 for zero_stage 1, got 2, 1"),
        ({"zero_stage": 0, "dp_replicate": 2}, "zero_stage 2 or 3 for dp_replicate 2"),
        ({"sequence_parallel": True}, "tp above 1 for sequence_parallel"),
        ({"vpp": 2}, "pp above 1 for vpp 2"),
        ({"tp": 4}, r"a tp that divides num_key_value_heads \(2\), got 4"),
        ({"pp": 8}, r"pp \* vpp of at most num_layers \(4\), got 8"),
    ],
    ids=str,
)
def test_what_cannot_be_trained_is_refused(knobs: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        pytorch_toml(**knobs)


def test_only_known_families_are_split() -> None:
    with pytest.raises(UserError, match=r"except for llama.* got gpt2"):
        pytorch_toml(tiny_workload(model_type="gpt2"), tp=2)
    own = Workload(
        model=FactoryModel(factory="a.b:c", vocab=64), seq_len=8, global_batch_sequences=8
    )
    with pytest.raises(UserError, match="a model of your own"):
        pytorch_toml(own, pp=2)
    with pytest.raises(UserError, match="pp 1 for tied embeddings"):
        pytorch_toml(tiny_workload(tie_word_embeddings=True), pp=2)
