"""Carries plans out on this machine, without Ray."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import LifoQueue

from runners.backends.launch import launch_for
from runners.nvidia_devices import VISIBLE, nvidia_driver, visible_devices
from runners.placement import PlacedNode, visible_gpus, write_placement
from runners.rank_processes import NodeRanks, free_port
from runners.running_trials import RunningTrials
from runners.supervisor import Supervisor, was_not_started
from runners.warm_pool import WarmPool, rank_source
from tuner.cluster import Cluster, Device
from tuner.errors import UserError
from tuner.launch import ENVIRONMENT_FILE, LaunchSpec, Measurement, Settings
from tuner.launch_files import launch_folder, write_launch_files
from tuner.outcome import Failed, Outcome, Phase
from tuner.plan import ParallelPlan
from tuner.runner import PhaseListener, Slots
from tuner.workload import Workload

LOOPBACK = "127.0.0.1"
FIRST_ATTEMPT = "first-attempt"
"""Folder in a trial's, of what was left when the machine, not the plan, was to blame."""
_LOG = logging.getLogger(__name__)


class LocalRunner:
    """Runs every trial as fresh ranks of this machine."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        measurement: Measurement,
        limits_s: Mapping[Phase, float],
        *,
        slots: Slots | None = None,
    ) -> None:
        """Starts nothing.

        Raises:
            UserError: the cluster has several nodes, or this machine too few GPUs for the slots.
        """
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
        self._slots = slots or Slots()
        self._pool = WarmPool() if self._slots.warm else None
        self._running = RunningTrials()
        self._free: LifoQueue[Mapping[str, str]] = LifoQueue()
        for env in slot_environments(cluster, self._slots.count):
            self._free.put(env)

    @property
    def num_slots(self) -> int:
        """Trials that may run side by side."""
        return self._slots.count

    def describe(self, plan: ParallelPlan) -> LaunchSpec:
        """What ``run`` would start."""
        return launch_for(plan, self._workload, self._cluster, self.measurement, self.settings)

    def run(self, plan: ParallelPlan, folder: Path, on_phase: PhaseListener) -> Outcome:
        """Tries the plan once; a port taken by another is no fault of the plan."""
        spec = self.describe(plan)
        slot = self._free.get()
        try:
            return with_second_attempt(lambda: self._attempt(spec, folder, slot, on_phase), folder)
        finally:
            self._free.put(slot)

    def _attempt(
        self, spec: LaunchSpec, folder: Path, slot: Mapping[str, str], on_phase: PhaseListener
    ) -> Outcome:
        cores = len(os.sched_getaffinity(0)) // self.num_slots
        env = {**rank_environment(spec, self._cluster.gpu.device, cores=cores), **slot}
        prepare_trial_folder(folder, spec, env)
        self._write_placement(folder, env)
        ranks = NodeRanks(
            ranks_per_node=spec.ranks_per_node,
            num_ranks=spec.num_ranks,
            master_address=LOOPBACK,
            master_port=free_port(LOOPBACK),
        )
        source = rank_source(self._pool, spec)
        supervisor = Supervisor(folder, ranks, env=env, limits_s=self._limits_s, source=source)
        with self._running.including(supervisor.stop):
            end = supervisor.run(on_phase)
        return end.outcome()

    def _write_placement(self, folder: Path, env: Mapping[str, str]) -> None:
        gpus = visible_gpus(env.get(VISIBLE, os.environ.get(VISIBLE)))
        node = PlacedNode(
            hostname=socket.gethostname(), address=LOOPBACK, ray_node_id=None, gpus=gpus
        )
        write_placement(folder, (node,), self._cluster.gpus_per_node)

    def stop(self) -> None:
        """Ends the trials that are running."""
        self._running.stop()

    def close(self) -> None:
        """Ends the warm processes."""
        if self._pool is not None:
            self._pool.close()


def slot_environments(cluster: Cluster, count: int) -> tuple[Mapping[str, str], ...]:
    """Of each slot: GPUs of its own where there are several."""
    if count == 1 or cluster.gpu.device is Device.CPU:
        return ({},) * count
    driver = nvidia_driver()
    devices = visible_devices(driver.devices) if driver is not None else ()
    each = cluster.gpus_per_node
    if len(devices) < count * each:
        raise UserError(
            f"--parallel {count} needs {count} x {each} GPUs, got {len(devices)} on this machine; "
            f"it must be at most {max(1, len(devices) // each)}"
        )
    return tuple(
        {VISIBLE: ",".join(device.uuid for device in devices[first : first + each])}
        for first in range(0, count * each, each)
    )


def with_second_attempt(attempt: Callable[[], Outcome], folder: Path) -> Outcome:
    """The outcome of an attempt; of one more where the machine was to blame.

    Args:
        attempt: runs the trial in its folder.
        folder: of the trial; what the first of two attempts left is kept in it.

    Raises:
        RuntimeError: the GPUs are somebody else's, so that nothing could be started.
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
        outcome = attempt()
    finally:
        if aside.exists() and folder.exists():
            aside.rename(folder / FIRST_ATTEMPT)
    if was_not_started(outcome):
        raise RuntimeError(f"{outcome.message}; the same command goes on where it stopped")
    return outcome


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
    own = {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads),
        # NumPy's library starts its threads when it is imported, and a process that has some
        # cannot be forked; no framework computes with it.
        "OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS", "1"),
    }
    return {**own, **hidden, **dict(spec.env)}
