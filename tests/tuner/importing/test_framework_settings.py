"""Framework settings of a user's file: read, held to its plan, and carried."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tuner.importing.the_job import FIXTURES, WORKLOAD, imported

MICRO = {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}}


def deepspeed(folder: Path, **zero: object) -> Path:
    file = folder / "ds.json"
    file.write_text(json.dumps({**MICRO, "zero_optimization": zero}))
    return file


def test_what_the_file_says_is_carried_as_numbers_and_switches(tmp_path: Path) -> None:
    found = imported(deepspeed(tmp_path, stage=2, overlap_comm=False, reduce_bucket_size=5e8))
    assert dict(found.settings) == {"overlap_comm": False, "reduce_bucket_size": 500_000_000}
    assert found.pinned == ()


def test_what_has_no_effect_with_its_plan_is_ignored_and_not_carried(tmp_path: Path) -> None:
    file = deepspeed(tmp_path, stage=3, round_robin_gradients=True)
    found = imported(file)
    assert found.settings == ()
    (reason,) = (
        one.reason
        for one in found.ignored_keys
        if one.key == "zero_optimization.round_robin_gradients"
    )
    assert "no effect with deepspeed zero3" in reason


def test_auto_is_what_the_trainer_makes_of_it_by_the_models_size(tmp_path: Path) -> None:
    file = deepspeed(tmp_path, stage=3, reduce_bucket_size="auto", overlap_comm=True)
    arguments = tmp_path / "arguments.json"
    arguments.write_text(
        json.dumps({"per_device_train_batch_size": 2, "bf16": True, "output_dir": "o"})
    )
    assert WORKLOAD.shape is not None
    found = imported(file, arguments=arguments)
    assert dict(found.settings)["reduce_bucket_size"] == WORKLOAD.shape.hidden**2
    alone = imported(file)
    assert "reduce_bucket_size" not in dict(alone.settings)
    assert any("zero_optimization.reduce_bucket_size (line 1)" in note for note in alone.notes)


def test_overlapping_that_a_script_leaves_out_is_noted(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text("run --micro-batch-size 1 --use-distributed-optimizer --overlap-grad-reduce")
    found = imported(file)
    assert dict(found.settings) == {"overlap_grad_reduce": True}
    assert any("--overlap-param-gather left out: Megatron-LM takes" in n for n in found.notes)


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_a_script_may_set_the_allocator(tmp_path: Path, name: str) -> None:
    file = tmp_path / "run.sh"
    file.write_text(f"export {name}=expandable_segments:True\nrun --micro-batch-size 1")
    assert dict(imported(file).settings) == {"expandable_segments": True}


def test_fixtures_say_their_settings() -> None:
    settings = dict(imported(FIXTURES / "llama.sh").settings)
    assert settings == {"overlap_grad_reduce": True, "overlap_param_gather": True}
