"""Watches the ranks of one node through a trial, with and without Ray: phases, limits, deaths."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeGuard

from runners.diagnosis import RankEnd, outcome_of_ranks, stuck_ranks
from runners.free_devices import devices_free
from runners.nvidia_devices import VISIBLE
from runners.oom_counters import oom_kills, risen
from runners.rank_process import ColdRanks, RankSource
from runners.rank_processes import NodeRanks, RankProcesses
from tuner.outcome import Failed, Outcome, Phase, TimedOut
from tuner.runner import PhaseListener

DEVICES_TAKEN = "GPU in use"
"""The error of a trial that was not started."""
GRACE_S = 1.0
"""After a rank's death its peers get this long to write down their own errors."""
_EXIT_LIMIT_S = 60.0
"""For the phase after the last, which no job limits: a rank that is done ends at once."""
_LOOK_S = 0.2
"""How often phases are read; deaths are seen at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnd:
    """How a trial ended on one node."""

    ends: tuple[RankEnd, ...]
    timed_out: TimedOut | None
    starter_lost: bool = False
    """What the ranks were forked from was killed, and took them with it."""
    devices_taken: Failed | None = None
    """Set where nothing was started, for the GPUs here are somebody else's."""

    def outcome(self) -> Outcome:
        """The outcome as far as this node can tell."""
        return outcome_of_nodes((self,))


def outcome_of_nodes(nodes: Sequence[NodeEnd]) -> Outcome:
    """Of the ranks of all nodes together: the earliest error of any of them is the cause."""
    ends = tuple(end for node in nodes for end in node.ends)
    for node in nodes:
        if node.devices_taken is not None:
            return node.devices_taken
    if any(node.starter_lost for node in nodes):
        return _starter_lost(ends)
    passed = [node.timed_out for node in nodes if node.timed_out is not None]
    timed_out = None
    if passed:
        phase, ranks = stuck_ranks(ends)
        timed_out = TimedOut(ranks=ranks, phase=phase, limit_s=passed[0].limit_s)
    return outcome_of_ranks(ends, timed_out=timed_out)


def was_not_started(outcome: Outcome) -> TypeGuard[Failed]:
    """Whether nothing was started, for the GPUs were somebody else's."""
    return isinstance(outcome, Failed) and outcome.error == DEVICES_TAKEN


def _starter_lost(ends: Sequence[RankEnd]) -> Failed:
    phase, ranks = stuck_ranks(ends) if ends else (Phase.START, (0,))
    return Failed(
        rank=ranks[0],
        phase=phase,
        error="warm process lost",
        message="the process that the ranks were forked from was killed, and they with it",
        infrastructure=True,
    )


class Supervisor:
    """Runs the ranks of one node once; when ``run`` returns or raises, none of them is left."""

    def __init__(
        self,
        folder: Path,
        node_ranks: NodeRanks,
        *,
        env: Mapping[str, str],
        limits_s: Mapping[Phase, float],
        source: RankSource | None = None,
    ) -> None:
        """Prepares, starts nothing.

        Args:
            folder: the trial's folder, with its launch files.
            node_ranks: which ranks.
            env: what the framework needs, on top of this process's own environment.
            limits_s: the longest that a rank may stay in each phase.
            source: how ranks are started; anew unless given.
        """
        self._folder = folder
        self._node_ranks = node_ranks
        self._env = env
        self._limits_s = limits_s
        self._source = source or ColdRanks()
        self._stopped = threading.Event()
        self._failed_elsewhere = threading.Event()
        self._is_failing = False

    def stop(self) -> None:
        """Ends the trial from another thread."""
        self._stopped.set()

    def fail(self) -> None:
        """Ends the trial from another thread, as after the death of a rank of this node."""
        self._failed_elsewhere.set()

    @property
    def is_failing(self) -> bool:
        """Whether a rank of this node has ended badly."""
        return self._is_failing

    def run(self, on_phase: PhaseListener) -> NodeEnd:
        """Starts the ranks and waits for their end, or ends them."""
        if (taken := self._devices_taken()) is not None:
            self._is_failing = True
            return NodeEnd(ends=(), timed_out=None, devices_taken=taken)
        kills_before = oom_kills()
        limit_s = self._limits_s.get(Phase.START, _EXIT_LIMIT_S)
        start = self._source.ready(self._folder, self._env, limit_s, self._is_over)
        with RankProcesses(self._folder, self._node_ranks, start) as ranks:
            timed_out = None if ranks.starter_lost else self._watched(ranks, on_phase)
            ends = ranks.ends()
        killer = risen(kills_before, oom_kills())
        return NodeEnd(
            ends=tuple(replace(end, oom_killer=killer) for end in ends),
            timed_out=timed_out,
            starter_lost=ranks.starter_lost,
        )

    def _is_over(self) -> bool:
        """Whether the trial has been ended from elsewhere: imports need not be waited for."""
        return self._stopped.is_set() or self._failed_elsewhere.is_set()

    def _devices_taken(self) -> Failed | None:
        """Waits for the GPUs of the ranks to be free, of an earlier trial's memory too."""
        each = self._node_ranks.ranks_per_node
        said = devices_free(each, self._env.get(VISIBLE))
        if said is None:
            return None
        return Failed(
            rank=self._node_ranks.node * each,
            phase=Phase.START,
            error=DEVICES_TAKEN,
            message=said,
            infrastructure=True,
        )

    def _watched(self, ranks: RankProcesses, on_phase: PhaseListener) -> TimedOut | None:
        phase = Phase.START
        clock = _PhaseClock(self._limits_s)
        while not self._stopped.is_set():
            ranks.wait(_LOOK_S)
            ends = ranks.ends()
            self._is_failing = any(end.failed for end in ends)
            if self._is_failing or self._failed_elsewhere.is_set():
                _let_peers_report(ranks)
                return None
            if ranks.all_ended:
                return None
            slowest, _ = stuck_ranks(ends)
            if slowest is not phase:
                phase = slowest
                on_phase(phase)
            if (timed_out := clock.passed(ends)) is not None:
                return timed_out
        return None


class _PhaseClock:
    """Since when each rank has been in its phase, by this node's clock."""

    def __init__(
        self, limits_s: Mapping[Phase, float], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits_s = limits_s
        self._now = now
        self._since: dict[int, tuple[Phase, float]] = {}

    def passed(self, ends: tuple[RankEnd, ...]) -> TimedOut | None:
        """The limit that was passed, with the ranks that are furthest behind."""
        now = self._now()
        for end in ends:
            phase, since = self._since.setdefault(end.rank, (end.phase, now))
            if phase is not end.phase:
                self._since[end.rank] = (end.phase, now)
                continue
            limit_s = self._limits_s.get(phase, _EXIT_LIMIT_S)
            if end.exit_code is None and now - since > limit_s:
                stuck_phase, stuck = stuck_ranks(ends)
                return TimedOut(ranks=stuck, phase=stuck_phase, limit_s=limit_s)
        return None


def _let_peers_report(ranks: RankProcesses) -> None:
    deadline = time.monotonic() + GRACE_S
    while not ranks.all_ended and (left_s := deadline - time.monotonic()) > 0:
        ranks.wait(left_s)
