"""Nodes of a Ray cluster with a supervisor on each, held from trial to trial of a study."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from runners.environment import own_version
from runners.local_runner import LOOPBACK
from runners.node_supervisor import NodeFacts, NodeSupervisor
from runners.ray_head import answers
from runners.ray_session import one_line
from tuner.cluster import Cluster, Device
from tuner.runner import Stopped

CALL_LIMIT_S = 60.0
"""For a supervisor to start (a Python process with our imports) and for each short call to it."""
_DEATH_LIMIT_S = 15.0
_SILENT_WAIT_S = 3.0
"""Others may be about to give their nodes back; longer than this is said."""
_LOOK_S = 0.5
_LOG = logging.getLogger(__name__)
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
    raylet: str
    """HOST:PORT where Ray itself listens there."""
    num_gpus: int
    """That Ray may give to others too."""
    facts: NodeFacts


@dataclass(slots=True, kw_only=True)
class AvoidedNodes:
    """Nodes on which no more trials of this study are placed, by Ray's ids."""

    lost: set[str] = field(default_factory=set)
    """Ray may not know it yet. One that comes back has another id."""
    taken: dict[str, str] = field(default_factory=dict)
    """With the sentence that says who has its GPUs."""

    @property
    def selector(self) -> dict[str, str]:
        """For Ray's placement: all nodes but these."""
        ids = sorted({*self.lost, *self.taken})
        return {"ray.io/node-id": f"!in({', '.join(ids)})"} if ids else {}

    def raise_if_too_few_are_left(self, num_nodes: int) -> None:
        """Called before a trial is placed.

        Raises:
            RuntimeError: the GPUs of so many nodes are taken that no trial can be placed.
        """
        if not self.taken:
            return
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        if len(alive - set(self.taken)) < num_nodes:
            said = "; ".join(dict.fromkeys(self.taken.values()))
            raise RuntimeError(f"{said}; the same command goes on where it stopped")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldNodes:
    """The nodes of one trial after the other, in the order of their ranks."""

    nodes: tuple[Node, ...]
    _group: Any

    @classmethod
    def placed(
        cls,
        cluster: Cluster,
        *,
        warm: bool,
        limit_s: float,
        stopped: Callable[[], bool],
        avoided: AvoidedNodes,
    ) -> HeldNodes:
        """Waits for nodes that nobody else uses, and starts a supervisor on each.

        Raises:
            RuntimeError: they are not there within the limit, or run another paratune.
            Stopped: nobody waits any more.
        """
        bundle = _bundle(cluster)
        strategy = "STRICT_PACK" if cluster.num_nodes == 1 else "STRICT_SPREAD"
        avoided.raise_if_too_few_are_left(cluster.num_nodes)
        group = placement_group(
            [bundle] * cluster.num_nodes,
            strategy=strategy,
            bundle_label_selector=[avoided.selector] * cluster.num_nodes,
        )
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

    def gone(self) -> tuple[Node, ...]:
        """Nodes where Ray itself no longer answers; Ray takes longer to see that."""
        return tuple(node for node in self.nodes if not answers(node.raylet))

    def end(self) -> None:
        """Ends the supervisors, and with them all that they have started, and lets go.

        Where Ray itself is gone there is nothing to let go of.
        """
        with suppress(ray.exceptions.RayError, RuntimeError, OSError):
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
    began = time.monotonic()
    wanted = f"{num_nodes} Ray node(s) with {dict(bundle)} free on each"
    told = False
    while not group.wait(_LOOK_S):
        waited_s = time.monotonic() - began
        if stopped():
            raise Stopped
        if waited_s > limit_s:
            raise RuntimeError(
                f"the trial needs {wanted}, which "
                f"were not there within {limit_s:.0f} s; {_what_ray_has()}"
            )
        if not told and waited_s > _SILENT_WAIT_S:
            told = True
            _LOG.warning(
                "the trial waits for %s, at most %.0f s; %s", wanted, limit_s, _what_ray_has()
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
            raylet=f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}",
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
            ray.get(supervisor.state.remote(""), timeout=left_s)
        except ray.exceptions.RayError:
            return
