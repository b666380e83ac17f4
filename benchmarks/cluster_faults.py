"""What becomes of `paratune tune` when Ray, or the driver, fails: ``cluster_faults.py [NAME ...]``.

Each scenario starts a Ray of two nodes on this machine and runs the command on it:
head: the head node is killed in a trial; the driver says so in one sentence and ends, and the same
command on a Ray that is started anew goes on. gcs: the same, of the head's GCS alone.
driver: kill -9 of the driver; its ranks and supervisors are gone soon, the same command goes on.
busy: another job has the nodes; the driver says that it waits, and goes on when it has them.
pair: two drivers on one Ray at a time.
Prints a row for each; exit code 1 where something did not end as it must.
Run from the root of a checkout: ``python -m benchmarks.cluster_faults``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.faults import job_file, rank_reports, two_nodes
from tests.ray_nodes import TwoNodes
from tuner.launch import BENCH_MODULE

NUM_TRIALS = 3
STUDY_LIMIT_S = 420.0
HEAD_LIMIT_S = 45.0
"""To notice (5 s of silence), to give Ray's own calls a chance to end, and to say it."""
DRIVER_LIMIT_S = 15.0
"""For ranks and supervisors to follow a driver that was killed."""
_POLL_S = 0.1
_HOLDER = """
import sys, time, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")

@ray.remote(num_cpus=int(sys.argv[2]), scheduling_strategy="SPREAD")
class Holder:
    def here(self):
        return 1

holders = [Holder.remote() for _ in range(2)]
ray.get([holder.here.remote() for holder in holders], timeout=120)
print("held", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a scenario went."""

    good: bool
    seconds: float
    said: str


class Missed(Exception):
    """What a scenario waits for did not happen."""


class Tune:
    """`paratune tune` as a process, its output in a file; killed where it outlives its block."""

    def __init__(self, cluster: TwoNodes, job: Path, study: Path) -> None:
        self.study = study
        self.log = study.with_suffix(f".{time.monotonic_ns()}.log")
        command = [sys.executable, "-m", "tuner", "tune", str(job), "--study", str(study)]
        command += ["--trials", str(NUM_TRIALS), "--sampler", "random", "--no-verify"]
        command += ["--ray-address", cluster.address]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **cluster.client_env},
                start_new_session=True,
            )

    def __enter__(self) -> Tune:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def wait_until(self, happened: Callable[[], bool], what: str) -> None:
        """Until it happens, which is while the command runs."""
        deadline = time.monotonic() + STUDY_LIMIT_S
        while not happened():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Missed(f"{what} did not happen: {self.said()[-600:]}")
            time.sleep(_POLL_S)

    @property
    def num_trials(self) -> int:
        """That are kept."""
        return len(list(self.study.glob("trials/*/trial.json")))

    def said(self) -> str:
        """All that it printed."""
        return self.log.read_text(errors="replace")

    def ended(self, limit_s: float) -> int | None:
        """Its exit code; None, and it is killed, where it does not end in time."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None


def ours(cluster: TwoNodes) -> list[psutil.Process]:
    """Ranks and supervisors on the nodes of the cluster."""
    found = []
    for process in cluster.processes():
        try:
            line = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if BENCH_MODULE in line or "NodeSupervisor" in line:
            found.append(process)
    return found


def in_second_trial(tune: Tune, scratch: Path) -> None:
    """Waits until one trial is kept and ranks are at work again."""
    tune.wait_until(lambda: tune.num_trials >= 1, "a first trial")
    tune.wait_until(lambda: len(rank_reports(scratch)) == 2, "a second trial")


def resumed(job: Path, study: Path, cluster: TwoNodes, first: bytes) -> str | None:
    """Runs the same command again; what is wrong with how it went."""
    with Tune(cluster, job, study) as again:
        code = again.ended(STUDY_LIMIT_S)
    if code != 0:
        return f"the same command ended with {code}: {again.said()[-600:]}"
    if again.num_trials != NUM_TRIALS:
        return f"{again.num_trials} trials are kept, not {NUM_TRIALS}"
    kept = (study / "trials" / "0000" / "trial.json").read_bytes()
    return None if kept == first else "the first trial was run again"


def head_lost(folder: Path, strike: Callable[[TwoNodes], None]) -> Ended:
    job, study = job_file(folder), folder / "study"
    with two_nodes(folder) as cluster, Tune(cluster, job, study) as tune:
        in_second_trial(tune, folder)
        first = (study / "trials" / "0000" / "trial.json").read_bytes()
        struck_at = time.monotonic()
        strike(cluster)
        code = tune.ended(2 * HEAD_LIMIT_S)
        seconds = time.monotonic() - struck_at
    said = [line for line in tune.said().splitlines() if "cannot go on" in line]
    if code != 1 or len(said) != 1 or "head of Ray" not in said[0]:
        return Ended(good=False, seconds=seconds, said=f"exit code {code}: {tune.said()[-600:]}")
    with two_nodes(folder) as cluster:
        wrong = resumed(job, study, cluster, first)
    good = wrong is None and seconds <= HEAD_LIMIT_S
    return Ended(good=good, seconds=seconds, said=wrong or said[0])


def kill_gcs(cluster: TwoNodes) -> None:
    """The head's GCS alone; the rest of the head is left to notice."""
    for process in psutil.Process(cluster.head.process.pid).children():
        if process.name().startswith("gcs_server"):
            process.kill()


def head(folder: Path) -> Ended:
    """The head node is killed."""
    return head_lost(folder, lambda cluster: cluster.head.kill())


def gcs(folder: Path) -> Ended:
    """The head's GCS is killed."""
    return head_lost(folder, kill_gcs)


def driver(folder: Path) -> Ended:
    """The driver is killed with SIGKILL."""
    job, study = job_file(folder), folder / "study"
    with two_nodes(folder) as cluster, Tune(cluster, job, study) as tune:
        in_second_trial(tune, folder)
        first = (study / "trials" / "0000" / "trial.json").read_bytes()
        there = ours(cluster)
        struck_at = time.monotonic()
        tune.process.kill()
        tune.process.wait()
        _, alive = psutil.wait_procs(there, timeout=4 * DRIVER_LIMIT_S)
        seconds = time.monotonic() - struck_at
        wrong = resumed(job, study, cluster, first)
    said = wrong or f"{len(there)} ranks and supervisors were there, {len(alive)} stayed"
    good = wrong is None and not alive and seconds <= DRIVER_LIMIT_S
    return Ended(good=good, seconds=seconds, said=said)


def busy(folder: Path) -> Ended:
    """Another job has all CPUs of both nodes at first."""
    job, study = job_file(folder), folder / "study"
    with two_nodes(folder) as cluster:
        holder = subprocess.Popen(
            [sys.executable, "-c", _HOLDER, cluster.address, "4"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **cluster.client_env},
        )
        assert holder.stdout is not None
        try:
            if not holder.stdout.readline():
                raise Missed("the other job did not get the nodes")
            began = time.monotonic()
            with Tune(cluster, job, study) as tune:
                tune.wait_until(lambda: "waits for" in tune.said(), "a word about waiting")
                seconds = time.monotonic() - began
                holder.kill()
                code = tune.ended(STUDY_LIMIT_S)
        finally:
            holder.kill()
            holder.wait()
    said = next(line for line in tune.said().splitlines() if "waits for" in line)
    good = code == 0 and tune.num_trials == NUM_TRIALS
    return Ended(good=good, seconds=seconds, said=said if good else tune.said()[-600:])


def pair(folder: Path) -> Ended:
    """Two drivers share a Ray."""
    job = job_file(folder)
    with two_nodes(folder) as cluster:
        began = time.monotonic()
        studies = [folder / f"study-{number}" for number in range(2)]
        with Tune(cluster, job, studies[0]) as one, Tune(cluster, job, studies[1]) as other:
            tunes = (one, other)
            codes = [tune.ended(STUDY_LIMIT_S) for tune in tunes]
        seconds = time.monotonic() - began
    counts = [tune.num_trials for tune in tunes]
    good = codes == [0, 0] and counts == [NUM_TRIALS, NUM_TRIALS]
    return Ended(good=good, seconds=seconds, said=f"exit codes {codes}, trials {counts}")


SCENARIOS: dict[str, Callable[[Path], Ended]] = {
    "head": head,
    "gcs": gcs,
    "driver": driver,
    "busy": busy,
    "pair": pair,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SCENARIOS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    unknown = set(options.names) - set(SCENARIOS)
    if unknown:
        parser.error(f"known are {', '.join(SCENARIOS)}, got {', '.join(sorted(unknown))}")
    rows = {}
    for name in options.names or SCENARIOS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                ended = SCENARIOS[name](Path(folder))
            except Missed as missed:
                ended = Ended(good=False, seconds=0.0, said=str(missed))
            rows[name] = ended
        if not options.json:
            mark = "ok " if ended.good else "BAD"
            print(f"{name:<7} {mark} {ended.seconds:6.1f} s  {ended.said}", flush=True)
    if options.json:
        print(
            json.dumps(
                {n: {"good": e.good, "seconds": e.seconds, "said": e.said} for n, e in rows.items()}
            )
        )
    num_good = sum(ended.good for ended in rows.values())
    if not options.json:
        print(f"{num_good} of {len(rows)} ended as they must")
    return 0 if num_good == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
