"""Starts Ray on this machine, or joins one that is running; the first module that imports Ray."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Ray reads most of these when it is imported.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_enable_metrics_collection", "0")
# Under `uv run` Ray would upload the current folder to every node.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
# A rank that takes too much memory is the trial's outcome; Ray would kill its supervisor instead.
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")

import ray

from runners.ray_cluster import silent
from runners.ray_loopback import on_loopback
from tuner.cluster import Cluster, Device
from tuner.errors import UserError

_CONNECT_LIMIT_S = 30.0
_OBJECT_STORE_BYTES = 80 * 2**20
"""Ray's minimum is 75 MiB; we send only launch files, reports and logs."""
_NAMESPACE = "paratune"


def ray_session(address: str | None, cluster: Cluster, num_slots: int) -> None:
    """Has this process joined to Ray: one of its own without an address.

    Raises:
        UserError: nothing answers at the address, or the cluster needs one and has none.
        RuntimeError: Ray does not start.
    """
    if address is not None:
        _connect_to_ray(address)
        return
    if cluster.num_nodes != 1:
        raise UserError(
            f"a cluster of {cluster.num_nodes} nodes needs a running Ray, got none; start Ray "
            "on every node and give its address with --ray-address HOST:PORT"
        )
    _start_ray(cluster, num_slots)


def _start_ray(cluster: Cluster, num_slots: int) -> None:
    gpus = {"num_gpus": 0} if cluster.gpu.device is Device.CPU else {}
    try:
        with on_loopback(), _signals_left_alone():
            ray.init(
                address="local",  # otherwise Ray joins what RAY_ADDRESS or an earlier start names
                num_cpus=max(2, num_slots),
                object_store_memory=_OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                namespace=_NAMESPACE,
                **gpus,
            )
    except Exception as error:  # Ray documents none of those that it raises
        ray.shutdown()
        raise RuntimeError(
            f"Ray does not start on this machine: {one_line(error)}; --runner local needs no Ray"
        ) from error


@contextmanager
def _signals_left_alone() -> Iterator[None]:
    """Puts back this process's own handler of SIGTERM, which Ray replaces when it starts.

    Ray's native handler aborts the process 3 s after a signal, whatever ends in order meanwhile.
    A process without a handler of its own keeps Ray's.
    """
    own = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as error:  # Ray's handler, while it starts
        raise KeyboardInterrupt from error
    finally:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and own is not signal.SIG_DFL and own is not None:
            signal.signal(signal.SIGTERM, own)


def _connect_to_ray(address: str) -> None:
    reason = _unreachable(address)
    if reason is None:
        try:
            with _signals_left_alone():
                ray.init(
                    address=address,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    namespace=_NAMESPACE,
                )
            return
        except Exception as error:  # Ray documents none of those that it raises
            ray.shutdown()
            reason = one_line(error)
    raise UserError(
        f"--ray-address must be HOST:PORT of a running Ray (or auto), got {address}: {reason}; "
        "`ray start --head` prints the address, or leave the option out to start Ray here"
    )


def _unreachable(address: str) -> str | None:
    """Why no Ray answers there. Asked in a process of its own: Ray's attempts cannot be ended."""
    if (reason := silent(address)) is not None:
        return reason
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_CONNECT_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_CONNECT_LIMIT_S:.0f} s"
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return lines[-1][:300] if lines else f"the health check ended with {done.returncode}"


def one_line(error: BaseException) -> str:
    """What Ray says, shortened."""
    return " ".join(str(error).split())[:400] or type(error).__name__
