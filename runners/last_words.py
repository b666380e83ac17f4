"""The exceptions that a rank's log ends with, where it died before it could report them; pure."""

from __future__ import annotations

import re

from runners.failure_kinds import BELOW_PYTHON, Raised

_TERMINATE = re.compile(
    r"terminate called after throwing an instance of '(?P<type>[^']+)'"
    r"(?:\s*what\(\):\s*(?P<what>.*?)(?=\nException raised from|\nframe #|\nterminate called|\Z))?",
    re.DOTALL,
)
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?")
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
"""torch puts it before each line of a traceback."""
_NATIVE = (
    "libgomp: ",
    "OMP: Error",
    "OpenBLAS blas_thread_init: pthread_create failed",
    "cannot allocate memory for thread-local data",
    "memory allocation of ",  # Rust's
    "terminate called without an active exception",
)
_PYTHON_NAMES = {
    "c10::DistBackendError": "torch.distributed.DistBackendError",
    "c10::DistNetworkError": "torch.distributed.DistNetworkError",
    "c10::DistStoreError": "torch.distributed.DistStoreError",
}


def last_words(log_tail: str) -> tuple[Raised, ...]:
    """Exceptions that nobody caught, in C++ or in Python, and what native libraries said last."""
    text = _RANK_PREFIX.sub("", log_tail)
    return (*_uncaught_in_cpp(text), *_uncaught_in_python(text), *_said_by_libraries(text))


def _uncaught_in_cpp(text: str) -> list[Raised]:
    found = []
    for match in _TERMINATE.finditer(text):
        name = match["type"]
        python = _PYTHON_NAMES.get(name, name)
        found.append(Raised(types=(python, "RuntimeError"), message=(match["what"] or name)))
    return found


def _uncaught_in_python(text: str) -> list[Raised]:
    """The last traceback's exception. What it derives from is not printed; torch's are errors."""
    _, found, traceback = text.rpartition(_TRACEBACK)
    if not found:
        return []
    lines = traceback.splitlines()[1:]
    for number, line in enumerate(lines):
        if line.startswith((" ", "\t")) or not line:
            continue
        match = _RAISED.fullmatch(line)
        if match is None:
            return []
        name = match["type"]
        runtime = ("RuntimeError",) if name.startswith("torch.") else ()
        message = "\n".join([match["message"] or "", *lines[number + 1 :]])
        return [Raised(types=(name, *runtime), message=message.strip())]
    return []


def _said_by_libraries(text: str) -> list[Raised]:
    return [
        Raised(types=(BELOW_PYTHON,), message=line)
        for line in text.splitlines()
        if line.startswith(_NATIVE)
    ]
