"""What one rank writes down: its phase while it runs, its numbers or its error at the end."""

from __future__ import annotations

import json
import os
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tuner.outcome import Phase

_MESSAGE_CHARS = 4000
_LONGEST_CHAIN = 8


def raised_chain(error: BaseException) -> list[dict[str, Any]]:
    """The exception and those that it came from, as ``runners.failure_kinds`` reads them."""
    chain: list[dict[str, Any]] = []
    seen: BaseException | None = error
    while seen is not None and len(chain) < _LONGEST_CHAIN:
        chain.append(
            {
                "types": [_qualified(kind) for kind in type(seen).__mro__],
                "message": str(seen).strip()[:_MESSAGE_CHARS],
                "errno": seen.errno if isinstance(seen, OSError) else None,
            }
        )
        seen = seen.__cause__ or seen.__context__
    return chain


def _qualified(kind: type) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


@dataclass(slots=True, kw_only=True)
class RankReport:
    """The file ``rank-N.json``, rewritten whole at each change of phase and at the end."""

    rank: int
    path: Path | None
    """None: nothing is written (a launch by hand)."""
    phase: Phase = Phase.START
    entered: dict[str, float] = field(default_factory=lambda: {Phase.START: time.time()})
    """When the rank went into each phase, in seconds since 1970."""
    status: str = "running"
    memory: dict[str, Any] | None = None
    """What it knew of its memory when its model's began to be counted."""
    error: dict[str, Any] | None = None
    result: dict[str, Any] | None = None

    def enter(self, phase: Phase) -> None:
        """Says that the rank goes into this phase now."""
        self.phase = phase
        self.entered[phase] = time.time()
        self.write()

    def succeed(self, result: dict[str, Any]) -> None:
        """Keeps the numbers; the rank is done."""
        self.status = "ok"
        self.result = result
        self.enter(Phase.DONE)

    def fail(self, error: BaseException, memory: dict[str, Any] | None) -> None:
        """Keeps the exception, in the phase where it was raised."""
        self.status = "error"
        self.error = {
            "type": type(error).__name__,
            "message": str(error).strip()[:_MESSAGE_CHARS],
            "traceback": "".join(traceback.format_exception(error)),
            "chain": raised_chain(error),
            "at": time.time(),
            "memory": memory,
        }
        self.write()

    def write(self) -> None:
        """Replaces the file at once, so that a reader never sees half of it."""
        if self.path is None:
            return
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(self) | {"path": None, "pid": os.getpid()}))
        temporary.replace(self.path)
