"""Times the enumeration of all legal plans with every knob automatic.

Llama 3.1 405B on 8 and on 16,384 H100, three frameworks, with Transformer Engine in the stack. One
core, no GPU. Memory is the peak of the whole process, before anything else was imported.
"""

from __future__ import annotations

import resource
import statistics
import time
from dataclasses import replace
from pathlib import Path

from search_spaces.enumeration import search_space
from search_spaces.rule import Setting
from tuner.cli.found_cluster import found_cluster
from tuner.job import read_job

JOB = Path(__file__).parents[1] / "examples" / "llama-3.1-405b-16384xh100.yaml"
REPEATS = 20


def main() -> None:
    job = read_job(JOB, found_cluster)
    print(f"before enumerating: {_peak_mb():.0f} MB, of which transformers reading the model")
    print(f"{'GPUs':>8} {'combinations':>15} {'legal plans':>12} {'median':>10} {'peak':>8}")
    for num_nodes in (1, 2048):
        cluster = replace(job.cluster, num_nodes=num_nodes)
        setting = Setting(workload=job.workload, cluster=cluster, stack=job.stack)
        times = []
        for _ in range(REPEATS):
            started = time.process_time()
            space = search_space(setting, {})
            times.append(time.process_time() - started)
        print(
            f"{cluster.num_gpus:>8,} {space.num_combinations:>15,} {len(space.plans):>12,} "
            f"{statistics.median(times) * 1e3:>7.1f} ms {_peak_mb():>5.0f} MB"
        )


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
