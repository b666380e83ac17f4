"""What came of a trial: a union, matched to the end wherever it is read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Discriminator, Field

_HEADROOM = 0.02
"""Of the limit. Activations of two steps may differ by as much (MoE routing, fragmentation)."""


Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""Seconds, tokens a second: held to it where it is read, not where it is constructed."""
Finite = Annotated[float, Field(allow_inf_nan=False)]
"""A loss, which may be below 0."""
Count = Annotated[int, Field(ge=0)]


class Phase(StrEnum):
    """Where a rank is, in order; each phase has its own time limit."""

    START = "start"
    PROCESS_GROUP = "process_group"
    MODEL = "model"
    FIRST_STEP = "first_step"
    STEPS = "steps"
    DONE = "done"


class Source(StrEnum):
    """Where a number comes from; numbers of two sources never share a column."""

    MEASURED = "measured"
    EXTRAPOLATED = "extrapolated"
    """From measured steps of fewer micro-batches to one of all."""
    SIMULATED = "simulated"


class StepsEnd(StrEnum):
    """Why no more steps were measured."""

    FIXED = "fixed"
    """So many were asked for."""
    PRECISE = "precise"
    """The interval of the step time is as narrow as was asked for."""
    SLOWER = "slower"
    """The interval lies above the step time of the best plan so far."""
    MAX_STEPS = "max_steps"
    """The most that were allowed; the interval is wider than was asked for."""
    TIME = "time"
    """The time for steps was over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The plan trained; times are of whole optimizer steps, of the slowest rank."""

    step_times_s: tuple[Amount, ...]
    step_time_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Mean of the steps after warm-up, without outliers."""
    step_time_ci_s: tuple[Amount, Amount]
    """95 % interval of the mean."""
    tokens_per_s: Amount
    peak_memory_bytes: Count
    """Of the fullest rank."""
    peak_memory_bytes_by_rank: tuple[Count, ...]
    losses: tuple[Finite, ...] = ()
    """Mean over what a step ran of the global batch, one a step, warm-up included."""
    allocator_retries: Count = 0
    """CUDA only: times that the allocator had to free its cache to go on; > 0 means nearly full."""
    warmup_times_s: tuple[Amount, ...] = ()
    """Steps that do not count: times had not settled yet."""
    outlier_steps: tuple[Count, ...] = ()
    """Indices in ``step_times_s`` far from the others, which the mean leaves out."""
    steps_end: StepsEnd = StepsEnd.FIXED
    memory_growth_bytes: int = 0
    """Of the peak, from the second optimizer step on, on the rank where it grew most."""
    memory_limit_bytes: Count = 0
    """What a rank was allowed; 0 = not known."""
    reserved_unused_bytes: Count = 0
    """CUDA only: the most that a rank's allocator held at its peak beyond what tensors took."""
    marks: tuple[str, ...] = ()
    """What casts doubt on the numbers, each a sentence: another's load, a throttled clock."""
    short_microbatches: tuple[int, ...] = ()
    """Extrapolated only: micro-batches of the two kinds of short steps, and of a full one."""
    attempts: Annotated[int, Field(ge=1)] = 1
    """More than one where a first measurement was disturbed by other load and made again."""
    unfollowed: tuple[str, ...] = ()
    """Framework settings that were asked for and are not what ran, each a sentence."""
    source: Source = Source.MEASURED
    kind: Literal["measured"] = "measured"

    @property
    def is_nearly_full(self) -> bool:
        """It trained, but hit the limit or came close to it: a longer run may well fail."""
        near = (1 - _HEADROOM) * self.memory_limit_bytes
        return self.allocator_retries > 0 or 0 < near <= self.peak_memory_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The plan breaks rules; nothing was started."""

    reasons: tuple[str, ...]
    kind: Literal["rejected"] = "rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """A rank could not allocate."""

    rank: Count
    phase: Phase
    message: str
    source: Source = Source.MEASURED
    kind: Literal["out_of_memory"] = "out_of_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut:
    """Ranks stayed in a phase longer than its limit and were ended."""

    ranks: tuple[Count, ...]
    phase: Phase
    limit_s: Amount
    kind: Literal["timed_out"] = "timed_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A rank raised or was killed; the earliest one is named."""

    rank: Count
    phase: Phase
    error: str
    """Type of the exception, or the signal."""
    message: str
    infrastructure: bool = False
    """True where the machine, not the plan, is to blame: worth another try."""
    kind: Literal["failed"] = "failed"


Outcome = Annotated[Measured | Rejected | OutOfMemory | TimedOut | Failed, Discriminator("kind")]
