"""Nodes of a Ray cluster with a supervisor on each, held from trial to trial of a study."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from runners.environment import own_version
from runners.local_runner import LOOPBACK
from runners.node_supervisor import NodeFacts, NodeSupervisor
from runners.ray_session import one_line
from tuner.cluster import Cluster, Device
from tuner.runner import Stopped

CALL_LIMIT_S = 60.0
"""For a supervisor to start (a Python process with our imports) and for each short call to it."""
_DEATH_LIMIT_S = 15.0
_LOOK_S = 0.5
_CALLS_AT_ONCE = 4
"""One runs the trial, and others ask and stop meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A supervisor on its node."""

    supervisor: Any
    node_id: str
    """Ray's."""
    host: str
    """Address at which the other nodes reach it."""
    num_gpus: int
    """That Ray may give to others too."""
    facts: NodeFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldNodes:
    """The nodes of one trial after the other, in the order of their ranks."""

    nodes: tuple[Node, ...]
    _group: Any

    @classmethod
    def placed(
        cls, cluster: Cluster, *, warm: bool, limit_s: float, stopped: Callable[[], bool]
    ) -> HeldNodes:
        """Waits for nodes that nobody else uses, and starts a supervisor on each.

        Raises:
            RuntimeError: they are not there within the limit, or run another paratune.
            Stopped: nobody waits any more.
        """
        bundle = _bundle(cluster)
        strategy = "STRICT_PACK" if cluster.num_nodes == 1 else "STRICT_SPREAD"
        group = placement_group([bundle] * cluster.num_nodes, strategy=strategy)
        try:
            _await_group(group, bundle, cluster.num_nodes, limit_s, stopped)
            return cls(nodes=_supervised(group, bundle, cluster.num_nodes, warm), _group=group)
        except BaseException:
            remove_placement_group(group)
            raise

    def free_port(self) -> int:
        """A port of the first node that was free a moment ago.

        Raises:
            ray.exceptions.RayError: its supervisor is gone.
        """
        first = self.nodes[0]
        port: int = ray.get(first.supervisor.port.remote(first.host), timeout=CALL_LIMIT_S)
        return port

    def end(self) -> None:
        """Ends the supervisors, and with them all that they have started, and lets go."""
        for node in self.nodes:
            ray.kill(node.supervisor)
        for node in self.nodes:
            _await_death(node.supervisor)
        remove_placement_group(self._group)


def most_at_once(cluster: Cluster) -> int:
    """How many trials this Ray can hold side by side, when nobody else uses it."""
    bundle = _bundle(cluster)
    has = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    fitting = [min(int(node.get(n, 0) // each) for n, each in bundle.items()) for node in has]
    most = 0
    while sum(min(count, most + 1) for count in fitting) >= (most + 1) * cluster.num_nodes:
        most += 1
    return most


def _bundle(cluster: Cluster) -> Mapping[str, int]:
    """What a trial takes of each of its nodes."""
    gpus = {"GPU": cluster.gpus_per_node} if cluster.gpu.device is Device.CUDA else {}
    return {**gpus, "CPU": 1}


def _await_group(
    group: Any,
    bundle: Mapping[str, int],
    num_nodes: int,
    limit_s: float,
    stopped: Callable[[], bool],
) -> None:
    deadline = time.monotonic() + limit_s
    while not group.wait(_LOOK_S):
        if stopped():
            raise Stopped
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"the trial needs {num_nodes} Ray node(s) with {dict(bundle)} free on each, which "
                f"were not there within {limit_s:.0f} s; {_what_ray_has()}"
            )


def _supervised(
    group: Any, bundle: Mapping[str, int], num_nodes: int, warm: bool
) -> tuple[Node, ...]:
    supervisors = [_supervisor(group, bundle, index, warm) for index in range(num_nodes)]
    node_ids = placement_group_table(group)["bundles_to_node_id"]
    known = {node["NodeID"]: node for node in ray.nodes()}
    placed = [known[node_ids[index]] for index in range(num_nodes)]
    try:
        facts: list[NodeFacts] = ray.get(
            [supervisor.check.remote(own_version()) for supervisor in supervisors],
            timeout=CALL_LIMIT_S,
        )
    except ray.exceptions.RayTaskError as error:
        raise RuntimeError(f"a node cannot run a trial: {one_line(error.cause)}") from error
    return tuple(
        Node(
            supervisor=supervisor,
            node_id=node["NodeID"],
            # Alone, a node needs no address that others can reach.
            host=LOOPBACK if num_nodes == 1 else node["NodeManagerAddress"],
            num_gpus=int(node["Resources"].get("GPU", 0)),
            facts=fact,
        )
        for supervisor, node, fact in zip(supervisors, placed, facts, strict=True)
    )


def _supervisor(group: Any, bundle: Mapping[str, int], index: int, warm: bool) -> Any:
    return (
        ray.remote(NodeSupervisor)
        .options(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            max_concurrency=_CALLS_AT_ONCE,
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=index
            ),
        )
        .remote(warm=warm)
    )


def _what_ray_has() -> str:
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    has = [{name: int(node.get(name, 0)) for name in ("GPU", "CPU")} for node in nodes]
    return f"this Ray has {len(has)} node(s): {has}"


def _await_death(supervisor: Any) -> None:
    """Returns once calls to it fail because it is gone; it was asked to die."""
    deadline = time.monotonic() + _DEATH_LIMIT_S
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            ray.get(supervisor.state.remote(), timeout=left_s)
        except ray.exceptions.RayError:
            return
