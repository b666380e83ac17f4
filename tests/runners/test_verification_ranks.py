"""Real ranks against one rank: right layouts are not accused, planted mistakes are named."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.runners.bench_ranks import trained
from tests.tiny_job import tiny_workload
from tuner.launch import Measurement, ReferenceSplit
from tuner.plan import ParallelPlan
from tuner.verification import (
    DOUBLED,
    SHIFTED,
    UNSYNCHRONISED,
    Reference,
    Verdict,
    Verification,
    verification,
)
from tuner.workload import FactoryModel

pytestmark = pytest.mark.ranks

STEPS = Measurement(warmup_steps=1, steps=2)


@cache
def reference(backend: str, data_parallel: int, micro_batch: int) -> Reference:
    """One rank's own losses and suspects for a plan that splits the batch like this."""
    split = ReferenceSplit(data_parallel=data_parallel, micro_batch=micro_batch)
    plan = ParallelPlan.from_dict(
        {"backend": backend, "precision": "fp32", "micro_batch": micro_batch}
    )
    with TemporaryDirectory() as folder:
        (result,) = trained(
            plan,
            Path(folder),
            num_ranks=1,
            measurement=Measurement(warmup_steps=1, steps=2, reference=split),
        )
    return Reference(losses=tuple(result["losses"]), **result["effective"])


def verified(folder: Path, mistake: str = "", num_ranks: int = 2, **knobs: Any) -> Verification:
    plan = ParallelPlan.from_dict({"precision": "fp32", **knobs})
    results = trained(plan, folder, num_ranks=num_ranks, measurement=STEPS, mistake=mistake)
    own = "megatron" if plan.backend == "megatron" else "pytorch"
    right = reference(own, plan.data_parallel(num_ranks), plan.micro_batch)
    return verification(plan, results[0]["losses"], right, num_layers=4)


@pytest.mark.parametrize(
    "knobs",
    [
        {"backend": "pytorch"},
        {"backend": "pytorch", "pp": 2, "micro_batch": 2},
        {"backend": "pytorch", "zero_stage": 3, "precision": "bf16"},
        {"backend": "deepspeed", "micro_batch": 2, "precision": "bf16"},
        {"backend": "deepspeed", "pp": 2, "precision": "fp16"},
        {"backend": "megatron", "tp": 2, "precision": "bf16"},
        {"backend": "megatron", "pp": 2, "micro_batch": 4},
        {"backend": "megatron", "zero_stage": 1, "micro_batch": 2},
    ],
    ids=str,
)
def test_a_right_layout_is_not_accused(tmp_path: Path, knobs: dict[str, Any]) -> None:
    found = verified(tmp_path, **knobs)
    assert found.verdict is Verdict.RIGHT, found


@pytest.mark.parametrize(
    ("mistake", "named", "knobs"),
    [
        ("unsynchronised", UNSYNCHRONISED, {"micro_batch": 2}),
        ("unsynchronised", UNSYNCHRONISED, {"backend": "deepspeed", "micro_batch": 2}),
        ("unsynchronised", UNSYNCHRONISED, {"backend": "megatron", "micro_batch": 2}),
        ("doubled", DOUBLED, {}),
        ("doubled", DOUBLED, {"micro_batch": 2}),
        ("doubled", DOUBLED, {"backend": "deepspeed"}),
        ("doubled", DOUBLED, {"backend": "deepspeed", "micro_batch": 2}),
        ("doubled", DOUBLED, {"backend": "megatron", "micro_batch": 2}),
        ("doubled", DOUBLED, {"pp": 2, "micro_batch": 2}),
        ("shifted", SHIFTED, {"pp": 2, "micro_batch": 2}),
    ],
    ids=str,
)
def test_a_planted_mistake_is_caught_and_named(
    tmp_path: Path, mistake: str, named: str, knobs: dict[str, Any]
) -> None:
    found = verified(tmp_path, mistake, **{"backend": "pytorch", **knobs})
    assert found.verdict is Verdict.WRONG, found
    assert named in found.sentence


def test_a_study_that_goes_on_from_another_framework_is_not_mixed_up() -> None:
    """Frameworks name weights differently, and a weight's name decides its value."""
    ours, megatrons = reference("pytorch", 2, 1), reference("megatron", 2, 1)
    assert ours.losses[0] != pytest.approx(megatrons.losses[0], rel=2e-4)


def test_sixteen_bits_hide_a_mistake_and_say_so(tmp_path: Path) -> None:
    found = verified(tmp_path, "unsynchronised", backend="pytorch", micro_batch=2, precision="bf16")
    assert UNSYNCHRONISED in found.blind_to


def test_a_random_forward_pass_is_noticed(tmp_path: Path) -> None:
    random = FactoryModel(factory="tests.runners.own_model:make_random", vocab=64)
    plan = ParallelPlan.from_dict({"backend": "pytorch", "precision": "fp32"})
    split = ReferenceSplit(data_parallel=1, micro_batch=1)
    (result,) = trained(
        plan,
        tmp_path,
        num_ranks=1,
        workload=replace(tiny_workload(), model=random),
        measurement=replace(STEPS, reference=split),
    )
    assert result["effective"]["is_deterministic"] is False
