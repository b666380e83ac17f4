"""What the driver of a study costs and survives: `python -m benchmarks.driver kills | thousand`.

`kills` kills the driver with SIGKILL at random moments and runs the same command again, until so
many kills are done; every study must end with the trials of one that was left alone, none lost and
none that was kept run again, and nothing may be left running. With the simulated runner as the
default, `--runner local` with real ranks, `--runner ray` with a Ray of the driver's own.
`thousand` runs 1,000 simulated trials, 8 at a time, and prints the driver's own time a trial and
its peak memory. No GPU is needed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# As the command line has it, before anything imports NumPy.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import psutil
import yaml

from runners.simulated_runner import SimulatedRunner
from tests.tiny_job import LLAMA_CONFIG
from tuner.cli.plan_prior import job_sampler
from tuner.cli.setting import Planned, planned
from tuner.launch import LaunchSpec
from tuner.outcome import Outcome
from tuner.plan import ParallelPlan
from tuner.runner import PhaseListener, Runner
from tuner.samplers.plan_sampler import PlanSampler
from tuner.study import Budget, Study, StudyListener
from tuner.study_folder import StudyFolder

_TOKEN = "PARATUNE_BENCHMARK_TOKEN"
_ORPHAN_LIMIT_S = 5.0
_RUN_LIMIT_S = 600.0
_SMALL_JOB: Mapping[str, Any] = {
    "workload": {"model": "config.json", "seq_len": 32, "global_batch": 8},
    "cluster": {"gpu": "cpu", "gpus_per_node": 4},
    "search": {"precision": ["fp32"], "micro_batch": [1, 2, 4]},
    "memory": {"limit": "1GiB"},
    "measure": {"warmup_steps": 1, "steps": 2, "max_steps": 3, "finals": 0},
}
_LARGE_JOB: Mapping[str, Any] = {
    "workload": {"model": "llama-3-8b", "seq_len": 8192, "global_batch": 128},
    "cluster": {"gpu": "h100-sxm-80gb", "gpus_per_node": 8},
    "search": {"precision": ["bf16"]},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    kills = parts.add_parser("kills")
    kills.add_argument("--kills", type=int, default=40)
    kills.add_argument("--trials", type=int, default=30)
    kills.add_argument("--runner", choices=("simulated", "local", "ray"), default="simulated")
    kills.add_argument("--sampler", default="plan", help="random with real ranks")
    kills.add_argument("--seed", type=int, default=0, help="of the moments")
    kills.add_argument("--minutes", type=float, default=60.0, help="after which nothing is killed")
    thousand = parts.add_parser("thousand")
    thousand.add_argument("--trials", type=int, default=1000)
    thousand.add_argument("--parallel", type=int, default=8)
    thousand.add_argument("--sampler", choices=("random", "plan"), help="both, one after the other")
    options = parser.parse_args()
    # A short path: Ray's sockets lie deep in it, and a path may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="pt-", dir="/tmp") as temporary:
        os.environ["RAY_TMPDIR"] = temporary  # a Ray that is killed leaves its logs
        if options.part == "kills":
            return _kills(Path(temporary), options)
        return _thousand(Path(temporary), options)


def _job(folder: Path, values: Mapping[str, Any], *, gpus: int | None = None) -> Path:
    (folder / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    job = dict(values)
    if gpus is not None:
        job["cluster"] = {**values["cluster"], "gpus_per_node": gpus}
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


# --- kills


@dataclass(slots=True)
class _Kills:
    """What was seen so far."""

    job: Path
    runner: str
    sampler: str
    trials: int
    moments: random.Random
    kills: int
    """So many are wanted."""
    deadline_s: float
    """By the monotonic clock."""
    num_kills: int = 0
    num_in_flight: int = 0
    """Trials that were running when the driver was killed."""
    num_studies: int = 0
    num_again: int = 0
    """Trials that were started although they were kept already."""
    num_orphans: int = 0
    differing: list[int] = field(default_factory=list)
    """Seeds of studies that ended with other trials than undisturbed."""
    resumed_in_s: list[float] = field(default_factory=list)

    @property
    def is_to_kill(self) -> bool:
        """Whether another kill is wanted, and there is time for it."""
        return self.num_kills < self.kills and time.monotonic() < self.deadline_s

    def command(self, folder: Path, seed: int) -> list[str]:
        return [
            *(sys.executable, "-m", "tuner", "tune", str(self.job), "--study", str(folder)),
            *("--runner", self.runner, "--sampler", self.sampler, "--trials", str(self.trials)),
            *("--seed", str(seed), "--no-verify"),
        ]


def _kills(work: Path, options: argparse.Namespace) -> int:
    real = options.runner != "simulated"
    seen = _Kills(
        job=_job(work, _SMALL_JOB, gpus=2 if real else None),
        runner=options.runner,
        sampler="random" if real and options.sampler == "plan" else options.sampler,
        trials=options.trials,
        moments=random.Random(options.seed),
        kills=options.kills,
        deadline_s=time.monotonic() + 60 * options.minutes,
    )
    for seed in itertools.count():
        if not seen.is_to_kill:
            break
        # Real ranks measure other times in every run: the plans alone can be compared.
        undisturbed = _plain_run(seen, work / f"undisturbed-{seed}", seed)
        disturbed = _killed_study(seen, work / f"killed-{seed}", seed)
        if undisturbed != disturbed:
            seen.differing.append(seed)
        seen.num_studies += 1
        print(f"study {seed}: {len(disturbed)} trials, {seen.num_kills} kills so far", flush=True)
    return _say_kills(seen)


def _plain_run(seen: _Kills, folder: Path, seed: int) -> list[Any]:
    subprocess.run(
        seen.command(folder, seed), check=True, capture_output=True, timeout=_RUN_LIMIT_S
    )
    return _kept(folder, seen.runner)


def _kept(folder: Path, runner: str) -> list[Any]:
    """Number, plan and outcome of the trials; of real ones without their times."""
    found = []
    for path in sorted(folder.glob("trials/*/trial.json")):
        trial = json.loads(path.read_text())
        outcome = trial["outcome"]
        found.append((trial["number"], trial["plan"], outcome if runner == "simulated" else None))
    return found


def _killed_study(seen: _Kills, folder: Path, seed: int) -> list[Any]:
    while True:
        before = len(list(folder.glob("trials/*/trial.json")))
        kept_plans = [json.dumps(plan) for _, plan, _ in _kept(folder, "local")]
        log, done = _one_run(seen, folder, seed, before)
        _note_starts(seen, folder, log, kept_plans, before)
        if done:
            return _kept(folder, seen.runner)


def _one_run(seen: _Kills, folder: Path, seed: int, before: int) -> tuple[str, bool]:
    """Runs the command, and kills it after a few trials and a random moment more."""
    token = uuid.uuid4().hex
    log = folder.with_suffix(".log")
    with log.open("wb") as file:
        driver = subprocess.Popen(
            seen.command(folder, seed),
            stdout=subprocess.DEVNULL,
            stderr=file,
            env={**os.environ, _TOKEN: token},
        )
        try:
            if seen.is_to_kill:
                _wait_for_moment(seen, folder, driver, before)
            else:
                driver.wait(_RUN_LIMIT_S)
            killed = driver.poll() is None
            if killed:
                driver.send_signal(signal.SIGKILL)
                seen.num_kills += 1
            code = driver.wait(_RUN_LIMIT_S)
        finally:
            driver.kill()
    seen.num_orphans += _orphans(token)
    if not killed and code != 0:
        raise SystemExit(f"the driver ended with {code}: {log.read_text()[-2000:]}")
    return log.read_text(), not killed


def _wait_for_moment(
    seen: _Kills, folder: Path, driver: subprocess.Popen[bytes], before: int
) -> None:
    """Between the first touch of the folder and some trials later, at any point of a trial."""
    real = seen.runner != "simulated"
    more = seen.moments.choice((0, 0, 1) if real else (0, 0, 1, 1, 2))
    started = time.monotonic()
    while driver.poll() is None and time.monotonic() - started < _RUN_LIMIT_S:
        here = (folder / "lock").exists() and (folder / "lock").read_text() == str(driver.pid)
        if here and len(list(folder.glob("trials/*/trial.json"))) >= before + more:
            break
        time.sleep(0.002)
    seen.resumed_in_s.append(time.monotonic() - started)
    time.sleep(seen.moments.uniform(0, 6.0 if real else 0.3))


def _note_starts(
    seen: _Kills, folder: Path, log: str, kept_plans: Sequence[str], before: int
) -> None:
    """From the lines `trial 2 (3 of 30)  LABEL`: nothing that was kept may be started again."""
    started = [int(number) for number in re.findall(r"^trial (\d+) \(", log, re.MULTILINE)]
    now = {number for number, _, _ in _kept(folder, "local")}
    seen.num_in_flight += sum(number not in now for number in started)
    plans = [json.dumps(plan) for _, plan, _ in _kept(folder, "local")]
    twice = sum(count - 1 for count in Counter(plans).values())
    again = sum(number < before for number in started)
    lost = sum(plan not in plans for plan in kept_plans)
    seen.num_again += twice + again + lost


def _orphans(token: str) -> int:
    """Processes of a dead driver that are still there a while later."""
    deadline = time.monotonic() + _ORPHAN_LIMIT_S
    while left := _with_token(token):
        if time.monotonic() > deadline:
            for process in left:
                print(f"left running: {process.pid} {' '.join(process.cmdline())[:100]}")
                process.kill()
            return len(left)
        time.sleep(0.05)
    return 0


def _with_token(token: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(_TOKEN) == token:
                found.append(process)
        except psutil.Error:
            continue
    return found


def _say_kills(seen: _Kills) -> int:
    resumed = sorted(seen.resumed_in_s)
    print(
        f"{seen.num_kills} kills -9 of the driver ({seen.runner} runner, --sampler {seen.sampler})"
    )
    print(f"over {seen.num_studies} studies of {seen.trials} trials, each resumed by its command")
    print(f"trials in flight that were run again: {seen.num_in_flight}")
    print(f"kept trials lost or run twice: {seen.num_again}")
    print(f"studies that ended with other trials than undisturbed: {len(seen.differing)}")
    print(f"processes left running: {seen.num_orphans}")
    print(f"seconds from start until trials go on (median): {resumed[len(resumed) // 2]:.1f}")
    good = not (seen.num_again or seen.differing or seen.num_orphans)
    print("OK" if good else "NOT OK")
    return 0 if good else 1


# --- thousand


class _ClockedRunner:
    """A runner whose own work is not the driver's."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._lock = threading.Lock()
        self.cpu_s = 0.0

    @property
    def num_slots(self) -> int:
        return self._runner.num_slots

    def describe(self, plan: ParallelPlan) -> LaunchSpec:
        return self._runner.describe(plan)

    def run(self, plan: ParallelPlan, folder: Path, on_phase: PhaseListener) -> Outcome:
        started = time.thread_time()
        outcome = self._runner.run(plan, folder, on_phase)
        with self._lock:
            self.cpu_s += time.thread_time() - started
        return outcome

    def stop(self) -> None:
        self._runner.stop()

    def close(self) -> None:
        self._runner.close()


class _Tireless(PlanSampler):
    """Goes on although nothing is expected to gain: there are 1,000 trials to be had."""

    def stop_reason(self, study: Any) -> str | None:
        reason = super().stop_reason(study)
        return reason if reason is not None and "every legal plan" in reason else None


class _Laps(StudyListener):
    """When each trial ended, in seconds of the process's own work."""

    def __init__(self, runner: _ClockedRunner) -> None:
        self._runner = runner
        self.cpu_s: list[float] = []

    def trial_ended(self, trial: Any, trials: Any) -> None:
        self.cpu_s.append(time.process_time() - self._runner.cpu_s)


def _thousand(work: Path, options: argparse.Namespace) -> int:
    if options.sampler is None:  # each in a process of its own, for its own memory
        again = [sys.executable, "-m", "benchmarks.driver", *sys.argv[1:], "--sampler"]
        ends = [subprocess.run([*again, name], check=False) for name in ("random", "plan")]
        return max(end.returncode for end in ends)
    job = planned(_job(work, _LARGE_JOB), None)
    return 0 if _thousand_with(options.sampler, job, work / "study", options) else 1


def _thousand_with(sampler: str, job: Planned, path: Path, options: argparse.Namespace) -> bool:
    folder = StudyFolder(path)
    folder.create()
    work = job.job
    runner = _ClockedRunner(SimulatedRunner(work.workload, work.cluster, work.measurement))
    chosen = job_sampler(job, sampler, seed=0)
    if isinstance(chosen, PlanSampler):
        chosen.__class__ = _Tireless
    study = Study(
        space=job.space, runner=runner, folder=folder, sampler=chosen, parallel=options.parallel
    )
    laps = _Laps(runner)
    started, cpu = time.perf_counter(), time.process_time()
    end = study.run(Budget(trials=options.trials), laps)
    wall_s = time.perf_counter() - started
    own_s = time.process_time() - cpu - runner.cpu_s
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    done = len(end.trials)
    each_s = own_s / done
    tenth = max(1, done // 10)
    first, last = laps.cpu_s[tenth] - laps.cpu_s[0], laps.cpu_s[-1] - laps.cpu_s[-1 - tenth]
    good = done == options.trials and each_s < 0.02 and peak_bytes < 400e6
    print(
        f"--sampler {sampler}: {done} of {len(job.space.plans)} plans tried, {options.parallel} at "
        f"a time: driver {1e3 * each_s:.1f} ms a trial (first tenth {1e3 * first / tenth:.1f}, "
        f"last {1e3 * last / tenth:.1f}), wall {1e3 * wall_s / done:.1f} ms, peak memory "
        f"{peak_bytes / 1e6:.0f} MB; {'OK' if good else 'NOT OK'} (20 ms, 400 MB)",
        flush=True,
    )
    return good


if __name__ == "__main__":
    sys.exit(main())
