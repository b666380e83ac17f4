"""Files in the shapes that people post come to the plan that they describe."""

from __future__ import annotations

from typing import Any

import pytest

from search_spaces.enumeration import rejections
from search_spaces.rule import Setting
from tests.tuner.importing.the_job import FIXTURES, NODE, TWO_NODES, WORKLOAD, fixture
from tuner.cluster import Cluster
from tuner.plan import ParallelPlan
from tuner.stack import Stack

STACK = Stack(
    versions={
        "torch": "2.13.0",
        "deepspeed": "0.19.8",
        "megatron-core": "0.16.1",
        "transformer-engine": "2.8",
    }
)
CASES: list[tuple[str, str | None, Cluster, dict[str, Any]]] = [
    ("zero2.json", None, NODE, {"backend": "deepspeed", "zero_stage": 2, "micro_batch": 4}),
    (
        "zero2-offload.json",
        None,
        NODE,
        {
            "backend": "deepspeed",
            "zero_stage": 2,
            "micro_batch": 8,
            "precision": "fp16",
            "offload": "optimizer",
        },
    ),
    (
        "zero3.json",
        None,
        TWO_NODES,
        {"backend": "deepspeed", "zero_stage": 3, "micro_batch": 2, "dp_replicate": 2},
    ),
    (
        "zero3-offload.json",
        None,
        NODE,
        {"backend": "deepspeed", "zero_stage": 3, "micro_batch": 8, "offload": "params"},
    ),
    (
        "hf-auto.json",
        "training-arguments.json",
        NODE,
        {"backend": "deepspeed", "zero_stage": 3, "micro_batch": 2, "recompute": "full"},
    ),
    (
        "hf-auto.json",
        "trainer.sh",
        NODE,
        {"backend": "deepspeed", "zero_stage": 3, "micro_batch": 1},
    ),
    (
        "autotp.json",
        None,
        NODE,
        {"backend": "deepspeed", "zero_stage": 1, "micro_batch": 4, "tp": 4},
    ),
    (
        "pipeline.json",
        None,
        NODE,
        {
            "backend": "deepspeed",
            "zero_stage": 1,
            "micro_batch": 2,
            "pp": 2,
            "recompute": "full",
        },
    ),
    (
        "fsdp1.yaml",
        "training-arguments.json",
        NODE,
        {"backend": "pytorch", "zero_stage": 2, "micro_batch": 2, "recompute": "full"},
    ),
    (
        "fsdp2.yaml",
        "training-arguments.json",
        NODE,
        {
            "backend": "pytorch",
            "zero_stage": 3,
            "micro_batch": 2,
            "dp_replicate": 2,
            "recompute": "full",
            "offload": "params",
        },
    ),
    (
        "accelerate-deepspeed.yaml",
        None,
        NODE,
        {"backend": "deepspeed", "zero_stage": 2, "micro_batch": 4, "offload": "optimizer"},
    ),
    (
        "accelerate-names-json.yaml",
        "training-arguments.json",
        NODE,
        {"backend": "deepspeed", "zero_stage": 3, "micro_batch": 2, "recompute": "full"},
    ),
    (
        "accelerate-megatron.yaml",
        None,
        NODE,
        {
            "backend": "megatron",
            "zero_stage": 1,
            "micro_batch": 8,
            "tp": 2,
            "pp": 2,
            "sequence_parallel": True,
            "recompute": "selective",
        },
    ),
    (
        "ddp.yaml",
        None,
        NODE,
        {"backend": "pytorch", "micro_batch": 8, "precision": "fp16"},
    ),
    (
        "gpt.sh",
        None,
        NODE,
        {"backend": "megatron", "micro_batch": 1, "tp": 4, "pp": 2, "precision": "fp16"},
    ),
    (
        "llama.sh",
        None,
        NODE,
        {
            "backend": "megatron",
            "zero_stage": 1,
            "micro_batch": 2,
            "tp": 2,
            "pp": 2,
            "vpp": 4,
            "sequence_parallel": True,
            "recompute": "selective",
        },
    ),
    (
        "fp8.args",
        None,
        NODE,
        {
            "backend": "megatron",
            "zero_stage": 1,
            "dp_replicate": 2,
            "micro_batch": 1,
            "tp": 2,
            "cp": 2,
            "sequence_parallel": True,
            "precision": "fp8",
            "recompute": "full",
        },
    ),
    (
        "llama3.toml",
        None,
        NODE,
        {"backend": "pytorch", "zero_stage": 3, "micro_batch": 1, "recompute": "selective"},
    ),
    (
        "titan-3d.toml",
        None,
        NODE,
        {
            "backend": "pytorch",
            "zero_stage": 2,
            "micro_batch": 2,
            "tp": 2,
            "pp": 2,
            "vpp": 4,
            "sequence_parallel": True,
            "recompute": "full",
        },
    ),
    (
        "titan-2024.toml",
        None,
        NODE,
        {"backend": "pytorch", "zero_stage": 3, "micro_batch": 2, "dp_replicate": 2},
    ),
]


@pytest.mark.parametrize(
    ("name", "arguments", "cluster", "knobs"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES]
)
def test_a_file_as_people_post_it_comes_to_its_plan(
    name: str, arguments: str | None, cluster: Cluster, knobs: dict[str, Any]
) -> None:
    found = fixture(name, arguments, cluster)
    assert found.plan == ParallelPlan.from_dict(knobs)
    assert found.unknown_keys == ()


def test_every_fixture_is_used() -> None:
    used = {name for name, *_ in CASES} | {arguments for _, arguments, *_ in CASES}
    assert {path.name for path in FIXTURES.iterdir()} <= used


@pytest.mark.parametrize("name", ["zero2.json", "autotp.json", "llama.sh", "titan-3d.toml"])
def test_common_files_are_legal_here(name: str) -> None:
    setting = Setting(workload=WORKLOAD, cluster=NODE, stack=STACK)
    assert rejections(fixture(name).plan, setting) == ()


def test_every_key_is_read_pinned_ignored_with_a_reason_or_unknown() -> None:
    found = fixture("zero2.json")
    assert {one.key: one.value for one in found.pinned} == {"gradient_clipping": "1.0"}
    assert dict(found.settings) == {
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": 200_000_000,
        "allgather_bucket_size": 200_000_000,
    }
    reasons = {one.key: one.reason for one in found.ignored_keys}
    assert "the job says" in reasons["optimizer.params.lr"]
    assert "logs" in reasons["steps_per_print"]
    assert found.notes == ()


def test_another_batch_and_another_model_are_noted_with_both_numbers() -> None:
    notes = " ".join(fixture("gpt.sh").notes)
    assert "--global-batch-size is 1536 sequences, the job's global batch 128" in notes
    assert "--seq-length is 2048 tokens, the job's sequences have 8192" in notes
    assert "another model" not in notes


def test_a_megatron_script_keeps_what_has_no_knob_and_says_what_differs() -> None:
    found = fixture("fp8.args")
    assert {one.key for one in found.pinned} == {"--tp-comm-overlap"}
    assert any("block with 8 layers" in note for note in found.notes)


def test_a_file_says_which_key_each_knob_came_from() -> None:
    keys = fixture("titan-3d.toml").key_of_knob
    assert keys["tp"] == "parallelism.tensor_parallel_degree"
    assert keys["vpp"] == "parallelism.pipeline_parallel_layers_per_stage"
