"""Every DeepSpeed layout trains the same model: real ranks, real steps, equal losses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.runners.bench_ranks import trained
from tests.tiny_job import tiny_workload
from tuner.launch import Measurement
from tuner.model_shape import ParamCounts
from tuner.plan import ParallelPlan
from tuner.workload import HfModel, Workload

pytestmark = pytest.mark.ranks

THREE_STEPS = Measurement(warmup_steps=1, steps=2)


def _plan(**knobs: Any) -> ParallelPlan:
    return ParallelPlan.from_dict({"backend": "deepspeed", "precision": "fp32", **knobs})


def _losses(reports: list[dict[str, Any]]) -> list[float]:
    losses: list[float] = reports[0]["losses"]
    assert all(report["losses"] == pytest.approx(losses, rel=1e-6) for report in reports)
    return losses


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Losses of three steps on one rank, in fp32, all sequences in one micro-batch."""
    reports = trained(_plan(micro_batch=8), tmp_path_factory.mktemp("reference"), num_ranks=1)
    return _losses(reports)


LAYOUTS: tuple[tuple[int, dict[str, Any]], ...] = (
    (1, {"micro_batch": 2}),
    (1, {"recompute": "full", "micro_batch": 4}),
    (2, {"micro_batch": 2}),
    (2, {"zero_stage": 1, "micro_batch": 2}),
    (2, {"zero_stage": 2}),
    (2, {"zero_stage": 3, "micro_batch": 4}),
    (2, {"zero_stage": 3, "recompute": "full", "micro_batch": 2}),
    (2, {"micro_batch": 2, "recompute": "selective"}),
    (2, {"zero_stage": 3, "micro_batch": 2, "recompute": "selective"}),
    (2, {"tp": 2, "micro_batch": 4, "recompute": "selective"}),
    (2, {"pp": 2, "micro_batch": 2, "recompute": "selective"}),
    (2, {"tp": 2, "micro_batch": 4}),
    (2, {"pp": 2, "micro_batch": 2}),
    (2, {"pp": 2, "micro_batch": 4, "recompute": "full"}),
    (4, {"zero_stage": 3, "dp_replicate": 2}),
    (4, {"zero_stage": 1, "tp": 2, "micro_batch": 2}),
    (4, {"zero_stage": 2, "tp": 2, "recompute": "full"}),
    (4, {"zero_stage": 3, "tp": 2}),
    (4, {"zero_stage": 1, "pp": 2}),
    (4, {"pp": 2, "micro_batch": 2}),
    (4, {"pp": 4, "micro_batch": 2}),
)


@pytest.mark.parametrize(
    ("num_ranks", "knobs"), LAYOUTS, ids=[f"{n} ranks, {_plan(**k).label()}" for n, k in LAYOUTS]
)
def test_a_layout_trains_like_one_rank(
    tmp_path: Path, reference: list[float], num_ranks: int, knobs: dict[str, Any]
) -> None:
    reports = trained(_plan(**knobs), tmp_path, num_ranks=num_ranks, measurement=THREE_STEPS)
    losses = _losses(reports)
    assert losses == pytest.approx(reference, rel=1e-4)
    assert losses[2] < losses[1] < losses[0]
    asked = _plan(**knobs).to_dict()
    for report in reports:
        assert {name: report["effective"][name] for name in asked} == asked


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_buckets_of_the_size_of_the_model_train_alike(
    tmp_path: Path, reference: list[float], zero_stage: int
) -> None:
    plan, workload = _plan(zero_stage=zero_stage, micro_batch=2), _workload_of_its_own_size()
    reports = trained(plan, tmp_path, num_ranks=2, workload=workload)
    assert _losses(reports) == pytest.approx(reference, rel=1e-4)


def _workload_of_its_own_size() -> Workload:
    """Says how many parameters it has, which sizes the buckets; other tests have tiny ones."""
    workload = tiny_workload()
    assert isinstance(workload.model, HfModel)
    config = AutoConfig.for_model(**json.loads(workload.model.config_text))
    with torch.device("meta"):
        num_params = AutoModelForCausalLM.from_config(config).num_parameters()
    params = ParamCounts(embedding=0, head=0, layers=(), other=num_params)
    shape = replace(workload.model.shape, params=params)
    return replace(workload, model=replace(workload.model, shape=shape))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize(
    "knobs",
    [{}, {"zero_stage": 2}, {"zero_stage": 3}, {"pp": 2, "micro_batch": 2}, {"tp": 2}],
    ids=["zero0", "zero2", "zero3", "pp", "tp"],
)
def test_half_precision_trains_nearly_like_fp32(
    tmp_path: Path, reference: list[float], knobs: dict[str, Any], precision: str
) -> None:
    plan = _plan(**knobs, precision=precision)
    losses = _losses(trained(plan, tmp_path, num_ranks=2, measurement=THREE_STEPS))
    assert losses == pytest.approx(reference, rel=2e-2)
    assert losses[2] < losses[0]
    assert losses != reference
