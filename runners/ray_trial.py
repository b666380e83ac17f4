"""One attempt at a plan on nodes that are held: starts its ranks on all of them, and ends them."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from runners.local_runner import prepare_trial_folder, rank_environment
from runners.node_supervisor import NodeLaunch, NodeResult, NodeState
from runners.placement import PlacedNode, write_placement
from runners.rank_processes import NodeRanks
from runners.ray_failures import outcome_of_lost
from runners.ray_nodes import CALL_LIMIT_S, HeldNodes, Node
from runners.supervisor import outcome_of_nodes
from tuner.cluster import Device
from tuner.launch import LaunchSpec
from tuner.launch_files import plain_name
from tuner.outcome import Outcome, Phase
from tuner.runner import PhaseListener

_LOOK_S = 0.25
"""How often nodes are asked how they get on; the end of one is seen at once."""
_STOP_LIMIT_S = 15.0


class RayTrial:
    """One attempt; ``stop`` may be called from another thread, before ``run`` and meanwhile."""

    def __init__(
        self, spec: LaunchSpec, device: Device, limits_s: Mapping[Phase, float], num_slots: int
    ) -> None:
        self._spec = spec
        self._device = device
        self._limits_s = limits_s
        self._num_slots = num_slots
        self._attempt = uuid.uuid4().hex
        self._phase = Phase.START
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Ends the attempt from another thread."""
        self._stopped.set()

    @property
    def is_stopped(self) -> bool:
        """Whether that was asked for."""
        return self._stopped.is_set()

    def run(self, held: HeldNodes, folder: Path, on_phase: PhaseListener) -> Outcome:
        """Starts the ranks of all nodes and waits for their end, or ends them."""
        launches = self._prepared(held, folder)
        runs = {
            node.supervisor.run.remote(launch): node.supervisor
            for node, launch in zip(held.nodes, launches, strict=True)
        }
        try:
            self._watch(runs, on_phase)
            results: list[NodeResult] = ray.get(list(runs), timeout=_STOP_LIMIT_S)
        except BaseException:
            self._stop(runs)
            raise
        for result in results:
            for name, content in result.files:
                (folder / plain_name(name)).write_bytes(content)
        return outcome_of_nodes([result.end for result in results])

    def lost(self, error: Exception, gone: Sequence[str]) -> Outcome:
        """A supervisor, or its node, died."""
        return outcome_of_lost(error, self._phase, gone)

    def _prepared(self, held: HeldNodes, folder: Path) -> list[NodeLaunch]:
        each = self._spec.ranks_per_node
        first = held.nodes[0]
        env = rank_environment(self._spec, self._device, cores=self._cores(first))
        prepare_trial_folder(folder, self._spec, env)
        placed = [
            PlacedNode(
                hostname=node.facts.hostname,
                address=node.host,
                ray_node_id=node.node_id,
                gpus=node.facts.gpus if self._device is Device.CUDA else (),
            )
            for node in held.nodes
        ]
        write_placement(folder, placed, each)
        port = held.free_port()
        return [
            NodeLaunch(
                attempt=self._attempt,
                spec=self._spec,
                ranks=NodeRanks(
                    node=index,
                    ranks_per_node=each,
                    num_ranks=self._spec.num_ranks,
                    master_address=first.host,
                    master_port=port,
                ),
                env=env,
                limits_s=self._limits_s,
            )
            for index in range(len(held.nodes))
        ]

    def _cores(self, node: Node) -> int:
        """A trial's share of a node: other slots may lie on it too."""
        fitting = node.num_gpus // self._spec.ranks_per_node
        there = self._num_slots if self._device is Device.CPU else min(self._num_slots, fitting)
        return node.facts.cores // max(1, there)

    def _watch(self, runs: Mapping[Any, Any], on_phase: PhaseListener) -> None:
        """Until all nodes have ended; when a rank of one ends badly, the others end theirs."""
        running = list(runs)
        told = False
        while running:
            ended, running = ray.wait(running, num_returns=len(running), timeout=_LOOK_S)
            if self.is_stopped:
                self._stop({run: runs[run] for run in running})
                return
            states = self._states([runs[run] for run in running], on_phase)
            failing = any(state.is_failing for state in states)
            results: list[NodeResult] = ray.get(ended, timeout=CALL_LIMIT_S)
            if not told and (failing or not all(_succeeded(result) for result in results)):
                told = True
                for run in running:
                    runs[run].fail.remote(self._attempt)

    def _states(self, supervisors: list[Any], on_phase: PhaseListener) -> list[NodeState]:
        states: list[NodeState] = ray.get(
            [supervisor.state.remote(self._attempt) for supervisor in supervisors],
            timeout=CALL_LIMIT_S,
        )
        order = list(Phase)
        slowest = min((state.phase for state in states), key=order.index, default=Phase.DONE)
        if states and slowest is not self._phase:
            self._phase = slowest
            on_phase(slowest)
        return states

    def _stop(self, runs: Mapping[Any, Any]) -> None:
        """Bounded; what does not end is the supervisors' to be killed for."""
        for supervisor in runs.values():
            supervisor.stop.remote(self._attempt)
        ray.wait(list(runs), num_returns=len(runs), timeout=_STOP_LIMIT_S)


def _succeeded(result: NodeResult) -> bool:
    ends = result.end.ends
    return bool(ends) and all(end.succeeded for end in ends)
