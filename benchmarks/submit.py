"""How long a submitted study takes to its first trial: `python -m benchmarks.submit`.

Starts a real Ray of two nodes on this machine, submits a tiny study of the simulated runner three
times, and prints the seconds from the command to the line of its first trial and to its end, with
the folder brought back; beside them the same study without Ray.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.ray_nodes import two_node_ray
from tests.tiny_job import job_file

ROUNDS = 3
_LIMIT_S = 300.0
"""For one command, which is killed then: the benchmark ends, whatever hangs."""


def timed(arguments: Sequence[str], folder: Path, env: Mapping[str, str]) -> tuple[float, float]:
    """Seconds to the first trial's line, and to the end."""
    started = time.monotonic()
    first_s = None
    command = [sys.executable, "-m", "tuner", *arguments, "--runner", "simulated"]
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **env},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        limit = threading.Timer(_LIMIT_S, process.kill)
        limit.start()
        assert process.stderr is not None
        for line in process.stderr:
            if first_s is None and line.startswith("trial 0 "):
                first_s = time.monotonic() - started
        limit.cancel()
    if process.returncode or first_s is None:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return first_s, time.monotonic() - started


def main() -> None:
    """Prints the table."""
    with tempfile.TemporaryDirectory() as above, two_node_ray(env={"HOME": above}) as cluster:
        folder = Path(above)
        job_file(folder)
        rows: dict[str, list[tuple[float, float]]] = {"submit": [], "tune, without Ray": []}
        for number in range(ROUNDS):
            study = ["--study", f"submitted-{number}", "--address", cluster.dashboard]
            env = {**cluster.client_env, "PYTHONPATH": cluster.node_env["PYTHONPATH"]}
            rows["submit"].append(timed(["submit", "job.yaml", *study], folder, env))
            local = ["tune", "job.yaml", "--study", f"tuned-{number}"]
            rows["tune, without Ray"].append(timed(local, folder, env))
    print(f"medians of {ROUNDS}, in turn       first trial        end")
    for name, times in rows.items():
        first_s, end_s = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"{name:<24} {first_s:>9.1f} s {end_s:>9.1f} s")


if __name__ == "__main__":
    main()
