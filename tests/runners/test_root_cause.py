"""Out of memory in all its guises, and what peers say of it: reports and logs as libraries write.

Paths, addresses and sizes are of this file; the wording is that of PyTorch 2.13, NCCL 2.27, gloo,
cuBLAS, glibc and libstdc++.
"""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from runners.bench.rank_report import raised_chain
from runners.diagnosis import RankEnd, outcome_of_ranks
from tuner.outcome import Failed, Outcome, OutOfMemory, Phase

RUNTIME = ("RuntimeError", "Exception", "BaseException", "object")
SYSTEM = ("SystemError", "Exception", "BaseException", "object")
NCCL = ("torch.distributed.DistBackendError", "torch.distributed.DistError", *RUNTIME)
ASYNC_NOTE = (
    "\nSearch for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda for more "
    "information.\nCUDA kernel errors might be asynchronously reported at some other API call, "
    "so the stacktrace below might be incorrect."
)
FULL = {"device_total_bytes": 80 * 2**30, "device_free_bytes": 2**29}
HALF_EMPTY = {"device_total_bytes": 80 * 2**30, "device_free_bytes": 40 * 2**30}
LIMITED_CPU = {"cpu_limit_bytes": 480 * 2**20}


def raised(
    types: tuple[str, ...],
    message: str,
    *,
    rank: int = 0,
    at: float = 10.0,
    memory: dict[str, Any] | None = None,
    errno: int | None = None,
    context: tuple[tuple[str, ...], str] | None = None,
) -> RankEnd:
    chain = [{"types": list(types), "message": message, "errno": errno}]
    if context is not None:
        chain.append({"types": list(context[0]), "message": context[1], "errno": None})
    error = {
        "type": types[0].rpartition(".")[2],
        "message": message,
        "chain": chain,
        "at": at,
        "memory": memory,
    }
    report = {"phase": "first_step", "status": "error", "error": json.loads(json.dumps(error))}
    return RankEnd(rank=rank, report=report, exit_code=1, ended_at=at + 0.1)


def died(
    code: int,
    log: str = "",
    *,
    rank: int = 0,
    at: float = 10.0,
    memory: dict[str, Any] | None = None,
    **more: Any,
) -> RankEnd:
    report = {"phase": "steps", "status": "running", "memory": memory}
    return RankEnd(rank=rank, report=report, exit_code=code, log_tail=log, ended_at=at, **more)


def of(*ends: RankEnd) -> Outcome:
    return outcome_of_ranks(ends, timed_out=None)


TORCH_OOM = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of "
    "which 1.20 GiB is free. Including non-PyTorch memory, this process has 77.94 GiB memory in "
    "use. Of the allocated memory 75.31 GiB is allocated by PyTorch, and 1.02 GiB is reserved by "
    "PyTorch but unallocated."
)
CPU_OOM = (
    "[enforce fail at alloc_cpu.cpp:128] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 65536000 bytes. Error code 12 (Cannot allocate memory)"
)
NCCL_ERROR = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, {what} (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.27.5\n{name}\nLast error:\n{last}"
)
NCCL_OOM = NCCL_ERROR.format(
    what="unhandled cuda error",
    name="ncclUnhandledCudaError: Call to CUDA function failed.",
    last="Cuda failure 2 'out of memory'",
)
NCCL_CALLOC = NCCL_ERROR.format(
    what="unhandled cuda error",
    name="ncclUnhandledCudaError: Call to CUDA function failed.",
    last="Failed to CUDA calloc async 608 bytes",
)
NCCL_VAGUE = NCCL_ERROR.format(
    what="unhandled cuda error",
    name="ncclUnhandledCudaError: Call to CUDA function failed.",
    last="",
)
NCCL_PEER = NCCL_ERROR.format(
    what="remote process exited or there was a network error",
    name="ncclRemoteError: A call failed possibly due to a network error or a remote process "
    "exiting prematurely.",
    last="socketProgress: Connection closed by remote peer node2<42830>",
)
NCCL_PEER_AS_INTERNAL = NCCL_ERROR.format(
    what="internal error - please report this issue to the NCCL developers",
    name="ncclInternalError: Internal check failed.",
    last="Socket recv failed while polling for opId=0x55a51966cc80",
)
CUBLAS = "CUDA error: {} when calling `cublasCreate(handle)`"
NO_EXCEPTION = "<function for_model at 0x7f38> returned NULL without setting an exception"
THREAD = "can't start new thread"
NO_SEGMENT = "/site-packages/a/a.abi3.so: failed to map segment from shared object"
IMPORT = ("ImportError", "Exception", "BaseException", "object")
LINKER = ("OSError", "Exception", "BaseException", "object")
TERMINATE = "terminate called after throwing an instance of '{}'\n  what():  {}\n"
NAMELESS = "terminate called without an active exception\n"
CPP_FRAMES = (
    "Exception raised from alloc_cpu at /pytorch/c10/core/impl/alloc_cpu.cpp:128 (most recent "
    "call first):\nframe #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96\n"
)
WATCHDOG = (
    "[PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with "
    "exception: "
)
WATCHDOG_TIMEOUT = (
    f"{WATCHDOG}[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=199, "
    "OpType=_REDUCE_SCATTER_BASE, NumelIn=7098, NumelOut=443, Timeout(ms)=600000) ran for 600725 "
    "milliseconds before timing out."
)
PYTHON_LOG = (
    "loading the model\nTraceback (most recent call last):\n"
    '  File "/site-packages/runners/bench/rank.py", line 33, in run_rank\n'
    "    report.fail(error, memory)\n{}\n"
)

OUT_OF_MEMORY = {
    "the allocator of torch": raised(("torch.OutOfMemoryError", *RUNTIME), TORCH_OOM),
    "CUDA outside the allocator": raised(
        ("torch.AcceleratorError", *RUNTIME), f"CUDA error: out of memory{ASYNC_NOTE}"
    ),
    "expandable segments": raised(RUNTIME, "CUDA driver error: out of memory"),
    "a Triton kernel": raised(RUNTIME, "Triton Error [CUDA]: out of memory"),
    "cuBLAS says so": raised(RUNTIME, CUBLAS.format("CUBLAS_STATUS_ALLOC_FAILED")),
    "cuBLAS near full": raised(
        RUNTIME, CUBLAS.format("CUBLAS_STATUS_NOT_INITIALIZED"), memory=FULL
    ),
    "cuDNN says so": raised(RUNTIME, "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    "cuDNN near full": raised(RUNTIME, "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", memory=FULL),
    "NCCL says so": raised(NCCL, NCCL_OOM),
    "NCCL's own buffers": raised(NCCL, NCCL_CALLOC),
    "NCCL near full": raised(NCCL, NCCL_VAGUE, memory=FULL),
    "the CPU allocator": raised(RUNTIME, CPU_OOM),
    "Python": raised(("MemoryError", "Exception", "BaseException", "object"), ""),
    "NumPy": raised(
        ("numpy._core._exceptions._ArrayMemoryError", "MemoryError", "Exception"),
        "Unable to allocate 1.00 GiB for an array with shape (268435456,) and data type float32",
    ),
    "a system call": raised(
        ("OSError", "Exception"), "[Errno 12] Cannot allocate memory", errno=12
    ),
    "a thread's stack under a limit": raised(RUNTIME, THREAD, memory=LIMITED_CPU),
    "an extension under a limit": raised(SYSTEM, NO_EXCEPTION, memory=LIMITED_CPU),
    "the import of an extension under a limit": raised(IMPORT, NO_SEGMENT, memory=LIMITED_CPU),
    "a library by ctypes under a limit": raised(LINKER, NO_SEGMENT, memory=LIMITED_CPU),
    "torch without memory for its own words": raised(
        RUNTIME, "[enforce fail a when instantiating MLP", memory=LIMITED_CPU
    ),
    "C++ through torch": raised(RUNTIME, "std::bad_alloc"),
    "Rust": died(-signal.SIGABRT, "memory allocation of 4096 bytes failed\n"),
    "Python itself under a limit": raised(
        SYSTEM, "error return without exception set", memory=LIMITED_CPU
    ),
    "an error raised while handling it": raised(
        RUNTIME, "the backward of stage 1 failed", context=(("torch.OutOfMemoryError",), TORCH_OOM)
    ),
    "an error of a peer raised while handling it": raised(
        NCCL, NCCL_PEER, context=(("torch.OutOfMemoryError", *RUNTIME), TORCH_OOM)
    ),
    "C++ without a handler": died(
        -signal.SIGABRT,
        "terminate called after throwing an instance of 'std::bad_alloc'\n"
        "  what():  std::bad_alloc\n",
    ),
    "torch's C++ without a handler": died(
        -signal.SIGABRT, TERMINATE.format("c10::Error", CPU_OOM) + CPP_FRAMES
    ),
    "NCCL's watchdog": died(
        -signal.SIGABRT,
        TERMINATE.format(
            "c10::DistBackendError", f"{WATCHDOG}CUDA error: out of memory{ASYNC_NOTE}"
        ),
    ),
    "an abort that a shell reports": died(
        134, TERMINATE.format("std::bad_alloc", "std::bad_alloc")
    ),
    "no memory for the report": died(1, PYTHON_LOG.format("MemoryError")),
    "no memory for the report, torchrun's prefix": died(
        1,
        "\n".join(
            f"[rank0]: {line}"
            for line in PYTHON_LOG.format(f"torch.OutOfMemoryError: {TORCH_OOM}").splitlines()
        ),
    ),
    "OpenMP": died(1, "\nlibgomp: Thread creation failed: Resource temporarily unavailable\n"),
    "glibc": died(-signal.SIGABRT, "cannot allocate memory for thread-local data: ABORT\n"),
    "a library's threads under a limit": died(-signal.SIGABRT, NAMELESS, memory=LIMITED_CPU),
    "the kernel": died(-signal.SIGKILL, oom_killer="the memory of the machine was full"),
    "the kernel, as a shell reports it": died(
        137, oom_killer="the memory limit of its container (cgroup) was reached"
    ),
}


@pytest.mark.parametrize("guise", OUT_OF_MEMORY)
def test_it_is_out_of_memory_by(guise: str) -> None:
    out = of(OUT_OF_MEMORY[guise])
    assert isinstance(out, OutOfMemory), out
    assert "\n" not in out.message


NOT_OUT_OF_MEMORY = {
    "a user's text": raised(
        ("ValueError", "Exception"), "a batch of 64 leads to: CUDA out of memory"
    ),
    "cuBLAS with memory left": raised(
        RUNTIME, CUBLAS.format("CUBLAS_STATUS_NOT_INITIALIZED"), memory=HALF_EMPTY
    ),
    "cuBLAS, nothing known of memory": raised(
        RUNTIME, CUBLAS.format("CUBLAS_STATUS_NOT_INITIALIZED")
    ),
    "NCCL with memory left": raised(NCCL, NCCL_VAGUE, memory=HALF_EMPTY),
    "too many threads without a limit": raised(RUNTIME, THREAD, memory=HALF_EMPTY),
    "a faulty extension without a limit": raised(SYSTEM, NO_EXCEPTION, memory=HALF_EMPTY),
    "a library that cannot be mapped without a limit": raised(
        IMPORT, NO_SEGMENT, memory=HALF_EMPTY
    ),
    "a package that is not installed": raised(IMPORT, "No module named 'a'", memory=LIMITED_CPU),
    "a file": raised(("FileNotFoundError", "OSError"), "[Errno 2] No such file", errno=2),
    "a segmentation fault": died(-signal.SIGSEGV, "set PYTORCH_ALLOC_CONF to avoid out of memory"),
    "threads left behind without a limit": died(-signal.SIGABRT, NAMELESS, memory=HALF_EMPTY),
    "threads left behind before the model": died(-signal.SIGABRT, NAMELESS),
    "kill -9": died(-signal.SIGKILL, "CUDA out of memory was foreseen"),
    "a machine that kills another process": died(-signal.SIGSEGV, oom_killer="full"),
}


@pytest.mark.parametrize("guise", NOT_OUT_OF_MEMORY)
def test_it_is_not_out_of_memory_by(guise: str) -> None:
    assert isinstance(of(NOT_OUT_OF_MEMORY[guise]), Failed)


def peer(types: tuple[str, ...], message: str) -> RankEnd:
    """Rank 0, whose words bear an earlier time than the failure that they are about."""
    return raised(types, message, rank=0, at=9.5)


GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:{}] {}"
STORE = ("torch.distributed.DistNetworkError", "torch.distributed.DistError", *RUNTIME)
CONSEQUENCES = {
    "gloo: closed": peer(RUNTIME, GLOO.format(553, "Connection closed by peer [10.0.0.2]:38032")),
    "gloo: reset": peer(
        RUNTIME, GLOO.format(589, "Read error [10.0.0.2]:25266: Connection reset by peer")
    ),
    "gloo: pipe": peer(RUNTIME, GLOO.format(602, "Write error [10.0.0.2]:2526: Broken pipe")),
    "gloo: time": peer(
        RUNTIME,
        "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting "
        "1800000ms for recv operation to complete",
    ),
    "gloo: meeting": peer(
        RUNTIME, "Gloo connectFullMesh failed with " + GLOO.format(144, "no error")
    ),
    "NCCL: remote": peer(NCCL, NCCL_PEER),
    "NCCL: remote as internal": peer(NCCL, NCCL_PEER_AS_INTERNAL),
    "NCCL: aborted": peer(NCCL, "NCCL communicator was aborted on rank 0."),
    "NCCL: watchdog": died(
        -signal.SIGABRT, TERMINATE.format("c10::DistBackendError", WATCHDOG_TIMEOUT), at=9.5
    ),
    "the store": peer(
        STORE,
        "failed to recv, got 0 bytes. Connection was likely closed. Did the remote server "
        "shutdown or crash?",
    ),
    "the store: joining": peer(
        ("torch.distributed.DistStoreError", *STORE[1:]),
        "Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
    ),
    "Python": peer(
        ("ConnectionResetError", "ConnectionError", "OSError"),
        "[Errno 104] Connection reset by peer",
    ),
    "an out of memory of the peer in a peer's words": peer(
        NCCL, f"{NCCL_PEER}\nproxy of rank 1: Cuda failure 2 'out of memory'"
    ),
}


@pytest.mark.parametrize("words", CONSEQUENCES)
def test_what_a_peer_says_is_a_consequence(words: str) -> None:
    shapes = raised(("ValueError", "Exception"), "the shapes do not fit", rank=1, at=10.0)
    assert of(CONSEQUENCES[words], shapes) == Failed(
        rank=1, phase=Phase.FIRST_STEP, error="ValueError", message="the shapes do not fit"
    )
    out = of(CONSEQUENCES[words], raised(("torch.OutOfMemoryError",), TORCH_OOM, rank=1, at=10.0))
    assert isinstance(out, OutOfMemory)
    assert out.rank == 1
    killed = of(CONSEQUENCES[words], died(-signal.SIGKILL, rank=1, at=11.0))
    assert isinstance(killed, Failed)
    assert (killed.rank, killed.error) == (1, "SIGKILL")


@pytest.mark.parametrize("words", CONSEQUENCES)
def test_where_all_ranks_lost_each_other_the_network_is_to_blame(words: str) -> None:
    lost = of(CONSEQUENCES[words])
    assert isinstance(lost, Failed)
    assert (lost.error, lost.infrastructure) == ("connection lost", True)


def test_who_was_killed_is_not_judged_by_what_it_had_logged() -> None:
    logged = PYTHON_LOG.format("ConnectionResetError: [Errno 104] Connection reset by peer")
    alone = of(died(-signal.SIGKILL, logged))
    assert isinstance(alone, Failed)
    assert alone.error == "SIGKILL"


@pytest.mark.parametrize("code", [-signal.SIGKILL, 137, -signal.SIGTERM])
def test_a_kill_from_outside_is_worth_another_try_but_a_crash_is_not(code: int) -> None:
    killed = of(died(code))
    assert isinstance(killed, Failed)
    assert killed.infrastructure
    crashed = of(died(-signal.SIGSEGV))
    assert isinstance(crashed, Failed)
    assert not crashed.infrastructure


def test_a_stopped_rank_is_the_cause_whatever_its_peers_say_later() -> None:
    stopped = RankEnd(rank=1, report=None, exit_code=None, stopped_at=9.0)
    failed = of(raised(RUNTIME, "no answer", at=10.0), stopped)
    assert isinstance(failed, Failed)
    assert (failed.rank, failed.error, failed.infrastructure) == (1, "SIGSTOP", True)


def test_a_rank_writes_down_its_exception_with_those_that_it_came_from() -> None:
    try:
        try:
            raise OSError(12, "Cannot allocate memory")
        except OSError as first:
            raise RuntimeError("the data cannot be loaded") from first
    except RuntimeError as error:
        chain = raised_chain(error)
    assert [(record["types"][0], record["errno"]) for record in chain] == [
        ("RuntimeError", None),
        ("OSError", 12),
    ]
    assert json.loads(json.dumps(chain)) == chain
