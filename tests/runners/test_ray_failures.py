"""Ray's own errors, told apart: a node, a supervisor, memory."""

from __future__ import annotations

import pytest
from ray.exceptions import (
    ActorDiedError,
    GetTimeoutError,
    NodeDiedError,
    OutOfMemoryError,
    RayError,
)

from runners.ray_failures import outcome_of_lost
from tuner.outcome import Failed, OutOfMemory, Phase


def actor_died(reason: str) -> ActorDiedError:
    error = ActorDiedError()
    error.error_msg = (
        "The actor died unexpectedly before finishing this task.\n\tclass_name: NodeSupervisor\n"
        f"\tip: 10.0.0.2\n{reason}"
    )
    return error


LOW = "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: "


@pytest.mark.parametrize(
    "error", [OutOfMemoryError(f"{LOW}10.0.0.2"), actor_died(f"{LOW}10.0.0.2")]
)
def test_rays_memory_monitor_is_out_of_memory(error: RayError) -> None:
    out = outcome_of_lost(error, Phase.STEPS)
    assert isinstance(out, OutOfMemory)
    assert out.phase is Phase.STEPS
    assert "\n" not in out.message


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (actor_died("The actor died because its node has died. Node Id: 8b1e"), "a node"),
        (NodeDiedError("The node 8b1e is dead or unreachable"), "a node"),
        (
            actor_died("Worker exits unexpectedly. The process was killed by the OOM killer, or ("),
            "a supervisor",
        ),
        (GetTimeoutError("Get timed out: some object(s) not ready."), "did not answer"),
    ],
)
def test_what_was_lost_is_named_and_worth_another_try(error: RayError, words: str) -> None:
    failed = outcome_of_lost(error, Phase.MODEL)
    assert isinstance(failed, Failed)
    assert failed.infrastructure
    assert words in failed.message


def test_a_node_where_ray_no_longer_answers_is_named_before_ray_knows_it() -> None:
    error = actor_died("The actor is temporarily unavailable: RpcError: Socket closed")
    failed = outcome_of_lost(error, Phase.STEPS, ["10.0.0.2"])
    assert isinstance(failed, Failed)
    assert failed.message.startswith("Ray lost a node of the trial (10.0.0.2)")
