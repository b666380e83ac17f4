"""Every layout of PyTorch's own parallelism trains as one rank does."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.runners.bench_ranks import trained
from tests.tiny_job import tiny_workload
from tuner.plan import Backend, ParallelPlan, Precision, Recompute
from tuner.workload import Workload

pytestmark = pytest.mark.ranks

FULL, SELECTIVE = Recompute.FULL, Recompute.SELECTIVE


def pytorch_plan(**knobs: Any) -> ParallelPlan:
    return ParallelPlan(**{"backend": Backend.PYTORCH, "precision": Precision.FP32} | knobs)


@cache
def one_rank_losses(workload: Workload | None = None) -> list[float]:
    """All sequences of a step in one micro-batch."""
    workload = workload or tiny_workload()
    with TemporaryDirectory() as folder:
        plan = pytorch_plan(micro_batch=workload.global_batch_sequences)
        reports = trained(plan, Path(folder), num_ranks=1, workload=workload)
    return list(reports[0]["losses"])


@pytest.mark.parametrize(
    ("num_ranks", "knobs"),
    [
        (2, {"micro_batch": 2}),
        (2, {"zero_stage": 1, "micro_batch": 1}),
        (2, {"zero_stage": 2, "micro_batch": 2}),
        (2, {"zero_stage": 3, "micro_batch": 4}),
        (2, {"zero_stage": 3, "micro_batch": 2, "recompute": SELECTIVE}),
        (2, {"micro_batch": 2, "recompute": FULL}),
        (2, {"tp": 2, "micro_batch": 4, "recompute": SELECTIVE}),
        (2, {"tp": 2, "micro_batch": 2, "sequence_parallel": True}),
        (2, {"pp": 2, "micro_batch": 2}),
        (2, {"pp": 2, "vpp": 2, "micro_batch": 2, "recompute": FULL}),
        (4, {"dp_replicate": 2, "zero_stage": 3}),
        (4, {"tp": 2, "micro_batch": 2}),
        (4, {"tp": 2, "zero_stage": 3, "micro_batch": 2}),
        (4, {"tp": 2, "zero_stage": 2, "sequence_parallel": True, "recompute": FULL}),
        (4, {"pp": 2}),
        (4, {"pp": 2, "zero_stage": 2}),
        (4, {"pp": 2, "zero_stage": 3, "vpp": 2}),
        (4, {"tp": 2, "pp": 2, "micro_batch": 2, "sequence_parallel": True}),
    ],
    ids=str,
)
def test_the_losses_are_those_of_one_rank(
    num_ranks: int, knobs: dict[str, Any], tmp_path: Path
) -> None:
    plan = pytorch_plan(**knobs)
    reports = trained(plan, tmp_path, num_ranks=num_ranks)
    losses = reports[0]["losses"]
    assert losses == pytest.approx(one_rank_losses(), rel=1e-4)
    assert losses[0] > losses[1] > losses[2]
    for report in reports:
        assert report["losses"] == losses
        effective = report["effective"]
        assert {name: effective[name] for name in plan.to_dict()} == plan.to_dict()


@pytest.mark.parametrize(
    ("precision", "knobs"),
    [
        (Precision.BF16, {}),
        (Precision.FP16, {"zero_stage": 1}),
        (Precision.BF16, {"zero_stage": 3}),
        (Precision.FP16, {"zero_stage": 3}),
        (Precision.FP16, {"tp": 2, "sequence_parallel": True}),
        (Precision.FP16, {"pp": 2}),
    ],
    ids=str,
)
def test_half_precision_trains_nearly_alike(
    precision: Precision, knobs: dict[str, Any], tmp_path: Path
) -> None:
    plan = pytorch_plan(precision=precision, micro_batch=2, **knobs)
    report = trained(plan, tmp_path, num_ranks=2)[0]
    losses = report["losses"]
    assert losses == pytest.approx(one_rank_losses(), rel=2e-2)
    assert losses[0] > losses[2]
    assert report["effective"]["precision"] == str(precision)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "qwen3", "tie_word_embeddings": True, "head_dim": 16},
        {"model_type": "qwen2"},
        {"model_type": "mistral"},
    ],
    ids=lambda changes: changes["model_type"],
)
def test_other_families_split_as_llama_does(changes: dict[str, Any], tmp_path: Path) -> None:
    workload = tiny_workload(**changes)
    plan = pytorch_plan(tp=2, zero_stage=2, micro_batch=4, sequence_parallel=True)
    split = trained(plan, tmp_path, num_ranks=2, workload=workload)[0]["losses"]
    assert split == pytest.approx(one_rank_losses(workload), rel=1e-4)


@pytest.mark.parametrize(
    ("config", "num_ranks", "knobs"),
    [
        ({"num_hidden_layers": 7}, 2, {"pp": 2, "micro_batch": 2}),
        ({"num_hidden_layers": 7}, 2, {"pp": 2, "vpp": 3, "micro_batch": 2}),
        ({}, 2, {"pp": 2, "vpp": 2, "micro_batch": 8}),
        (
            {"attention_bias": True, "mlp_bias": True, "vocab_size": 509},
            4,
            {"tp": 2, "zero_stage": 3, "micro_batch": 2, "sequence_parallel": True},
        ),
        (
            {"tie_word_embeddings": True, "vocab_size": 509},
            4,
            {"tp": 2, "zero_stage": 3, "micro_batch": 2},
        ),
    ],
    ids=[
        "uneven stages",
        "uneven interleaved stages",
        "fewer micro-batches than stages",
        "biases and an odd vocabulary",
        "tied odd vocabulary",
    ],
)
def test_what_no_rule_refuses_trains_as_one_rank_does(
    config: dict[str, Any], num_ranks: int, knobs: dict[str, Any], tmp_path: Path
) -> None:
    workload = tiny_workload(**config)
    split = trained(pytorch_plan(**knobs), tmp_path, num_ranks=num_ranks, workload=workload)
    assert split[0]["losses"] == pytest.approx(one_rank_losses(workload), rel=1e-4)


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
@pytest.mark.parametrize("family", ["mixtral", "jetmoe"])
def test_experts_that_no_token_visits_keep_no_rank_waiting(
    family: str, zero_stage: int, tmp_path: Path
) -> None:
    """Two ranks with four tokens each visit other experts of 32, in each of three steps."""
    workload = dataclasses.replace(
        tiny_workload(
            model_type=family,
            architectures=None,
            num_local_experts=32,
            num_experts_per_tok=2,
            kv_channels=16,
        ),
        seq_len=4,
        global_batch_sequences=2,
    )
    plan = pytorch_plan(zero_stage=zero_stage)
    two = trained(plan, tmp_path, num_ranks=2, workload=workload, limit_s=40)
    assert two[0]["losses"] == pytest.approx(one_rank_losses(workload), rel=1e-4)
