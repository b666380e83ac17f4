"""Carries plans out on this machine, without Ray."""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from runners.backends.launch import launch_for
from runners.rank_processes import NodeRanks, free_port
from runners.supervisor import Supervisor
from tuner.cluster import Cluster, Device
from tuner.errors import UserError
from tuner.launch import ENVIRONMENT_FILE, LaunchSpec, Measurement, Settings
from tuner.outcome import Failed, Outcome, Phase
from tuner.plan import ParallelPlan
from tuner.runner import PhaseListener, Stopped
from tuner.study_folder import launch_folder, write_launch_files
from tuner.workload import Workload

LOOPBACK = "127.0.0.1"
FIRST_ATTEMPT = "first-attempt"
"""Folder in a trial's, of what was left when the machine, not the plan, was to blame."""
_LOG = logging.getLogger(__name__)


class LocalRunner:
    """Runs every trial as fresh ranks of this machine."""

    num_slots = 1
    """A trial uses all devices that the job's cluster has here."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        measurement: Measurement,
        limits_s: Mapping[Phase, float],
    ) -> None:
        if cluster.num_nodes != 1:
            raise UserError(
                f"--runner local needs a cluster of 1 node, got {cluster.num_nodes}; "
                "use --runner ray with --ray-address"
            )
        self._workload = workload
        self._cluster = cluster
        self.measurement = measurement
        self.settings: Settings = ()
        self._limits_s = limits_s
        self._lock = threading.Lock()
        self._supervisors: set[Supervisor] = set()
        self._stopped = False

    def describe(self, plan: ParallelPlan) -> LaunchSpec:
        """What ``run`` would start."""
        return launch_for(plan, self._workload, self._cluster, self.measurement, self.settings)

    def run(self, plan: ParallelPlan, folder: Path, on_phase: PhaseListener) -> Outcome:
        """Tries the plan once; a port taken by another is no fault of the plan."""
        spec = self.describe(plan)
        return with_second_attempt(lambda: self._attempt(spec, folder, on_phase), folder)

    def _attempt(self, spec: LaunchSpec, folder: Path, on_phase: PhaseListener) -> Outcome:
        cores = len(os.sched_getaffinity(0))
        env = rank_environment(spec, self._cluster.gpu.device, cores=cores)
        prepare_trial_folder(folder, spec, env)
        ranks = NodeRanks(
            ranks_per_node=spec.ranks_per_node,
            num_ranks=spec.num_ranks,
            master_address=LOOPBACK,
            master_port=free_port(LOOPBACK),
        )
        supervisor = Supervisor(folder, ranks, env=env, limits_s=self._limits_s)
        with self._lock:
            if self._stopped:
                raise Stopped
            self._supervisors.add(supervisor)
        try:
            end = supervisor.run(on_phase)
        finally:
            with self._lock:
                self._supervisors.discard(supervisor)
        if self._stopped:
            raise Stopped
        return end.outcome()

    def stop(self) -> None:
        """Ends the ranks of the running trial."""
        with self._lock:
            self._stopped = True
            for supervisor in self._supervisors:
                supervisor.stop()

    def close(self) -> None:
        """Nothing is held between trials."""


def with_second_attempt(attempt: Callable[[], Outcome], folder: Path) -> Outcome:
    """The outcome of an attempt; of one more where the machine was to blame.

    Args:
        attempt: runs the trial in its folder.
        folder: of the trial; what the first of two attempts left is kept in it.
    """
    outcome = attempt()
    if not (isinstance(outcome, Failed) and outcome.infrastructure):
        return outcome
    _LOG.warning(
        "the trial is tried once more, for the machine is to blame: rank %d, %s: %s",
        *(outcome.rank, outcome.error, outcome.message),
    )
    aside = folder.with_name(f".{folder.name}-{FIRST_ATTEMPT}")
    shutil.rmtree(aside, ignore_errors=True)
    if folder.exists():
        folder.rename(aside)
    try:
        return attempt()
    finally:
        if aside.exists() and folder.exists():
            aside.rename(folder / FIRST_ATTEMPT)


def prepare_trial_folder(folder: Path, spec: LaunchSpec, env: Mapping[str, str]) -> None:
    """Writes the launch files, and the ranks' environment beside them, into a fresh trial folder.

    An interrupted attempt is cleared away.
    """
    if folder.exists():
        shutil.rmtree(folder)
    write_launch_files(spec, launch_folder(folder))
    text = json.dumps(dict(env), indent=2, sort_keys=True) + "\n"
    (launch_folder(folder) / ENVIRONMENT_FILE).write_text(text)


def rank_environment(spec: LaunchSpec, device: Device, *, cores: int) -> dict[str, str]:
    """What the framework needs, and threads such that the ranks of a node share its cores."""
    threads = str(max(1, cores // spec.ranks_per_node))
    # CPU ranks were asked for: they must not take the GPUs of a machine that has some.
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device is Device.CPU else {}
    own = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)}
    return {**own, **hidden, **dict(spec.env)}
