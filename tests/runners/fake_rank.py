"""A rank that misbehaves on demand: ``fake_rank.py FOLDER BEHAVIOUR-OF-RANK-0 ...``.

A behaviour is ``PHASE:ACTION+ACTION...``; without a phase, in ``model``.

Writes the reports that ``runners.bench.rank_report`` would, without importing torch.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from runners.bench.process import die_with_supervisor

RESULT = {
    "step_times_s": [0.3, 0.1, 0.2],
    "losses": [6.0, 5.0],
    "peak_memory_bytes": 1000,
    "memory": {},
    "tokens_per_step": 256,
}


class FakeRank:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rank = int(os.environ["RANK"])
        self.phase = "start"

    def report(self, phase: str, status: str = "running", **more: Any) -> None:
        self.phase = phase
        path = self.folder / f"rank-{self.rank}.json"
        text = json.dumps({"phase": phase, "status": status, "pid": os.getpid(), **more})
        path.with_suffix(".tmp").write_text(text)
        path.with_suffix(".tmp").replace(path)

    def raise_error(self, message: str, kind: str = "RuntimeError") -> NoReturn:
        raised = {"types": [kind, "RuntimeError", "Exception"], "message": message, "errno": None}
        error = {
            "type": kind.rpartition(".")[2],
            "message": message,
            "chain": [raised],
            "at": time.time(),
            "memory": None,
        }
        self.report(self.phase, "error", error=error)
        os._exit(1)

    def succeed(self) -> NoReturn:
        self.report("done", "ok", result=RESULT | {"peak_memory_bytes": 1000 + self.rank})
        os._exit(0)

    def outlive_rank_0(self) -> None:
        """Goes on once rank 0 is gone, as a peer in a collective would notice."""
        path = self.folder / "rank-0.json"
        while not path.exists():
            time.sleep(0.01)
        pid = int(json.loads(path.read_text())["pid"])
        while _is_running(pid):
            time.sleep(0.001)

    def leave_a_grandchild(self) -> None:
        program = [sys.executable, "-c", "import time; time.sleep(600)"]
        process = subprocess.Popen(program, start_new_session=True)
        (self.folder / f"grandchild-{self.rank}.pid").write_text(str(process.pid))

    def say_bad_alloc(self) -> None:
        sys.stderr.write("terminate called after throwing an instance of 'std::bad_alloc'\n")

    def act(self, action: str) -> None:
        actions: dict[str, Callable[[], object]] = {
            "succeed": self.succeed,
            "raise": lambda: self.raise_error("the shapes do not fit"),
            "lose-peer": lambda: self.raise_error("Connection closed by peer"),
            "out-of-memory": lambda: self.raise_error(
                "CUDA out of memory", "torch.OutOfMemoryError"
            ),
            "outlive-rank-0": self.outlive_rank_0,
            "orphan": self.leave_a_grandchild,
            "say-bad-alloc": self.say_bad_alloc,
            "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
            "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
            "abort": lambda: os.kill(os.getpid(), signal.SIGABRT),
            "exit": lambda: sys.exit(0),
            "hang": lambda: time.sleep(600),
        }
        actions[action]()


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    die_with_supervisor()
    fake = FakeRank(Path(sys.argv[1]))
    first_phase, _, behaviour = sys.argv[2 + fake.rank].rpartition(":")
    fake.report(first_phase or "model")
    for one in behaviour.split("+"):
        fake.act(one)
