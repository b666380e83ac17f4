"""Carries plans out on a Ray cluster: a placement group and one supervisor a node for each trial.

Ray places and supervises; the ranks are ordinary processes that know nothing of it.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Ray reads most of these when it is imported.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_enable_metrics_collection", "0")
# Under `uv run` Ray would upload the current folder to every node.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
# A rank that takes too much memory is the trial's outcome; Ray would kill its supervisor instead.
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from runners.backends.launch import launch_for
from runners.diagnosis import outcome_of_ranks, stuck_ranks
from runners.environment import own_version
from runners.local_runner import (
    LOOPBACK,
    prepare_trial_folder,
    rank_environment,
    with_second_attempt,
)
from runners.node_supervisor import NodeFacts, NodeLaunch, NodeResult, NodeSupervisor
from runners.rank_processes import NodeRanks
from runners.ray_failures import outcome_of_lost
from runners.ray_loopback import on_loopback
from runners.supervisor import GRACE_S
from tuner.cluster import Cluster, Device
from tuner.errors import UserError
from tuner.launch import LaunchSpec, Measurement, Settings
from tuner.outcome import Outcome, Phase, TimedOut
from tuner.plan import ParallelPlan
from tuner.runner import PhaseListener, Stopped
from tuner.workload import Workload

PLACEMENT_LIMIT_S = 120.0
"""How long a trial waits for its nodes: others may be using them, or they may be starting."""
_LISTEN_LIMIT_S = 5.0
_CONNECT_LIMIT_S = 30.0
_CALL_LIMIT_S = 60.0
"""For a supervisor to start (a Python process with our imports) and for each short call to it."""
_STOP_LIMIT_S = 15.0
_LOOK_S = 0.5
"""How often phases are asked for; ends are seen at once."""
_OBJECT_STORE_BYTES = 80 * 2**20
"""Ray's minimum is 75 MiB; we send only launch files, reports and logs."""
_NAMESPACE = "paratune"


class RayRunner:
    """Runs every trial as fresh ranks on the nodes of a Ray cluster."""

    num_slots = 1

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        measurement: Measurement,
        limits_s: Mapping[Phase, float],
        *,
        address: str | None,
        placement_limit_s: float = PLACEMENT_LIMIT_S,
    ) -> None:
        """Starts Ray on this machine, or connects to a running one.

        Raises:
            UserError: nothing answers at the address, or the cluster needs one and has none.
            RuntimeError: Ray does not start.
        """
        if address is None and cluster.num_nodes != 1:
            raise UserError(
                f"a cluster of {cluster.num_nodes} nodes needs a running Ray, got none; start Ray "
                "on every node and give its address with --ray-address HOST:PORT"
            )
        self._workload = workload
        self._cluster = cluster
        self.measurement = measurement
        self.settings: Settings = ()
        self._limits_s = limits_s
        self._placement_limit_s = placement_limit_s
        self._stopped = threading.Event()
        if address is None:
            _start_ray(cluster)
        else:
            _connect_to_ray(address)

    def describe(self, plan: ParallelPlan) -> LaunchSpec:
        """What ``run`` would start."""
        return launch_for(plan, self._workload, self._cluster, self.measurement, self.settings)

    def run(self, plan: ParallelPlan, folder: Path, on_phase: PhaseListener) -> Outcome:
        """Tries the plan once; once more where a node, or a supervisor, was lost."""
        spec = self.describe(plan)
        return with_second_attempt(lambda: self._attempt(spec, folder, on_phase), folder)

    def _attempt(self, spec: LaunchSpec, folder: Path, on_phase: PhaseListener) -> Outcome:
        device = self._cluster.gpu.device
        with _placed(spec, device, self._placement_limit_s, self._stopped) as nodes:
            trial = _RayTrial(spec, device, nodes, self._limits_s, self._stopped)
            try:
                return trial.run(folder, on_phase)
            except ray.exceptions.RayTaskError as error:
                raise RuntimeError(
                    f"a node cannot run a trial: {_one_line(error.cause)}"
                ) from error
            except ray.exceptions.RayError as error:
                return trial.lost(error)
            finally:
                trial.end()

    def stop(self) -> None:
        """Has running trials end their ranks and give their nodes back."""
        self._stopped.set()

    def close(self) -> None:
        """Ends the Ray that was started here; one that was running stays."""
        ray.shutdown()


def _start_ray(cluster: Cluster) -> None:
    gpus = {"num_gpus": 0} if cluster.gpu.device is Device.CPU else {}
    try:
        with on_loopback():
            ray.init(
                address="local",  # otherwise Ray joins what RAY_ADDRESS or an earlier start names
                num_cpus=max(2, cluster.num_nodes),
                object_store_memory=_OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                namespace=_NAMESPACE,
                **gpus,
            )
    except Exception as error:  # Ray documents none of those that it raises
        ray.shutdown()
        raise RuntimeError(
            f"Ray does not start on this machine: {_one_line(error)}; --runner local needs no Ray"
        ) from error


def _connect_to_ray(address: str) -> None:
    reason = _unreachable(address)
    if reason is None:
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                namespace=_NAMESPACE,
            )
            return
        except Exception as error:  # Ray documents none of those that it raises
            ray.shutdown()
            reason = _one_line(error)
    raise UserError(
        f"--ray-address must be HOST:PORT of a running Ray (or auto), got {address}: {reason}; "
        "`ray start --head` prints the address, or leave the option out to start Ray here"
    )


def _unreachable(address: str) -> str | None:
    """Why no Ray answers there. Asked in a process of its own: Ray's attempts cannot be ended."""
    if "://" in address:
        return "Ray Client is not supported, paratune must run on a machine of the cluster"
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():  # a refused connection is known at once; Ray would try for long
        try:
            socket.create_connection((host, int(port)), _LISTEN_LIMIT_S).close()
        except OSError as error:
            return f"nothing listens there ({error.strerror or error})"
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_CONNECT_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_CONNECT_LIMIT_S:.0f} s"
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return lines[-1][:300] if lines else f"the health check ended with {done.returncode}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """A supervisor on its node."""

    supervisor: Any
    address: str


@contextmanager
def _placed(
    spec: LaunchSpec, device: Device, limit_s: float, stopped: threading.Event
) -> Iterator[tuple[_Node, ...]]:
    """Supervisors on nodes that are the trial's own; given back afterwards."""
    gpus = {"GPU": spec.ranks_per_node} if device is Device.CUDA else {}
    bundle = {**gpus, "CPU": 1}
    strategy = "STRICT_PACK" if spec.num_nodes == 1 else "STRICT_SPREAD"
    group = placement_group([bundle] * spec.num_nodes, strategy=strategy)
    try:
        if not _ready(group, limit_s, stopped):
            raise RuntimeError(
                f"the trial needs {spec.num_nodes} Ray node(s) with {bundle} free on each, which "
                f"were not there within {limit_s:.0f} s; {_what_ray_has()}"
            )
        yield tuple(_node(group, index, bundle) for index in range(spec.num_nodes))
    finally:
        remove_placement_group(group)


def _ready(group: Any, limit_s: float, stopped: threading.Event) -> bool:
    deadline = time.monotonic() + limit_s
    while not group.wait(_LOOK_S):
        if stopped.is_set():
            raise Stopped
        if time.monotonic() >= deadline:
            return False
    return True


def _node(group: Any, index: int, bundle: Mapping[str, int]) -> _Node:
    supervisor = (
        ray.remote(NodeSupervisor)
        .options(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            max_concurrency=3,  # run, and phase and stop meanwhile
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=index
            ),
        )
        .remote()
    )
    node_id = placement_group_table(group)["bundles_to_node_id"][index]
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    return _Node(supervisor=supervisor, address=addresses[node_id])


def _what_ray_has() -> str:
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    has = [{name: int(node.get(name, 0)) for name in ("GPU", "CPU")} for node in nodes]
    return f"this Ray has {len(has)} node(s): {has}"


class _RayTrial:
    """One attempt at a plan, on nodes that it has."""

    def __init__(
        self,
        spec: LaunchSpec,
        device: Device,
        nodes: tuple[_Node, ...],
        limits_s: Mapping[Phase, float],
        stopped: threading.Event,
    ) -> None:
        self._spec = spec
        self._device = device
        self._nodes = nodes
        self._limits_s = limits_s
        self._stopped = stopped
        self._phases = [Phase.START] * len(nodes)
        self._runs: dict[Any, int] = {}

    def run(self, folder: Path, on_phase: PhaseListener) -> Outcome:
        """Starts the ranks of all nodes and waits for their end, or ends them."""
        self._prepare(folder)
        self._runs = {node.supervisor.run.remote(): index for index, node in enumerate(self._nodes)}
        self._watch(on_phase)
        results = ray.get(list(self._runs), timeout=_STOP_LIMIT_S)
        for result in results:
            for name, content in result.files:
                (folder / name).write_bytes(content)
        return _outcome(results)

    def lost(self, error: Exception) -> Outcome:
        """A supervisor, or its node, died."""
        return outcome_of_lost(error, min(self._phases, key=list(Phase).index))

    def end(self) -> None:
        """Ends ranks that are left, then the supervisors; bounded."""
        self._stop(list(self._runs))
        for node in self._nodes:
            ray.kill(node.supervisor)
        for node in self._nodes:
            _wait_for_death(node.supervisor)

    def _prepare(self, folder: Path) -> None:
        facts: list[NodeFacts] = ray.get(
            [node.supervisor.check.remote(own_version(), self._host(node)) for node in self._nodes],
            timeout=_CALL_LIMIT_S,
        )
        env = rank_environment(self._spec, self._device, cores=facts[0].cores)
        prepare_trial_folder(folder, self._spec, env)
        launches = [
            NodeLaunch(
                files=self._spec.files,
                ranks=NodeRanks(
                    node=index,
                    ranks_per_node=self._spec.ranks_per_node,
                    num_ranks=self._spec.num_ranks,
                    master_address=self._host(self._nodes[0]),
                    master_port=facts[0].port,
                ),
                env=env,
                limits_s=self._limits_s,
            )
            for index in range(len(self._nodes))
        ]
        prepared = [
            node.supervisor.prepare.remote(launch)
            for node, launch in zip(self._nodes, launches, strict=True)
        ]
        ray.get(prepared, timeout=_CALL_LIMIT_S)

    def _host(self, node: _Node) -> str:
        return LOOPBACK if len(self._nodes) == 1 else node.address

    def _watch(self, on_phase: PhaseListener) -> None:
        """Until all nodes have ended; when one ends badly, the others are ended."""
        said = Phase.START
        running = list(self._runs)
        while running:
            if self._stopped.is_set():
                raise Stopped
            ended, running = ray.wait(running, timeout=_LOOK_S)
            if not all(_succeeded(ray.get(run)) for run in ended):
                _, running = ray.wait(running, num_returns=len(running), timeout=2 * GRACE_S)
                self._stop(running)
                return
            if (phase := self._slowest(running)) is not said:
                said = phase
                on_phase(phase)

    def _slowest(self, running: list[Any]) -> Phase:
        indices = [self._runs[run] for run in running]
        phases = ray.get(
            [self._nodes[index].supervisor.phase.remote() for index in indices],
            timeout=_CALL_LIMIT_S,
        )
        for index, phase in zip(indices, phases, strict=True):
            self._phases[index] = phase
        order = list(Phase)
        return min(phases, key=order.index, default=Phase.DONE)

    def _stop(self, runs: list[Any]) -> None:
        if not runs:
            return
        for run in runs:
            self._nodes[self._runs[run]].supervisor.stop.remote()
        ray.wait(runs, num_returns=len(runs), timeout=_STOP_LIMIT_S)


def _succeeded(result: NodeResult) -> bool:
    return all(end.succeeded for end in result.end.ends)


def _outcome(results: list[NodeResult]) -> Outcome:
    """Of the ranks of all nodes together: the earliest error of any of them is the cause."""
    ends = tuple(end for result in results for end in result.end.ends)
    passed = [result.end.timed_out for result in results if result.end.timed_out is not None]
    timed_out = None
    if passed:
        phase, ranks = stuck_ranks(ends)
        timed_out = TimedOut(ranks=ranks, phase=phase, limit_s=passed[0].limit_s)
    return outcome_of_ranks(ends, timed_out=timed_out)


def _wait_for_death(supervisor: Any) -> None:
    """Returns once calls to it fail because it is gone; it was asked to die."""
    deadline = time.monotonic() + _STOP_LIMIT_S
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            ray.get(supervisor.phase.remote(), timeout=left_s)
        except ray.exceptions.RayError:
            return


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:400] or type(error).__name__
