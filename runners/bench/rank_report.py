"""What one rank writes down: its phase while it runs, its numbers or its error at the end."""

from __future__ import annotations

import errno
import json
import os
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from tuner.outcome import Phase

_OOM_TEXTS = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "Cuda failure 'out of memory'",
    "Cuda failure 2",
    "std::bad_alloc",
    "Cannot allocate memory",
    "can't start new thread",
    "Resource temporarily unavailable",
)
"""What allocators below torch say. The last two are pthread_create without memory for a stack,
which RLIMIT_DATA makes likely."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this exception, or one that it came from, is a failed allocation."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, (torch.OutOfMemoryError, MemoryError)):
            return True
        if isinstance(seen, OSError) and seen.errno == errno.ENOMEM:
            return True
        if any(text in str(seen) for text in _OOM_TEXTS):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


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
            "message": str(error).strip()[:4000],
            "traceback": "".join(traceback.format_exception(error)),
            "out_of_memory": is_out_of_memory(error),
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
