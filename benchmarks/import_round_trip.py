"""Reads back what trials are launched with: for random legal plans, the plan imported is the plan.

300 plans of each framework on several workloads and clusters, seed 0, no GPU. Prints how many came
back as they were, and the first that did not.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

from runners.backends.launch import launch_for
from search_spaces.enumeration import search_space
from search_spaces.rule import Setting
from tuner.cli.found_cluster import found_cluster
from tuner.importing.formats import imported_plan
from tuner.job import Job, read_job
from tuner.launch import Measurement
from tuner.plan import Backend, ParallelPlan
from tuner.study_folder import write_launch_files

EXAMPLES = Path(__file__).parents[1] / "examples"
JOBS = ("tiny-cpu.yaml", "llama-3.1-405b-16384xh100.yaml", "llama-3-8b-8xh100.yaml")
PLANS_PER_BACKEND = 300


def random_plans(job: Job, backend: Backend, number: int, seed: int) -> list[ParallelPlan]:
    """Legal plans, each at most once; every knob automatic."""
    setting = Setting(workload=job.workload, cluster=job.cluster, stack=job.stack)
    plans = search_space(setting, {"backend": (str(backend),)}).plans
    rows = range(len(plans))
    chosen = random.Random(seed).sample(rows, min(number, len(rows)))
    return [plans[row] for row in chosen]


def came_back(plan: ParallelPlan, job: Job, folder: Path) -> ParallelPlan:
    """What the plan's launch files say."""
    write_launch_files(launch_for(plan, job.workload, job.cluster, Measurement()), folder)
    return imported_plan(folder, cluster=job.cluster, workload=job.workload).plan


def main() -> None:
    jobs = [read_job(EXAMPLES / name, found_cluster) for name in JOBS]
    print(f"{'framework':<10} {'plans':>6} {'equal':>6} {'a plan':>9}")
    for backend in Backend:
        equal, tried, started = 0, 0, time.perf_counter()
        for seed, job in enumerate(jobs):
            wanted = (PLANS_PER_BACKEND - tried) // (len(jobs) - seed)
            for plan in random_plans(job, backend, wanted, seed):
                with tempfile.TemporaryDirectory() as folder:
                    back = came_back(plan, job, Path(folder))
                tried += 1
                equal += back == plan
                if back != plan:
                    print(f"differs: {plan}\n     is: {back}")
        each_s = (time.perf_counter() - started) / max(1, tried)
        print(f"{backend:<10} {tried:>6} {equal:>6} {each_s * 1e3:>6.1f} ms")


if __name__ == "__main__":
    main()
