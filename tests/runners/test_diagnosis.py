"""From what ranks left behind to a typed outcome: the cause, not the noise that followed it."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from runners.diagnosis import RankEnd, outcome_of_ranks, stuck_ranks
from tuner.outcome import Failed, Measured, Outcome, Phase, TimedOut


def end(rank: int, phase: str = "model", *, code: int | None = None, **more: Any) -> RankEnd:
    report = {"phase": phase, "status": "running"}
    return RankEnd(rank=rank, report=report, exit_code=code, **more)


def raised(rank: int, at: float, message: str = "no", phase: str = "model") -> RankEnd:
    chain = [{"types": ["RuntimeError", "Exception"], "message": message, "errno": None}]
    error = {"type": "ValueError", "message": message, "chain": chain, "at": at, "memory": None}
    report = {"phase": phase, "status": "error", "error": error}
    return RankEnd(rank=rank, report=report, exit_code=1, ended_at=at + 0.1)


def of(*ends: RankEnd, timed_out: TimedOut | None = None) -> Outcome:
    return outcome_of_ranks(ends, timed_out=timed_out)


def test_the_earliest_of_two_errors_counts_whatever_the_rank() -> None:
    failed = of(raised(0, 12.0, "peer is gone"), raised(1, 11.0, "shapes"))
    assert failed == Failed(rank=1, phase=Phase.MODEL, error="ValueError", message="shapes")


def test_a_message_is_put_on_one_line() -> None:
    failed = of(raised(0, 1.0, "one\n  two\n"))
    assert isinstance(failed, Failed)
    assert failed.message == "one two"


@pytest.mark.parametrize("peer_complains_at", [9.9, 10.2])
def test_a_killed_rank_precedes_a_peer_that_noticed(peer_complains_at: float) -> None:
    killed = end(0, code=-signal.SIGKILL, ended_at=10.0)
    failed = of(killed, raised(1, peer_complains_at, "Connection closed by peer"))
    assert isinstance(failed, Failed)
    assert (failed.rank, failed.error) == (0, "SIGKILL")


def test_a_rank_that_crashed_without_a_word_is_said_to_have_said_none() -> None:
    failed = of(end(0, code=-signal.SIGSEGV, ended_at=10.0))
    assert isinstance(failed, Failed)
    assert failed.message == "it ended with SIGSEGV and its log is empty"


def test_an_error_long_before_a_kill_is_the_cause() -> None:
    failed = of(end(0, code=-signal.SIGKILL, ended_at=10.0), raised(1, 8.0))
    assert isinstance(failed, Failed)
    assert failed.rank == 1


def test_a_library_that_aborts_after_a_peers_error_is_not_the_cause() -> None:
    failed = of(end(0, code=-signal.SIGABRT, ended_at=10.0), raised(1, 9.95))
    assert isinstance(failed, Failed)
    assert failed.rank == 1


def test_an_error_outweighs_the_time_limit_that_ended_the_others() -> None:
    limit = TimedOut(ranks=(0,), phase=Phase.MODEL, limit_s=1.0)
    assert isinstance(of(end(0), raised(1, 1.0), timed_out=limit), Failed)
    assert of(end(0), end(1), timed_out=limit) == limit


def test_a_port_that_is_taken_is_the_machines_fault_only_where_ranks_meet() -> None:
    text = "The server socket has failed to listen: EADDRINUSE, address already in use"
    meeting = of(raised(0, 1.0, text, "process_group"))
    assert isinstance(meeting, Failed)
    assert meeting.infrastructure
    later = of(raised(0, 1.0, text, "model"))
    assert isinstance(later, Failed)
    assert not later.infrastructure


def test_a_rank_that_ended_well_without_a_result_fails() -> None:
    failed = of(RankEnd(rank=0, report=None, exit_code=0, ended_at=1.0))
    assert isinstance(failed, Failed)
    assert (failed.error, failed.phase) == ("no result", Phase.START)


def test_the_numbers_are_of_the_fullest_rank_and_the_retries_of_all() -> None:
    def done(rank: int, peak: int) -> RankEnd:
        result = {
            "step_times_s": [2.0, 1.0, 3.0],
            "losses": [6.0, 5.0],
            "peak_memory_bytes": peak,
            "memory": {"allocator_retries": 2},
            "tokens_per_step": 256,
        }
        report = {"phase": "done", "status": "ok", "result": result}
        return RankEnd(rank=rank, report=report, exit_code=0, ended_at=1.0)

    outcome = of(done(0, 10), done(1, 30))
    assert isinstance(outcome, Measured)
    assert outcome == Measured(
        step_times_s=(2.0, 1.0, 3.0),
        step_time_s=2.0,
        step_time_ci_s=outcome.step_time_ci_s,
        tokens_per_s=128.0,
        peak_memory_bytes=30,
        peak_memory_bytes_by_rank=(10, 30),
        losses=(6.0, 5.0),
        allocator_retries=4,
    )


def test_the_ranks_in_the_earliest_phase_are_stuck() -> None:
    ends = (end(0, "steps"), end(1, "first_step"), end(2, "first_step"))
    assert stuck_ranks(ends) == (Phase.FIRST_STEP, (1, 2))
