"""What becomes of a study whose ranks and nodes are killed: ``faults.py [--quick] [--json]``.

Starts a Ray of two nodes on this machine and runs one real study on CPU ranks, two nodes of one
rank, with a fault in every trial: SIGKILL, SIGSEGV or SIGSTOP of a random rank in a random phase,
or the loss of the second node with everything on it (which comes back). Each attempt that was hit
must end with an outcome that names the fault and the rank, within its limit, with no rank left;
the study must end with its budget spent. Exit code 1 where any of this does not hold.
Run from the root of a checkout: ``python -m benchmarks.faults``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.ray_nodes import TwoNodes, two_node_ray
from tests.tiny_job import LLAMA_CONFIG
from tuner.cli.plan_prior import job_sampler
from tuner.cli.setting import Planned, planned
from tuner.launch import LaunchSpec
from tuner.outcome import Failed, Measured, Outcome, Phase
from tuner.study import Budget, Study, StudyListener
from tuner.study_folder import StudyFolder
from tuner.trial import Trial

RANK_FAULTS = ("SIGKILL", "SIGSEGV", "SIGSTOP")
NODE_FAULT = "node lost"
PHASES = (Phase.START, Phase.PROCESS_GROUP, Phase.MODEL, Phase.FIRST_STEP, Phase.STEPS)
LIMITS_S = dict.fromkeys(RANK_FAULTS, 10.0) | {NODE_FAULT: 60.0}
"""From the fault to the end of the attempt: a rank's is seen by its supervisor, which gives its
peers a second to report; a node's by Ray's health checks. The rest is Ray taking things down."""
PLAIN_TRIAL_LIMIT_S = 60.0
_POLL_S = 0.01
_LONGEST_DELAY_S = 0.3
_NODE_BACK_S = 1.0
_MOST_TRIES = 5
"""A rank may be done before its fault comes; then its plan is run again."""

JOB = """
workload: {{model: {model}, seq_len: 64, global_batch: 8}}
cluster: {{gpu: cpu, num_nodes: 2, gpus_per_node: 1}}
search: {{backend: [pytorch, deepspeed], precision: [fp32], micro_batch: [1, 2, 4], pp: [1]}}
memory: {{limit: 700MiB}}
measure: {{warmup_steps: 1, steps: 20, max_steps: 20}}
limits: {{start: 120, process_group: 120, model: 120, first_step: 120, steps: 240}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is to happen to one trial."""

    kind: str
    phase: Phase
    rank: int
    delay_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """A fault that happened, and what came of the attempt that it hit."""

    trial: int
    kind: str
    phase: str
    rank: int
    outcome: str
    named: bool
    """Whether the outcome names the fault and the rank."""
    seconds: float
    """From the fault to the end of the attempt."""
    ranks_left: int
    finally_: str
    """What came of the trial."""

    @property
    def good(self) -> bool:
        """Whether it ended as it must."""
        return self.named and self.seconds <= LIMITS_S[self.kind] and self.ranks_left == 0


def faults(num_of_ranks: int, num_of_nodes: int, rng: random.Random) -> list[Fault]:
    """In random order; kinds and phases in turn, so that few faults cover them too."""
    kinds = [RANK_FAULTS[number % len(RANK_FAULTS)] for number in range(num_of_ranks)]
    kinds += [NODE_FAULT] * num_of_nodes
    phases = [PHASES[number % len(PHASES)] for number in range(len(kinds))]
    rng.shuffle(kinds)
    rng.shuffle(phases)
    return [
        Fault(
            kind=kind,
            phase=phase,
            rank=1 if kind == NODE_FAULT else rng.randrange(2),
            delay_s=rng.uniform(0, _LONGEST_DELAY_S),
        )
        for kind, phase in zip(kinds, phases, strict=True)
    ]


def rank_reports(scratch: Path) -> dict[int, dict[str, Any]]:
    """What the ranks of the trial that runs now have written on their nodes, by rank.

    Args:
        scratch: where the nodes make their temporary folders.
    """
    found = {}
    for rank in range(2):
        for path in scratch.glob(f"paratune-trial-*/rank-{rank}.json"):
            with suppress(OSError, ValueError):
                report = json.loads(path.read_text())
                if psutil.pid_exists(report["pid"]):
                    found[rank] = report
    return found


class Striker:
    """Lets one fault happen to each trial, as soon as its rank is where it should be hit."""

    def __init__(self, todo: list[Fault], cluster: TwoNodes, scratch: Path) -> None:
        self._left = list(todo)
        self._cluster = cluster
        # The kernel ends a node with the thread that started it: this one goes on to the end.
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._scratch = scratch
        self.struck_at: float | None = None
        self.fault: Fault | None = None
        self.pids: set[int] = set()

    @contextmanager
    def striking(self, first_attempt: bool) -> Iterator[None]:
        """While an attempt runs; only the first of a trial is hit."""
        self.struck_at, self.fault, self.pids = None, None, set()
        if not first_attempt or not self._left:
            yield
            return
        self.fault = self._left[0]
        over = threading.Event()
        striking = self._thread.submit(self._strike, self.fault, over)
        try:
            yield
        finally:
            over.set()
            striking.result()
            if self.struck_at is not None:
                self._left.pop(0)

    def _strike(self, fault: Fault, over: threading.Event) -> None:
        order = list(Phase)
        while not over.wait(_POLL_S):
            reports = rank_reports(self._scratch)
            self.pids |= {report["pid"] for report in reports.values()}
            at = reports.get(fault.rank)
            if at is None or order.index(Phase(at["phase"])) < order.index(fault.phase):
                continue
            time.sleep(fault.delay_s)
            if _is_alive(at["pid"]):
                self._hit(fault, at["pid"])
            return

    def _hit(self, fault: Fault, pid: int) -> None:
        self.struck_at = time.monotonic()
        if fault.kind == NODE_FAULT:
            self._cluster.second.kill()
            time.sleep(_NODE_BACK_S)
            self._cluster.start_second()
        else:
            with suppress(ProcessLookupError):
                os.kill(pid, getattr(signal, fault.kind))


def names(fault: Fault, outcome: Outcome) -> bool:
    """Whether an outcome says what happened."""
    if not isinstance(outcome, Failed):
        return False
    if fault.kind == NODE_FAULT:
        return outcome.infrastructure and "lost" in outcome.message
    return (outcome.error, outcome.rank) == (fault.kind, fault.rank)


def said(outcome: Outcome) -> str:
    """An outcome in a few words."""
    if isinstance(outcome, Measured):
        return f"trained, {outcome.step_time_s:.3f} s a step"
    if isinstance(outcome, Failed):
        return f"failed: rank {outcome.rank} {outcome.error}: {outcome.message}"[:110]
    return outcome.kind


class Attempts:
    """Hears how each attempt at a trial ends; made around ``RayRunner``, which is imported late."""

    def __init__(self, striker: Striker) -> None:
        self._striker = striker
        self.of_trial: list[tuple[Fault, Outcome, float, int]] = []

    def heard(self, attempt: Callable[[], Outcome], first: bool) -> Outcome:
        """The outcome of an attempt; where a fault hit it, what there is to know is kept."""
        with self._striker.striking(first):
            outcome = attempt()
            ended = time.monotonic()
            fault, struck_at = self._striker.fault, self._striker.struck_at
        if fault is not None and struck_at is not None:
            left = sum(_is_alive(pid) for pid in self._striker.pids)
            self.of_trial.append((fault, outcome, ended - struck_at, left))
        return outcome


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def struck_runner(job: Planned, address: str, attempts: Attempts) -> Any:
    """A ``RayRunner`` whose attempts are hit."""
    from runners.ray_runner import RayRunner

    class StruckRunner(RayRunner):
        _first = True

        def run(self, *args: Any) -> Outcome:
            for _ in range(_MOST_TRIES):
                self._first = True
                outcome = super().run(*args)
                if attempts.of_trial:
                    break
            return outcome

        def _attempt(self, spec: LaunchSpec, *args: Any) -> Outcome:
            first, self._first = self._first, False
            attempt = super()._attempt
            return attempts.heard(lambda: attempt(spec, *args), first)

    return StruckRunner(
        job.job.workload,
        job.job.cluster,
        job.job.measurement,
        job.job.phase_limits_s,
        address=address,
    )


class Table(StudyListener):
    """Prints a row for each trial."""

    def __init__(self, attempts: Attempts, quiet: bool) -> None:
        self._attempts = attempts
        self._quiet = quiet
        self.rows: list[Struck] = []
        self.missed = 0

    def trial_ended(self, trial: Trial, trials: Any) -> None:
        hits, self._attempts.of_trial = self._attempts.of_trial, []
        if not hits:
            self.missed += 1
            self._print(f"{trial.number:>3}  no fault  {said(trial.outcome)}")
        for fault, outcome, seconds, left in hits:
            row = Struck(
                trial=trial.number,
                kind=fault.kind,
                phase=str(fault.phase),
                rank=fault.rank,
                outcome=said(outcome),
                named=names(fault, outcome),
                seconds=seconds,
                ranks_left=left,
                finally_=said(trial.outcome),
            )
            self.rows.append(row)
            self._print(
                f"{row.trial:>3}  {row.kind:<9}  rank {row.rank} in {row.phase:<13}  "
                f"{row.seconds:5.1f} s  {'ok ' if row.good else 'BAD'}  {row.outcome}"
                f"\n     then: {row.finally_}"
            )

    def _print(self, text: str) -> None:
        if not self._quiet:
            print(text, flush=True)


def job_file(folder: Path) -> Path:
    """A tiny model on two nodes of one CPU rank."""
    model = folder / "config.json"
    model.write_text(json.dumps(LLAMA_CONFIG))
    path = folder / "job.yaml"
    path.write_text(JOB.format(model=model))
    return path


def two_nodes(scratch: Path) -> AbstractContextManager[TwoNodes]:
    """A Ray whose nodes make their temporary folders here, where nobody else's ranks are."""
    patient = {"RAY_raylet_start_wait_time_s": "85"}  # Ray's 30 s are too few on a busy machine
    return two_node_ray(num_cpus=4, env={"TMPDIR": str(scratch), **patient})


def struck_study(todo: list[Fault], quiet: bool, seed: int) -> tuple[Table, str]:
    """Runs a study of one trial a fault; the table, and why the study ended."""
    with tempfile.TemporaryDirectory() as name, two_nodes(Path(name)) as cluster:
        os.environ.update(cluster.client_env)
        job = planned(job_file(Path(name)))
        attempts = Attempts(Striker(todo, cluster, Path(name)))
        table = Table(attempts, quiet)
        folder = StudyFolder(Path(name) / "study")
        folder.create()
        runner = struck_runner(job, cluster.address, attempts)
        study = Study(
            space=job.space,
            runner=runner,
            folder=folder,
            sampler=job_sampler(job, "random", seed=seed),
        )
        try:
            end = study.run(Budget(trials=len(todo)), table)
        finally:
            runner.close()
    return table, end.reason


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=30, help="faults of ranks")
    parser.add_argument("--nodes", type=int, default=5, help="losses of a node")
    parser.add_argument("--quick", action="store_true", help="3 faults of ranks and 1 of a node")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    num_ranks, num_nodes = (3, 1) if options.quick else (options.ranks, options.nodes)
    todo = faults(num_ranks, num_nodes, random.Random(options.seed))
    table, reason = struck_study(todo, options.json, options.seed)
    return summarized(table, reason, len(todo), as_json=options.json)


def summarized(table: Table, reason: str, wanted: int, *, as_json: bool) -> int:
    """Prints the summary; 1 where something did not end as it must."""
    rows = table.rows
    complete = reason == f"its {wanted} trials are done"
    good = complete and len(rows) == wanted and all(row.good for row in rows)
    if as_json:
        print(json.dumps({"good": good, "reason": reason, "faults": [asdict(r) for r in rows]}))
        return 0 if good else 1
    for kind in (*RANK_FAULTS, NODE_FAULT):
        of_kind = [row for row in rows if row.kind == kind]
        if of_kind:
            seconds = [row.seconds for row in of_kind]
            print(
                f"{kind}: {len(of_kind)} faults, {sum(row.named for row in of_kind)} named with "
                f"their rank, {sum(row.good for row in of_kind)} within {LIMITS_S[kind]:.0f} s and "
                f"with nothing left; ended after {statistics.median(seconds):.1f} s (median), "
                f"{max(seconds):.1f} s (worst)"
            )
    print(
        f"{len(rows)} of {wanted} faults struck, {sum(row.good for row in rows)} ended as they "
        f"must, {sum('trained' in row.finally_ for row in rows)} trials trained in the end; the "
        f"study ended because {reason}: {'good' if good else 'NOT GOOD'}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
