"""Gradients of every layout are those of one rank: AdamW hides a wrong factor from the losses."""

from __future__ import annotations

import json
import multiprocessing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from runners.backends.pytorch_native import pytorch_launch
from tests.runners.bench_ranks import _free_port
from tests.runners.gradient_rank import write_gradient_norms
from tests.tiny_job import cpu_cluster, tiny_workload
from tuner.launch import Measurement
from tuner.plan import Backend, ParallelPlan, Precision
from tuner.study_folder import write_launch_files

pytestmark = pytest.mark.ranks


def gradient_norms(folder: Path, *, num_ranks: int, **knobs: Any) -> dict[str, float]:
    plan = ParallelPlan(backend=Backend.PYTORCH, precision=Precision.FP32, **knobs)
    spec = pytorch_launch(plan, tiny_workload(), cpu_cluster(num_ranks), Measurement())
    write_launch_files(spec, folder / "launch")
    context = multiprocessing.get_context("forkserver")
    shared = {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1"}
    port = str(_free_port())
    ranks = [
        context.Process(
            target=write_gradient_norms,
            args=(
                folder / "launch",
                folder,
                rank,
                {**shared, "MASTER_PORT": port, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            ),
            daemon=True,
        )
        for rank in range(num_ranks)
    ]
    for process in ranks:
        process.start()
    norms: dict[str, float] = {}
    for rank, process in enumerate(ranks):
        process.join(60)
        assert process.exitcode == 0, f"rank {rank} of {plan.label()} did not end well"
        norms |= json.loads((folder / f"gradients-{rank}.json").read_text())
    return norms


@cache
def one_rank_norms() -> dict[str, float]:
    with TemporaryDirectory() as folder:
        return gradient_norms(Path(folder), num_ranks=1, micro_batch=8)


@pytest.mark.parametrize(
    ("num_ranks", "knobs"),
    [
        (2, {"micro_batch": 2}),
        (4, {"tp": 2, "micro_batch": 2, "sequence_parallel": True}),
        (4, {"zero_stage": 3, "dp_replicate": 2}),
        (4, {"tp": 2, "zero_stage": 3, "micro_batch": 2}),
        (4, {"pp": 2, "vpp": 2, "zero_stage": 2}),
    ],
    ids=str,
)
def test_gradients_are_those_of_one_rank(
    num_ranks: int, knobs: dict[str, Any], tmp_path: Path
) -> None:
    norms = gradient_norms(tmp_path, num_ranks=num_ranks, **knobs)
    assert norms == pytest.approx(one_rank_norms(), rel=1e-4)
