"""From what ranks left behind to the outcome of a trial: pure, no process is looked at here."""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runners.failure_kinds import FailureKind, Raised, failure_kind
from runners.interference import disturbances
from runners.last_words import last_words
from tuner.outcome import Failed, Measured, Outcome, OutOfMemory, Phase, Source, StepsEnd, TimedOut
from tuner.step_statistics import step_statistics

_SHELL_SIGNAL = 128
"""What a shell or a container adds to the signal that ended a process: 137 is SIGKILL."""
_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals that a plan does not send to its own ranks."""
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
    stopped_at: float | None = None
    """Seconds since 1970 when it was seen stopped (SIGSTOP); None = it was not."""
    oom_killer: str | None = None
    """What was full when the kernel's out-of-memory killer struck meanwhile on its node."""

    @property
    def phase(self) -> Phase:
        """The last phase that it reported."""
        return Phase(self.report["phase"]) if self.report else Phase.START

    @property
    def succeeded(self) -> bool:
        """Whether it trained to the end and said so."""
        return bool(self.report and self.report["status"] == "ok" and self.exit_code == 0)

    @property
    def failed(self) -> bool:
        """Whether it has come to an end that its peers will wait for in vain."""
        ended = self.exit_code is not None or self.stopped_at is not None
        return ended and not self.succeeded

    @property
    def error(self) -> Mapping[str, Any] | None:
        """The exception that it wrote down."""
        return self.report.get("error") if self.report else None

    @property
    def signal_number(self) -> int | None:
        """The signal that killed it; None where none did."""
        code = self.exit_code or 0
        number = code - _SHELL_SIGNAL if code > _SHELL_SIGNAL else -code
        return number if number in set(signal.Signals) else None

    @property
    def kind(self) -> FailureKind:
        """What kind of failure its own words are; who was killed had no time for any."""
        memory = self.report.get("memory") if self.report else None
        if self.error is not None:
            chain = tuple(Raised.from_record(record) for record in self.error["chain"])
            return failure_kind(chain, self.error.get("memory") or memory)
        if self.stopped_at is not None or self.signal_number in _FROM_OUTSIDE:
            return FailureKind.OWN
        return failure_kind(last_words(self.log_tail), memory)

    @property
    def failed_at(self) -> float:
        """When it came to grief; infinite where it did not, or was ended by us."""
        if self.error is not None:
            return float(self.error["at"])
        if self.stopped_at is not None:
            return self.stopped_at - _DEATH_HEAD_START_S
        if self.exit_code is None or self.succeeded or self.ended_at is None:
            return math.inf
        # SIGABRT is also how a communication library ends a rank whose peer has raised.
        number = self.signal_number
        aborted = number == signal.SIGABRT and self.kind is not FailureKind.OUT_OF_MEMORY
        sudden = (number is not None or self.exit_code == 0) and not aborted
        return self.ended_at - _DEATH_HEAD_START_S if sudden else self.ended_at


def outcome_of_ranks(ends: Sequence[RankEnd], *, timed_out: TimedOut | None) -> Outcome:
    """What came of a trial.

    Args:
        ends: of all ranks, in order.
        timed_out: set where the trial was ended because of a phase limit.
    """
    if all(end.succeeded for end in ends):
        return _measured(ends)
    failed = [end for end in ends if end.failed_at < math.inf]
    # Clocks of nodes differ, so a complaint may bear an earlier time than what it is about.
    causes = [end for end in failed if end.kind is not FailureKind.PEER_LOST]
    if causes:
        first = min(causes, key=lambda end: end.failed_at)
        return _of_death(first) if first.error is None else _of_error(first)
    if failed and timed_out is None:
        return _of_lost_peers(min(failed, key=lambda end: end.failed_at))
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
    short = first.get("short_steps")
    known = step_statistics(times)
    peaks = tuple(int(result["peak_memory_bytes"]) for result in results)
    return Measured(
        step_times_s=times,
        step_time_s=known.level_s,
        step_time_ci_s=known.interval_s,
        tokens_per_s=first["tokens_per_step"] / known.level_s,
        peak_memory_bytes=max(peaks),
        peak_memory_bytes_by_rank=peaks,
        losses=tuple(first["losses"]),
        allocator_retries=sum(int(r["memory"].get("allocator_retries", 0)) for r in results),
        warmup_times_s=tuple(first.get("warmup_times_s", ())),
        outlier_steps=known.outliers,
        steps_end=StepsEnd(first.get("steps_end", StepsEnd.FIXED)),
        memory_growth_bytes=max(int(r.get("memory_growth_bytes", 0)) for r in results),
        marks=disturbances([r["load"] for r in results if r.get("load")]),
        memory_limit_bytes=min(int(r["memory"].get("limit_bytes") or 0) for r in results),
        short_microbatches=_short_microbatches(short),
        source=Source.EXTRAPOLATED if short else Source.MEASURED,
        unfollowed=tuple(dict.fromkeys(one for r in results for one in r.get("unfollowed", ()))),
        reserved_unused_bytes=max(_reserved_unused_bytes(r["memory"]) for r in results),
    )


def _short_microbatches(short: Mapping[str, Any] | None) -> tuple[int, ...]:
    return () if short is None else (int(short["low"]), int(short["high"]), int(short["full"]))


def _reserved_unused_bytes(memory: Mapping[str, Any]) -> int:
    reserved = int(memory.get("peak_reserved_bytes", 0))
    return reserved - int(memory.get("peak_allocated_bytes", reserved))


def _of_error(end: RankEnd) -> Outcome:
    error = end.error
    assert error is not None, "only for a rank that raised"
    message = _one_line(error["message"])[:600]
    if end.kind is FailureKind.OUT_OF_MEMORY:
        return OutOfMemory(rank=end.rank, phase=end.phase, message=message)
    port_taken = end.kind is FailureKind.PORT_TAKEN and end.phase is Phase.PROCESS_GROUP
    return Failed(
        rank=end.rank,
        phase=end.phase,
        error=error["type"],
        message=message,
        infrastructure=port_taken,
    )


def _of_lost_peers(end: RankEnd) -> Failed:
    """Of ranks that all say that another one was gone, though none was."""
    said = end.error["message"] if end.error is not None else end.log_tail[-400:]
    return Failed(
        rank=end.rank,
        phase=end.phase,
        error="connection lost",
        message=f"ranks lost each other although none of them had died: {_one_line(said)[:400]}",
        infrastructure=True,
    )


def _no_result(end: RankEnd) -> Failed:
    return Failed(
        rank=end.rank,
        phase=end.phase,
        error="no result",
        message="the rank ended without writing a result; its log holds what it said",
    )


def _of_death(end: RankEnd) -> Outcome:
    """Of a rank that ended without a word: stopped, killed, or crashed below Python."""
    if end.stopped_at is not None:
        return _of_stop(end)
    if end.exit_code == 0:
        return _no_result(end)
    number = end.signal_number
    name = f"exit code {end.exit_code}" if number is None else signal.Signals(number).name
    last = _one_line(end.log_tail)[-400:]
    if end.kind is FailureKind.OUT_OF_MEMORY:
        return OutOfMemory(rank=end.rank, phase=end.phase, message=last)
    if number == signal.SIGKILL and end.oom_killer is not None:
        said = f"the kernel's out-of-memory killer ended it: {end.oom_killer}"
        return OutOfMemory(rank=end.rank, phase=end.phase, message=said)
    if number in _FROM_OUTSIDE:
        return Failed(
            rank=end.rank,
            phase=end.phase,
            error=name,
            message=f"it was killed from outside with {name}, by a person, a batch system or a "
            "memory guard; the kernel's out-of-memory killer did not strike",
            infrastructure=True,
        )
    said = last or f"it ended with {name} and its log is empty"
    return Failed(rank=end.rank, phase=end.phase, error=name, message=said)


def _of_stop(end: RankEnd) -> Failed:
    return Failed(
        rank=end.rank,
        phase=end.phase,
        error="SIGSTOP",
        message="it was stopped from outside (SIGSTOP, or a debugger), and its peers wait for it",
        infrastructure=True,
    )


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
