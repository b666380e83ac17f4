"""Overhead of a trial, warm and by hand: `python -m benchmarks.runtime [--runner ray]`.

Each plan runs as a trial of a study and, right afterwards, the same launch files by the framework's
own command (`torchrun`; `deepspeed` for DeepSpeed). Overhead is all that is not building the model
and taking steps: wall time less the time from the first rank's model to the last rank's result.
Prints each, the medians and their ratio, and the peak memory that both ways have measured; exit
code 1 where the median is above 1.5 s or above a tenth of the command's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners.rank_processes import free_port
from tests.tiny_job import cpu_cluster, tiny_workload
from tuner.cli.kept_study import RunnerChoice, runner_named
from tuner.launch import BENCH_MODULE, ENVIRONMENT_FILE, Measurement
from tuner.outcome import Measured, Phase
from tuner.plan import Backend, ParallelPlan
from tuner.runner import Runner, Slots

MOST_S = 1.5
MOST_RATIO = 0.1
NUM_RANKS = 2
LIMITS_S = dict.fromkeys(Phase, 120.0)
COMMAND_LIMIT_S = 300
KNOBS: tuple[dict[str, Any], ...] = (
    {"backend": "pytorch"},
    {"backend": "deepspeed", "zero_stage": 1},
    {"backend": "megatron", "tp": 2},
    {"backend": "pytorch", "zero_stage": 3},
    {"backend": "deepspeed", "zero_stage": 3},
    {"backend": "megatron", "pp": 2, "micro_batch": 2},
    {"backend": "pytorch", "tp": 2, "micro_batch": 2},
    {"backend": "deepspeed", "pp": 2, "micro_batch": 2},
    {"backend": "megatron", "zero_stage": 1, "micro_batch": 4},
    {"backend": "pytorch", "pp": 2, "micro_batch": 2},
)
"""Frameworks in turns; run again from the front with another micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One way of carrying a plan out."""

    wall_s: float
    training_s: float
    peak_bytes: int
    phases_s: dict[str, float]
    """Since the beginning of the wall time, of the last rank to enter."""

    @property
    def overhead_s(self) -> float:
        return self.wall_s - self.training_s


def plans(count: int) -> Iterator[ParallelPlan]:
    for number in range(count):
        again = {"micro_batch": 1 + number // len(KNOBS)} if number >= len(KNOBS) else {}
        knobs = {"precision": "fp32", **KNOBS[number % len(KNOBS)], **again}
        yield ParallelPlan.from_dict(knobs)


def run_of(folder: Path, began: float, wall_s: float) -> Run:
    reports = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(NUM_RANKS)]
    entered = {phase: [report["entered"][phase] for report in reports] for phase in Phase}
    return Run(
        wall_s=wall_s,
        training_s=max(entered[Phase.DONE]) - min(entered[Phase.MODEL]),
        peak_bytes=max(report["result"]["peak_memory_bytes"] for report in reports),
        phases_s={str(phase): max(times) - began for phase, times in entered.items()},
    )


def as_a_trial(runner: Runner, plan: ParallelPlan, folder: Path) -> Run:
    began, clock = time.time(), time.perf_counter()
    outcome = runner.run(plan, folder, lambda _: None)
    wall_s = time.perf_counter() - clock
    if not isinstance(outcome, Measured):
        raise SystemExit(f"{plan.label()} did not train: {outcome}")
    return run_of(folder, began, wall_s)


def by_hand(plan: ParallelPlan, launch: Path, results: Path) -> Run:
    env = {**os.environ, **json.loads((launch / ENVIRONMENT_FILE).read_text())}
    bench = (BENCH_MODULE, "--launch-folder", str(launch), "--results", str(results))
    scripts = Path(sys.executable).parent
    port = str(free_port("127.0.0.1"))
    if plan.backend is Backend.DEEPSPEED:
        command = [str(scripts / "deepspeed"), f"--num_gpus={NUM_RANKS}", f"--master_port={port}"]
        command += ["--module", "--no_local_rank", *bench]
    else:
        command = [str(scripts / "torchrun"), f"--nproc-per-node={NUM_RANKS}"]
        command += [f"--master-port={port}", "-m", *bench]
    results.mkdir()
    began, clock = time.time(), time.perf_counter()
    ended = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=False
    )
    wall_s = time.perf_counter() - clock
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {ended.stderr[-2000:]}")
    return run_of(results, began, wall_s)


@contextmanager
def started_runner(name: str, *, warm: bool) -> Iterator[Runner]:
    measurement = Measurement(warmup_steps=1, steps=2)
    choice = RunnerChoice(name=name, slots=Slots(warm=warm))
    runner = runner_named(choice, tiny_workload(), cpu_cluster(NUM_RANKS), measurement, LIMITS_S)
    try:
        yield runner
    finally:
        runner.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--runner", choices=("local", "ray"), default="local")
    parser.add_argument("--no-warm-pool", action="store_true")
    options = parser.parse_args()
    pairs: list[tuple[Run, Run]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        started_runner(options.runner, warm=not options.no_warm_pool) as runner,
    ):
        for number, plan in enumerate(plans(options.trials)):
            trial = Path(folder) / str(number)
            ours = as_a_trial(runner, plan, trial)
            theirs = by_hand(plan, trial / "launch", Path(folder) / f"{number}-by-hand")
            pairs.append((ours, theirs))
            print(
                f"{number + 1:2d} {plan.label():40s} overhead {ours.overhead_s:6.2f} s as a trial, "
                f"{theirs.overhead_s:6.2f} s by hand; peak {ours.peak_bytes / 2**20:.1f} and "
                f"{theirs.peak_bytes / 2**20:.1f} MiB",
                flush=True,
            )
    return judged(pairs)


def judged(pairs: list[tuple[Run, Run]]) -> int:
    for phase in (Phase.START, Phase.PROCESS_GROUP, Phase.MODEL):
        ours_s, theirs_s = (
            statistics.median(run.phases_s[phase] for run in runs)
            for runs in zip(*pairs, strict=True)
        )
        print(f"until {phase}: {ours_s:.2f} s as a trial, {theirs_s:.2f} s by hand")
    ours_s, theirs_s = (
        statistics.median(run.overhead_s for run in runs) for runs in zip(*pairs, strict=True)
    )
    later_s = [ours.overhead_s for ours, _ in pairs[len(Backend) :]]
    if later_s:
        print(f"of all but the first of each framework: {statistics.median(later_s):.2f} s")
    peaks = [ours.peak_bytes / theirs.peak_bytes - 1 for ours, theirs in pairs]
    ratio = ours_s / theirs_s
    print(f"peak memory against by hand: {min(peaks):+.1%} to {max(peaks):+.1%}")
    print(f"first trial of each framework, with its imports, included; median of {len(pairs)}:")
    print(f"overhead {ours_s:.2f} s as a trial (must be <= {MOST_S} s)")
    print(f"overhead {theirs_s:.2f} s by hand, ratio {ratio:.3f} (must be <= {MOST_RATIO})")
    return 0 if ours_s <= MOST_S and ratio <= MOST_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
