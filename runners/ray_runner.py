"""Carries plans out on a Ray cluster: a supervisor on each node, held for the whole study.

Ray places and supervises; the ranks are ordinary processes that know nothing of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import LifoQueue

from runners.ray_session import one_line, ray_session  # sets what Ray reads when it is imported

# isort: split
import ray

from runners.backends.launch import launch_for
from runners.local_runner import with_second_attempt
from runners.ray_head import HeadWatch
from runners.ray_nodes import AvoidedNodes, HeldNodes, most_at_once
from runners.ray_trial import RayTrial
from runners.running_trials import RunningTrials
from runners.supervisor import was_not_started
from tuner.cluster import Cluster
from tuner.errors import UserError
from tuner.launch import LaunchSpec, Measurement, Settings
from tuner.outcome import Outcome, Phase
from tuner.plan import ParallelPlan
from tuner.runner import PhaseListener, Slots
from tuner.workload import Workload

_LOG = logging.getLogger(__name__)
PLACEMENT_LIMIT_S = 120.0
"""How long a trial waits for its nodes: others may be using them, or they may be starting."""


@dataclass(slots=True)
class _Slot:
    """Nodes for one trial at a time, placed by the first that needs them."""

    held: HeldNodes | None = None

    def let_go(self) -> None:
        """The next trial gets other supervisors, perhaps on other nodes."""
        held, self.held = self.held, None
        if held is not None:
            held.end()


class RayRunner:
    """Runs every trial as fresh ranks on the nodes of a Ray cluster."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        measurement: Measurement,
        limits_s: Mapping[Phase, float],
        *,
        address: str | None,
        slots: Slots | None = None,
    ) -> None:
        """Starts Ray on this machine, or connects to a running one.

        Raises:
            UserError: nothing answers at the address, the cluster needs one and has none, or it
                is too small for the slots.
            RuntimeError: Ray does not start.
        """
        self._workload = workload
        self._cluster = cluster
        self.measurement = measurement
        self.settings: Settings = ()
        self._limits_s = limits_s
        self._slots = slots or Slots()
        self._running = RunningTrials()
        self._all = tuple(_Slot() for _ in range(self._slots.count))
        self._free: LifoQueue[_Slot] = LifoQueue()
        for slot in self._all:
            self._free.put(slot)
        self._avoided = AvoidedNodes()
        ray_session(address, cluster, self.num_slots)
        if self.num_slots > 1 and (most := most_at_once(cluster)) < self.num_slots:
            ray.shutdown()
            raise UserError(
                f"--parallel must be at most {most} on this Ray, got {self.num_slots}: each trial "
                f"needs {cluster.num_nodes} x {cluster.gpus_per_node} devices of its own"
            )
        self._head = HeadWatch(ray.get_runtime_context().gcs_address)

    @property
    def num_slots(self) -> int:
        """Trials that may run side by side."""
        return self._slots.count

    def describe(self, plan: ParallelPlan) -> LaunchSpec:
        """What ``run`` would start."""
        return launch_for(plan, self._workload, self._cluster, self.measurement, self.settings)

    def run(self, plan: ParallelPlan, folder: Path, on_phase: PhaseListener) -> Outcome:
        """Tries the plan once; once more where a node, or a supervisor, was lost."""
        spec = self.describe(plan)
        slot = self._free.get()
        try:
            return with_second_attempt(lambda: self._attempt(spec, slot, folder, on_phase), folder)
        finally:
            self._free.put(slot)

    def _attempt(
        self, spec: LaunchSpec, slot: _Slot, folder: Path, on_phase: PhaseListener
    ) -> Outcome:
        trial = RayTrial(spec, self._cluster.gpu.device, self._limits_s, self.num_slots)
        with self._running.including(trial.stop), _let_go_unless_well(slot):
            try:
                slot.held = slot.held or HeldNodes.placed(
                    self._cluster,
                    warm=self._slots.warm,
                    limit_s=PLACEMENT_LIMIT_S,
                    stopped=lambda: trial.is_stopped,
                    avoided=self._avoided,
                )
                outcome = trial.run(slot.held, folder, on_phase)
                self._avoid_taken(slot, spec, outcome)
                return outcome
            except ray.exceptions.RayTaskError as error:
                raise RuntimeError(f"a node cannot run a trial: {one_line(error.cause)}") from error
            except ray.exceptions.RayError as error:
                self._head.raise_if_lost()
                gone = slot.held.gone() if slot.held is not None else ()
                self._avoided.lost |= {node.node_id for node in gone}
                slot.let_go()
                return trial.lost(error, [node.host for node in gone])

    def _avoid_taken(self, slot: _Slot, spec: LaunchSpec, outcome: Outcome) -> None:
        """Leaves a node out of the study whose GPUs are not free; the next attempt goes elsewhere.

        Args:
            slot: whose nodes it was.
            spec: of the trial.
            outcome: of the trial.
        """
        if slot.held is None or not was_not_started(outcome):
            return
        node = slot.held.nodes[outcome.rank // spec.ranks_per_node]
        self._avoided.taken[node.node_id] = f"on node {node.host}, {outcome.message}"
        _LOG.warning("node %s is left out of this study: %s", node.host, outcome.message)
        slot.let_go()

    def stop(self) -> None:
        """Ends the trials that are running."""
        self._running.stop()

    def close(self) -> None:
        """Ends the supervisors, and the Ray that was started here; one that was running stays."""
        self._head.close()
        if self._head.is_lost:  # calls of Ray would block until Ray ends this process
            return
        if ray.is_initialized():
            for slot in self._all:
                slot.let_go()
        ray.shutdown()


@contextmanager
def _let_go_unless_well(slot: _Slot) -> Iterator[None]:
    """After an interruption nobody knows what is left there: killed supervisors leave nothing."""
    try:
        yield
    except BaseException:
        slot.let_go()
        raise
