"""Reads back what trials are launched with: for random legal plans, the plan imported is the plan.

300 plans of each framework on several workloads and clusters, seed 0, no GPU. Every other
plan has framework settings drawn at random. Prints how many came back as they were, and those that
did not.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from pathlib import Path

from runners.backends.launch import launch_for
from search_spaces.enumeration import search_space
from search_spaces.rule import Setting
from tests.some_settings import some_settings
from tuner.cli.found_cluster import found_cluster
from tuner.framework_settings.setting import SettingCase
from tuner.framework_settings.table import settled
from tuner.importing.formats import imported_plan
from tuner.job import Job, read_job
from tuner.launch import ENVIRONMENT_FILE, Measurement, Settings
from tuner.launch_files import write_launch_files
from tuner.plan import Backend, ParallelPlan

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


def came_back(case: SettingCase, asked: Settings, folder: Path) -> bool:
    """Whether the plan's launch files say it, and all its settings."""
    spec = launch_for(case.plan, case.workload, case.cluster, Measurement(), asked)
    write_launch_files(spec, folder)
    (folder / ENVIRONMENT_FILE).write_text(json.dumps(dict(spec.env)))
    found = imported_plan(folder, cluster=case.cluster, workload=case.workload)
    same = found.plan == case.plan and settled(case, found.settings) == settled(case, asked)
    if not same:
        print(f"differs: {case.plan} {asked}\n     is: {found.plan} {found.settings}")
    return same


def main() -> None:
    jobs = [read_job(EXAMPLES / name, found_cluster) for name in JOBS]
    print(f"{'framework':<10} {'plans':>6} {'equal':>6} {'settings':>9} {'a plan':>9}")
    for backend in Backend:
        equal, tried, settings, turns = 0, 0, 0, random.Random(0)
        started = time.perf_counter()
        for seed, job in enumerate(jobs):
            wanted = (PLANS_PER_BACKEND - tried) // (len(jobs) - seed)
            for plan in random_plans(job, backend, wanted, seed):
                case = SettingCase(plan=plan, workload=job.workload, cluster=job.cluster)
                asked = some_settings(case, turns) if tried % 2 else ()
                with tempfile.TemporaryDirectory() as folder:
                    equal += came_back(case, asked, Path(folder))
                tried += 1
                settings += len(asked)
        each_s = (time.perf_counter() - started) / max(1, tried)
        print(f"{backend:<10} {tried:>6} {equal:>6} {settings:>9} {each_s * 1e3:>6.1f} ms")


if __name__ == "__main__":
    main()
