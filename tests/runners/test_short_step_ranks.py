"""Real ranks run as many micro-batches as short steps have, and remain the launch that they are."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from runners.diagnosis import RankEnd, outcome_of_ranks
from tests.runners.bench_ranks import trained
from tests.tiny_job import tiny_workload
from tuner.launch import AdaptiveSteps, Measurement
from tuner.outcome import Measured, Source
from tuner.plan import ParallelPlan

pytestmark = pytest.mark.ranks

SHORT = Measurement(warmup_steps=1, steps=2, adaptive=AdaptiveSteps(max_steps=3), short_steps=True)


@cache
def first_loss(backend: str, num_samples: int) -> float:
    """Of the first samples, on one rank that runs them as whole steps."""
    plan = ParallelPlan.from_dict({"backend": backend, "precision": "fp32"})
    workload = replace(tiny_workload(), global_batch_sequences=num_samples)
    with TemporaryDirectory() as folder:
        return float(trained(plan, Path(folder), num_ranks=1, workload=workload)[0]["losses"][0])


@pytest.mark.parametrize(
    ("knobs", "counts"),
    [
        ({"backend": "pytorch", "pp": 2}, (2, 5, 32)),
        ({"backend": "pytorch", "pp": 2, "vpp": 2}, (2, 6, 32)),
        ({"backend": "deepspeed", "zero_stage": 1}, (1, 4, 16)),
        ({"backend": "deepspeed", "pp": 2}, (2, 5, 32)),
        ({"backend": "megatron", "pp": 2, "vpp": 2}, (2, 6, 32)),
    ],
    ids=str,
)
def test_short_steps_run_the_first_microbatches_of_each_global_batch(
    tmp_path: Path, knobs: dict[str, Any], counts: tuple[int, int, int]
) -> None:
    plan = ParallelPlan.from_dict({"precision": "fp32", **knobs})
    workload = replace(tiny_workload(), global_batch_sequences=32)
    results = trained(plan, tmp_path, num_ranks=2, workload=workload, measurement=SHORT)
    first = results[0]
    short = first["short_steps"]
    assert (short["low"], short["high"], short["full"]) == counts
    assert len(short["times_s"]) >= 4
    assert len(first["losses"]) == 2 * len(short["times_s"])
    own = "megatron" if plan.backend == "megatron" else "pytorch"
    num_samples = counts[0] * plan.data_parallel(2)
    assert first["losses"][0] == pytest.approx(first_loss(own, num_samples), rel=1e-4)
    assert first["effective"]["num_microbatches"] == counts[2], "it is the launch of full steps"
    ends = [
        RankEnd(rank=rank, report={"status": "ok", "result": r, "phase": "done"}, exit_code=0)
        for rank, r in enumerate(results)
    ]
    outcome = outcome_of_ranks(ends, timed_out=None)
    assert isinstance(outcome, Measured)
    assert outcome.source is Source.EXTRAPOLATED
    assert outcome.short_microbatches == counts
