"""Starts training ranks for tests: forked from a server that has imported the frameworks once.

The product starts each rank as a fresh process (and has its own tests); here many layouts are
tried, and importing three frameworks on four ranks each time would take minutes.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runners.backends.launch import launch_for
from runners.rank_processes import free_port
from tests.runners.forked_rank import run_forked_rank
from tests.tiny_job import cpu_cluster, tiny_workload
from tuner.launch import Measurement, Settings
from tuner.launch_files import write_launch_files
from tuner.plan import ParallelPlan
from tuner.workload import Workload

os.environ["OMP_NUM_THREADS"] = "1"
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "runners.bench.rank",
        "runners.bench.pytorch_training",
        "runners.bench.deepspeed_training",
        "runners.bench.megatron_training",
    ]
)


def trained(
    plan: ParallelPlan,
    folder: Path,
    *,
    num_ranks: int,
    workload: Workload | None = None,
    measurement: Measurement | None = None,
    limit_s: float = 90,
    mistake: str = "",
    settings: Settings = (),
    rank_program: Callable[..., None] = run_forked_rank,
) -> list[dict[str, Any]]:
    """The rank reports of a launch of this plan, by rank; fails with the log of a bad rank."""
    spec = launch_for(
        plan,
        workload or tiny_workload(),
        cpu_cluster(num_ranks),
        measurement or Measurement(warmup_steps=1, steps=2),
        settings,
    )
    launch = folder / "launch"
    write_launch_files(spec, launch)
    port = str(free_port("127.0.0.1"))
    ranks: list[Any] = []
    for rank in range(num_ranks):
        env = {
            **dict(spec.env),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(num_ranks),
            "LOCAL_WORLD_SIZE": str(num_ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        ranks.append(
            _CONTEXT.Process(
                target=rank_program, args=(launch, folder, rank, env, mistake), daemon=True
            )
        )
    for process in ranks:
        process.start()
    deadline = time.monotonic() + limit_s
    try:
        for process in ranks:
            process.join(max(0.0, deadline - time.monotonic()))
    finally:
        for process in ranks:
            process.kill()
            process.join()
    reports: list[dict[str, Any]] = []
    for rank in range(num_ranks):
        path = folder / f"rank-{rank}.json"
        log = (folder / f"rank-{rank}.log").read_text()[-6000:]
        report: dict[str, Any] = {"status": "never started"}
        if path.exists():
            report = json.loads(path.read_text())
        assert report["status"] == "ok", f"rank {rank} of {plan.label()}: {report}\n{log}"
        reports.append(report["result"])
    return reports
