"""A real Ray cluster of two nodes on this machine: two raylets, free ports, loopback only."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

HOST = "127.0.0.1"
_ROOT = Path(__file__).resolve().parent.parent
_START_LIMIT_S = 90.0
_END_LIMIT_S = 10.0
_POLL_S = 0.1
_STORE_BYTES = 80 * 2**20
"""Ray's minimum is 75 MiB."""
_JOINING = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Else Ray takes 127.0.0.1 for the machine's own address, where nothing listens."""
_SIGNAL_OF_PARENTS_DEATH = 1  # PR_SET_PDEATHSIG
_CLUSTER_VARIABLE = "PARATUNE_TEST_CLUSTER"
"""Inherited by whatever a node starts, so that all of it is found again at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNodeProcess:
    """One node: the blocking ``ray start``, and what it has started."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def raylet(self) -> psutil.Process:
        """The raylet of this node."""
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.NoSuchProcess):
                if child.name() == "raylet":
                    return child
        raise AssertionError(f"this node has no raylet; ray start said: {self.said()}")

    def kill(self) -> None:
        """Ends the node as a power cut does: everything of it at once, by SIGKILL."""
        with suppress(psutil.NoSuchProcess):
            starter = psutil.Process(self.process.pid)
            _kill([starter, *starter.children(recursive=True)])
        self.process.wait(_END_LIMIT_S)

    def said(self) -> str:
        """The end of what ``ray start`` printed."""
        return self.log.read_text(errors="replace")[-2000:]


@dataclass(slots=True, kw_only=True)
class TwoNodes:
    """The cluster while it runs; its second node may be killed and started again."""

    address: str
    """HOST:PORT, for ``--ray-address``."""
    dashboard: str
    """For ``paratune submit --address``."""
    client_env: Mapping[str, str]
    """What a process must have in its environment to join, or to submit."""
    folder: Path
    """Sockets and logs; gone afterwards."""
    node_env: Mapping[str, str]
    num_cpus: int
    nodes: list[RayNodeProcess] = field(default_factory=list)
    """The head first; one that was killed is out of it as soon as another is started."""

    @property
    def head(self) -> RayNodeProcess:
        """The node with the GCS and the dashboard."""
        return self.nodes[0]

    @property
    def second(self) -> RayNodeProcess:
        """The other node, as it was started last."""
        return self.nodes[-1]

    def start_second(self) -> None:
        """Starts the other node, again where it was killed, and waits until it has joined."""
        # One log monitor a machine, or a driver sees every line twice.
        self._start("--address", self.address, "--include-log-monitor", "false")

    def start_head(self, *options: str) -> None:
        """Starts the head and waits until its dashboard answers."""
        self._start("--head", *options)
        _wait_until(lambda: _answers(self.dashboard), self.head)

    def processes(self) -> list[psutil.Process]:
        """Whatever the cluster has started and is still there."""
        found = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(_CLUSTER_VARIABLE) == str(self.folder):
                    # Ray's agents write their titles over their environment: known as children.
                    found |= {process, *process.children(recursive=True)}
        return list(found)

    def _start(self, *options: str) -> None:
        agent_port = free_ports(1)[0]
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
            *("--num-cpus", str(self.num_cpus), "--num-gpus", "0"),
            *("--object-store-memory", str(_STORE_BYTES), "--temp-dir", str(self.folder)),
            *("--dashboard-agent-listen-port", str(agent_port), "--disable-usage-stats"),
            *("--min-worker-port", "0", "--max-worker-port", "0", "--no-monitor"),  # any free port
            *options,
        ]
        log = self.folder / f"node-{agent_port}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.node_env},
                start_new_session=True,
            )
        node = RayNodeProcess(process=process, log=log)
        self.nodes = [*(old for old in self.nodes if old.process.poll() is None), node]
        _wait_until(lambda: "Ray runtime started" in log.read_text(errors="replace"), node)


@contextmanager
def two_node_ray(
    *, num_cpus: int = 2, token: str | None = None, env: Mapping[str, str] | None = None
) -> Iterator[TwoNodes]:
    """Starts a head with a dashboard and a second node, and ends all of it.

    Args:
        num_cpus: that each node has to give.
        token: of Ray's authentication; without one it is switched off.
        env: more environment variables of the nodes.
    """
    cluster = _started(num_cpus, token, env or {})
    try:
        yield cluster
    finally:
        _end(cluster)


def _started(num_cpus: int, token: str | None, env: Mapping[str, str]) -> TwoNodes:
    """Twice where it must be: on a machine that is too busy Ray gives a raylet up after 30 s."""
    for is_last in (False, True):
        port, dashboard_port = free_ports(2)
        cluster = _new_cluster(port, dashboard_port, num_cpus, token, env)
        try:
            cluster.start_head("--port", str(port), "--dashboard-port", str(dashboard_port))
            cluster.start_second()
            return cluster
        except BaseException as error:
            _end(cluster)
            if is_last or not isinstance(error, AssertionError):
                raise
    raise AssertionError("not reached")


def _new_cluster(
    port: int, dashboard_port: int, num_cpus: int, token: str | None, env: Mapping[str, str]
) -> TwoNodes:
    """A cluster of which nothing runs yet."""
    # Not below pytest's folder: Ray's sockets lie 70 characters deeper, and a path may have 107.
    folder = Path(tempfile.mkdtemp(prefix="pt-ray-", dir="/tmp"))
    auth = {"RAY_AUTH_MODE": "disabled"}
    if token is not None:
        auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    client_env = {**auth, **_JOINING, "RAY_TMPDIR": str(folder)}
    return TwoNodes(
        address=f"{HOST}:{port}",
        dashboard=f"http://{HOST}:{dashboard_port}",
        client_env=client_env,
        folder=folder,
        node_env={
            **client_env,
            **dict.fromkeys(_JOINING, "1"),  # until the hook has been called
            # The entry point of a job is `python`, as on a cluster whose environment is active.
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(_ROOT),
            "RAY_START_HOOK": f"{__name__}.{start_hook.__name__}",
            _CLUSTER_VARIABLE: str(folder),
            **env,
        },
        num_cpus=num_cpus,
    )


def start_hook(parameters: Any, head: bool) -> None:
    """Called by ``ray start``: it would take the machine's own address, and outlive the tests."""
    from ray._private import services

    # All that it starts dies with it, and it with the process of the tests, however that ends.
    ctypes.CDLL(None).prctl(_SIGNAL_OF_PARENTS_DEATH, signal.SIGKILL)
    services.get_node_ip_address = lambda address=None: HOST
    parameters.node_ip_address = HOST
    parameters.ray_client_server_port = None  # one process less
    os.environ |= _JOINING  # of the raylet, and so of all drivers and workers


def free_ports(count: int) -> list[int]:
    """So many different ports of this machine that were free a moment ago."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((HOST, 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def listening_hosts(processes: Sequence[psutil.Process]) -> list[str]:
    """Addresses of this machine that they listen on for TCP; ``::`` stands for all."""
    pids = {process.pid for process in processes}
    found = {
        connection.laddr[0].removeprefix("::ffff:")
        for connection in psutil.net_connections("tcp")
        if connection.laddr and connection.status == psutil.CONN_LISTEN and connection.pid in pids
    }
    return sorted(found)


def _wait_until(happened: Callable[[], bool], node: RayNodeProcess) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while not happened():
        if node.process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"Ray did not start within {_START_LIMIT_S:.0f} s: {node.said()}")
        time.sleep(_POLL_S)


def _answers(dashboard: str) -> bool:
    try:
        urllib.request.urlopen(f"{dashboard}/api/version", timeout=_END_LIMIT_S).close()
    except urllib.error.HTTPError as error:
        return error.code == 401  # it is there, and asks for a token
    except OSError:
        return False
    return True


def _end(cluster: TwoNodes) -> None:
    """By SIGKILL: asked politely, Ray takes seconds. Ranks that moved away are found as well."""
    while left := cluster.processes():
        _kill(left)
    for node in cluster.nodes:
        node.process.wait(_END_LIMIT_S)
    shutil.rmtree(cluster.folder)


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _, alive = psutil.wait_procs(processes, timeout=_END_LIMIT_S)
    assert not alive, f"killed, but still there: {alive}"
