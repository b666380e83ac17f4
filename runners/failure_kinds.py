"""What kind of failure an exception is: of memory, of a peer, of a port, or the rank's own; pure.

Types decide; well-known words count only inside the types that carry them. What a rank says when
another one has died is a consequence, whatever words of the other's it repeats.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

BELOW_PYTHON = "below Python"
"""The type of a native library's last words: it has none of its own."""
_NEARLY_FULL = 1 / 32
"""Of a GPU's memory: with less than this free, a vague error of CUDA's libraries is a failed
allocation. They need tens to hundreds of MiB that torch's allocator does not manage."""


class FailureKind(StrEnum):
    """Why a rank failed, as far as it can tell itself."""

    OUT_OF_MEMORY = "out_of_memory"
    PEER_LOST = "peer_lost"
    """Another rank did not answer: a consequence, unless all ranks say so."""
    PORT_TAKEN = "port_taken"
    OWN = "own"


class _When(StrEnum):
    """What must be known of the rank's memory for words to count."""

    ALWAYS = "always"
    NEARLY_FULL = "nearly_full"
    """The device has next to nothing left."""
    LIMITED = "limited"
    """A CPU rank whose memory is limited: threads without memory for their stacks, and extensions
    that fail without saying why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """An exception as data."""

    types: tuple[str, ...]
    """Qualified names of its class and of the bases of that, the class first."""
    message: str
    error_number: int | None = None
    """The errno of an OSError."""

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Raised:
        """Reads what ``rank_report`` writes."""
        return cls(
            types=tuple(record["types"]),
            message=str(record["message"]),
            error_number=record.get("errno"),
        )


_RUNTIME = "RuntimeError"
_NO_SEGMENT = "failed to map segment from shared object"
"""The dynamic linker's words for a library whose pages could not be had."""
_NCCL = "torch.distributed.DistBackendError"
_MEMORY_TYPES = frozenset(
    {
        "torch.OutOfMemoryError",
        "MemoryError",
        "c10::OutOfMemoryError",
        "std::bad_alloc",
    }
)
_MEMORY_WORDS: tuple[tuple[str, str, _When], ...] = (
    (_RUNTIME, "DefaultCPUAllocator: can't allocate memory", _When.ALWAYS),
    (_RUNTIME, "DefaultCPUAllocator: not enough memory", _When.ALWAYS),
    (_RUNTIME, "C10 Out of Memory", _When.ALWAYS),
    (_RUNTIME, "std::bad_alloc", _When.ALWAYS),
    (_RUNTIME, "Cannot allocate memory", _When.ALWAYS),
    (_RUNTIME, "CUDA out of memory", _When.ALWAYS),
    (_RUNTIME, "HIP out of memory", _When.ALWAYS),
    (_RUNTIME, "CUDA error: out of memory", _When.ALWAYS),
    (_RUNTIME, "CUDA driver error: out of memory", _When.ALWAYS),
    (_RUNTIME, "Triton Error [CUDA]: out of memory", _When.ALWAYS),
    (_RUNTIME, "CUBLAS_STATUS_ALLOC_FAILED", _When.ALWAYS),
    (_RUNTIME, "CUDNN_STATUS_ALLOC_FAILED", _When.ALWAYS),
    (_NCCL, "'out of memory'", _When.ALWAYS),
    (_NCCL, "Failed to CUDA calloc", _When.ALWAYS),
    (_NCCL, "Failed to CUDA host alloc", _When.ALWAYS),
    (_NCCL, "unhandled cuda error", _When.NEARLY_FULL),
    (_RUNTIME, "CUBLAS_STATUS_NOT_INITIALIZED", _When.NEARLY_FULL),
    (_RUNTIME, "CUBLAS_STATUS_INTERNAL_ERROR", _When.NEARLY_FULL),
    (_RUNTIME, "CUDNN_STATUS_NOT_INITIALIZED", _When.NEARLY_FULL),
    (_RUNTIME, "CUDNN_STATUS_INTERNAL_ERROR", _When.NEARLY_FULL),
    (_RUNTIME, "[enforce fail a", _When.LIMITED),
    (_RUNTIME, "can't start new thread", _When.LIMITED),
    (_RUNTIME, "Resource temporarily unavailable", _When.LIMITED),
    ("ImportError", _NO_SEGMENT, _When.LIMITED),
    ("OSError", _NO_SEGMENT, _When.LIMITED),
    ("SystemError", "without setting an exception", _When.LIMITED),
    ("SystemError", "error return without exception set", _When.LIMITED),
    (BELOW_PYTHON, "Cannot allocate memory", _When.ALWAYS),
    (BELOW_PYTHON, "cannot allocate memory", _When.ALWAYS),
    (BELOW_PYTHON, "Out of memory", _When.ALWAYS),
    (BELOW_PYTHON, "Resource temporarily unavailable", _When.ALWAYS),
    (BELOW_PYTHON, "memory allocation of ", _When.ALWAYS),
    (BELOW_PYTHON, "terminate called without an active exception", _When.LIMITED),
)
"""Type, words inside its message, and when they count. cuBLAS and cuDNN say "not initialized"
where they could not allocate their handles; NCCL says no more than "unhandled cuda error"; torch
keeps the first 15 bytes of "[enforce fail at alloc_cpu" where the rest does not fit either; of
several threads that a library starts, one without memory for its stack leaves the others behind,
which C++ answers without naming an exception."""
_PEER_TYPES = frozenset({"ConnectionResetError", "BrokenPipeError", "ConnectionAbortedError"})
_PEER_WORDS = (
    # gloo
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket unexpectedly closed",
    "Application timeout caused pair closure",
    "Timed out waiting",
    "Gloo connectFullMesh failed",
    "monitoredBarrier",
    # NCCL and its watchdog
    "ncclRemoteError",
    "remote process exited or there was a network error",
    "Connection closed by remote peer",
    "Socket recv failed while polling",
    "NCCL communicator was aborted",
    "Watchdog caught collective operation timeout",
    # the store, where ranks meet
    "Connection was likely closed",
    "clients joined",
    "client socket has timed out",
    "wait timeout after",
)
_PEER_CARRIERS = frozenset({_RUNTIME, "TimeoutError"})
_PORT_WORDS = ("EADDRINUSE", "address already in use", "Address already in use")


def failure_kind(chain: Sequence[Raised], memory: Mapping[str, Any] | None) -> FailureKind:
    """Of an exception together with those that it came from.

    Args:
        chain: the exception that ended the rank, then its causes.
        memory: what the rank knew of its memory then; None where it could not tell.
    """
    kinds = [_kind(raised, memory) for raised in chain]
    for kind in (FailureKind.OUT_OF_MEMORY, FailureKind.PEER_LOST, FailureKind.PORT_TAKEN):
        if kind in kinds:
            return kind
    return FailureKind.OWN


def _kind(raised: Raised, memory: Mapping[str, Any] | None) -> FailureKind:
    if _is_of_peer(raised):
        return FailureKind.PEER_LOST
    if _is_of_memory(raised, memory):
        return FailureKind.OUT_OF_MEMORY
    by_word = _RUNTIME in raised.types and any(words in raised.message for words in _PORT_WORDS)
    if by_word or raised.error_number == errno.EADDRINUSE:
        return FailureKind.PORT_TAKEN
    return FailureKind.OWN


def _is_of_peer(raised: Raised) -> bool:
    if not _PEER_TYPES.isdisjoint(raised.types):
        return True
    return not _PEER_CARRIERS.isdisjoint(raised.types) and any(
        words in raised.message for words in _PEER_WORDS
    )


def _is_of_memory(raised: Raised, memory: Mapping[str, Any] | None) -> bool:
    if not _MEMORY_TYPES.isdisjoint(raised.types) or raised.error_number == errno.ENOMEM:
        return True
    return any(
        carrier in raised.types and words in raised.message and _holds(when, memory)
        for carrier, words, when in _MEMORY_WORDS
    )


def _holds(when: _When, memory: Mapping[str, Any] | None) -> bool:
    if when is _When.ALWAYS:
        return True
    if memory is None:
        return False
    if when is _When.LIMITED:
        return memory.get("cpu_limit_bytes") is not None
    total, free = memory.get("device_total_bytes"), memory.get("device_free_bytes")
    return total is not None and free is not None and free < total * _NEARLY_FULL
