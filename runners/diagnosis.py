"""From what ranks left behind to the outcome of a trial: pure, no process is looked at here."""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runners.interference import disturbances
from tuner.outcome import Failed, Measured, Outcome, OutOfMemory, Phase, StepsEnd, TimedOut
from tuner.step_statistics import step_statistics

_OOM_LAST_WORDS = ("std::bad_alloc", "DefaultCPUAllocator", "out of memory", "Cannot allocate")
"""In the log of a rank that died without a report: an allocation failed below Python."""
_PORT_TAKEN = ("EADDRINUSE", "address already in use", "Address already in use")
_DEATH_HEAD_START_S = 0.5
"""A killed rank's sockets close before its end is seen, so that a peer may complain first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How one rank ended."""

    rank: int
    report: Mapping[str, Any] | None
    """Its ``rank-N.json``; None where it wrote none."""
    exit_code: int | None
    """Negative = the signal that killed it; None = it was running until we ended it."""
    log_tail: str = ""
    ended_at: float | None = None
    """Seconds since 1970 when its end was seen; None = it was running until we ended it."""

    @property
    def phase(self) -> Phase:
        """The last phase that it reported."""
        return Phase(self.report["phase"]) if self.report else Phase.START

    @property
    def succeeded(self) -> bool:
        """Whether it trained to the end and said so."""
        return bool(self.report and self.report["status"] == "ok" and self.exit_code == 0)

    @property
    def error(self) -> Mapping[str, Any] | None:
        """The exception that it wrote down."""
        return self.report.get("error") if self.report else None

    @property
    def said_out_of_memory(self) -> bool:
        """Whether its last words are those of an allocator below Python."""
        return any(words in self.log_tail for words in _OOM_LAST_WORDS)

    @property
    def failed_at(self) -> float:
        """When it came to grief; infinite where it did not, or was ended by us."""
        if self.error is not None:
            return float(self.error["at"])
        if self.exit_code is None or self.succeeded or self.ended_at is None:
            return math.inf
        # SIGABRT is also how a communication library ends a rank whose peer has raised.
        aborted = self.exit_code == -signal.SIGABRT and not self.said_out_of_memory
        sudden = self.exit_code <= 0 and not aborted
        return self.ended_at - _DEATH_HEAD_START_S if sudden else self.ended_at


def outcome_of_ranks(
    ends: Sequence[RankEnd], *, timed_out: TimedOut | None, oom_killed: bool
) -> Outcome:
    """What came of a trial.

    Args:
        ends: of all ranks, in order.
        timed_out: set where the trial was ended because of a phase limit.
        oom_killed: the kernel's out-of-memory killer was at work during the trial.
    """
    if all(end.succeeded for end in ends):
        return _measured(ends)
    first = min(ends, key=lambda end: end.failed_at)
    if first.failed_at < math.inf:
        return _of_death(first, oom_killed) if first.error is None else _of_error(first)
    if timed_out is not None:
        return timed_out
    return _no_result(next(end for end in ends if not end.succeeded))


def stuck_ranks(ends: Sequence[RankEnd]) -> tuple[Phase, tuple[int, ...]]:
    """The earliest phase in which a rank is, and the ranks that are in it."""
    order = list(Phase)
    earliest = min((end.phase for end in ends), key=order.index)
    return earliest, tuple(end.rank for end in ends if end.phase is earliest)


def _measured(ends: Sequence[RankEnd]) -> Measured:
    results = [end.report["result"] for end in ends if end.report]
    first = results[0]
    times = tuple(first["step_times_s"])
    known = step_statistics(times)
    peaks = tuple(int(result["peak_memory_bytes"]) for result in results)
    return Measured(
        step_times_s=times,
        step_time_s=known.median_s,
        step_time_ci_s=known.interval_s,
        tokens_per_s=first["tokens_per_step"] / known.median_s,
        peak_memory_bytes=max(peaks),
        peak_memory_bytes_by_rank=peaks,
        losses=tuple(first["losses"]),
        allocator_retries=sum(int(r["memory"].get("allocator_retries", 0)) for r in results),
        warmup_times_s=tuple(first.get("warmup_times_s", ())),
        outlier_steps=known.outliers,
        steps_end=StepsEnd(first.get("steps_end", StepsEnd.FIXED)),
        memory_growth_bytes=max(int(r.get("memory_growth_bytes", 0)) for r in results),
        marks=disturbances([r["load"] for r in results if r.get("load")]),
        unfollowed=tuple(dict.fromkeys(one for r in results for one in r.get("unfollowed", ()))),
        reserved_unused_bytes=max(_reserved_unused_bytes(r["memory"]) for r in results),
    )


def _reserved_unused_bytes(memory: Mapping[str, Any]) -> int:
    reserved = int(memory.get("peak_reserved_bytes", 0))
    return reserved - int(memory.get("peak_allocated_bytes", reserved))


def _of_error(end: RankEnd) -> Outcome:
    error = end.error
    assert error is not None, "only for a rank that raised"
    message = " ".join(str(error["message"]).split())[:600]
    if error["out_of_memory"]:
        return OutOfMemory(rank=end.rank, phase=end.phase, message=message)
    port_taken = end.phase is Phase.PROCESS_GROUP and any(word in message for word in _PORT_TAKEN)
    return Failed(
        rank=end.rank,
        phase=end.phase,
        error=error["type"],
        message=message,
        infrastructure=port_taken,
    )


def _no_result(end: RankEnd) -> Failed:
    return Failed(
        rank=end.rank,
        phase=end.phase,
        error="no result",
        message="the rank ended without writing a result; its log holds what it said",
    )


def _of_death(end: RankEnd, oom_killed: bool) -> Outcome:
    """Of a rank that ended without a word: killed, or crashed below Python."""
    code = end.exit_code or 0
    if code == 0:
        return _no_result(end)
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    last = " ".join(end.log_tail.split())[-400:]
    by_killer = code == -signal.SIGKILL and oom_killed
    if by_killer or end.said_out_of_memory:
        said = "the kernel's out-of-memory killer ended it" if by_killer else last
        return OutOfMemory(rank=end.rank, phase=end.phase, message=said)
    return Failed(rank=end.rank, phase=end.phase, error=name, message=last)
