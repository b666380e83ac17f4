"""Calls about one launch never meet another: what comes early waits, what comes late is nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from runners import node_supervisor
from runners.backends.launch import launch_for
from runners.node_supervisor import NodeLaunch, NodeResult, NodeState, NodeSupervisor
from runners.rank_process import ColdRanks, RankStarter
from runners.rank_processes import NodeRanks, free_port
from tests.tiny_job import cpu_cluster, tiny_workload
from tuner.launch import Measurement
from tuner.outcome import Failed, Measured, Phase
from tuner.plan import Backend, ParallelPlan, Precision

FAKE_RANK = Path(__file__).with_name("fake_rank.py")
PLAN = ParallelPlan(backend=Backend.PYTORCH, precision=Precision.FP32)
LIMITS_S = dict.fromkeys(Phase, 20.0)


@dataclass(frozen=True, slots=True)
class FakeRanks:
    """One rank that behaves as told."""

    behaviour: str

    def ready(
        self,
        trial_folder: Path,
        env: Mapping[str, str],
        limit_s: float,
        stopped: Callable[[], bool],
    ) -> RankStarter:
        command = (sys.executable, str(FAKE_RANK), str(trial_folder), self.behaviour)
        return ColdRanks(command=command).ready(trial_folder, env, limit_s, stopped)


@dataclass(frozen=True, slots=True)
class Node:
    """A supervisor, and a way to have it run a rank that behaves so."""

    supervisor: NodeSupervisor
    monkeypatch: pytest.MonkeyPatch

    def run(self, attempt: str, behaviour: str) -> NodeResult:
        ranks = FakeRanks(behaviour)
        self.monkeypatch.setattr(node_supervisor, "rank_source", lambda *_: ranks)
        return self.supervisor.run(
            NodeLaunch(
                attempt=attempt,
                spec=launch_for(PLAN, tiny_workload(), cpu_cluster(1), Measurement()),
                ranks=NodeRanks(
                    ranks_per_node=1,
                    num_ranks=1,
                    master_address="127.0.0.1",
                    master_port=free_port("127.0.0.1"),
                ),
                env={},
                limits_s=LIMITS_S,
            )
        )


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(NodeSupervisor(warm=False), monkeypatch)


def test_a_launch_that_has_not_begun_is_not_failing_as_the_one_before_it(node: Node) -> None:
    failed = node.run("first", "first_step:raise").end.outcome()
    assert isinstance(failed, Failed)
    assert node.supervisor.state("first").is_failing
    assert node.supervisor.state("second") == NodeState(phase=Phase.START, is_failing=False)


def test_the_failure_of_another_node_is_heard_before_the_launch_has_begun(node: Node) -> None:
    node.supervisor.fail("first")
    end = node.run("first", "hang").end
    assert end.timed_out is None
    assert [rank.exit_code for rank in end.ends] == [None]


def test_the_failure_of_another_launch_ends_nothing(node: Node) -> None:
    node.run("first", "succeed")
    node.supervisor.fail("first")
    node.supervisor.stop("first")
    assert isinstance(node.run("second", "succeed").end.outcome(), Measured)
