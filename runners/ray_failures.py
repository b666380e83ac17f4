"""From an error of Ray to what became of a trial's supervisor, or of Ray itself."""

from __future__ import annotations

from collections.abc import Sequence

from ray.exceptions import ActorDiedError, GetTimeoutError, NodeDiedError, OutOfMemoryError

from tuner.outcome import Failed, Outcome, Phase
from tuner.outcome import OutOfMemory as OutOfMemoryOutcome

_LOW_MEMORY = ("running low on memory", "memory pressure")
"""Ray's memory monitor, in the reason that it gives for an actor's death."""
_NODE_LOST = ("node has died", "node was terminated", "node is dead", "node has crashed")


def outcome_of_lost(error: Exception, phase: Phase, gone: Sequence[str] = ()) -> Outcome:
    """Of a trial whose supervisor did not come back; no fault of the plan, unless of its memory.

    Args:
        error: that a call to the supervisor ended with.
        phase: where the trial was when it was last heard of.
        gone: addresses of its nodes where Ray itself no longer answers.
    """
    said = " ".join(str(error).split())[:400] or type(error).__name__
    if isinstance(error, OutOfMemoryError) or any(words in said for words in _LOW_MEMORY):
        return OutOfMemoryOutcome(
            rank=0, phase=phase, message=f"Ray's memory monitor ended it, its node was full: {said}"
        )
    return Failed(
        rank=0,
        phase=phase,
        error=type(error).__name__,
        message=f"{_what_was_lost(error, said, gone)}: {said}",
        infrastructure=True,
    )


def _what_was_lost(error: Exception, said: str, gone: Sequence[str]) -> str:
    if gone:
        return f"Ray lost a node of the trial ({', '.join(gone)})"
    if isinstance(error, NodeDiedError) or any(words in said.lower() for words in _NODE_LOST):
        return "Ray lost a node of the trial"
    if isinstance(error, ActorDiedError):
        return "Ray lost a supervisor"
    if isinstance(error, GetTimeoutError):
        return "a supervisor did not answer in time"
    return "Ray lost a supervisor or its node"
