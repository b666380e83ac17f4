"""Launches the winner of a study by hand and compares: `python benchmarks/relaunch.py STUDY`.

Five times in turn: a trial of the winner's plan as a study runs it, and `torchrun` on `best/`
alone. Prints both medians and their ratio; exit code 1 where they differ by more than 15 %.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from runners.rank_processes import NodeRanks, free_port
from runners.supervisor import Supervisor
from tuner.launch import ENVIRONMENT_FILE, TRAINING_FILE
from tuner.outcome import Measured, Phase

TOLERANCE = 0.15
LIMITS_S = dict.fromkeys(Phase, 300.0)


def supervised_step_s(best: Path, num_ranks: int, env: dict[str, str]) -> float:
    """Step time of these launch files under paratune's supervisor."""
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder)
        (trial / "launch").symlink_to(best.resolve())
        ranks = NodeRanks(
            ranks_per_node=num_ranks,
            num_ranks=num_ranks,
            master_address="127.0.0.1",
            master_port=free_port("127.0.0.1"),
        )
        outcome = Supervisor(trial, ranks, env=env, limits_s=LIMITS_S).run(lambda _: None).outcome()
    if not isinstance(outcome, Measured):
        raise SystemExit(f"the winner did not train again: {outcome}")
    return outcome.step_time_s


def relaunched_step_s(best: Path, num_ranks: int, env: dict[str, str]) -> float:
    """Step time that torchrun's rank 0 prints."""
    torchrun = Path(sys.executable).with_name("torchrun")
    command = [str(torchrun), "--standalone", f"--nproc-per-node={num_ranks}"]
    command += ["-m", "runners.bench", "--launch", "."]
    ended = subprocess.run(
        command, cwd=best, env={**os.environ, **env}, capture_output=True, text=True, timeout=600
    )
    found = re.search(r"step_time_s=([0-9.]+)", ended.stdout)
    if ended.returncode or found is None:
        raise SystemExit(f"torchrun failed: {ended.stderr[-2000:]}")
    return float(found.group(1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    best = options.study / "best"
    num_ranks = json.loads((best / TRAINING_FILE).read_text())["num_ranks"]
    env = json.loads((best / ENVIRONMENT_FILE).read_text())
    pairs = []
    for number in range(options.times):
        pair = (
            supervised_step_s(best, num_ranks, env),
            relaunched_step_s(best, num_ranks, env),
        )
        pairs.append(pair)
        print(f"{number + 1}: as a trial {pair[0]:.3f} s, by torchrun {pair[1]:.3f} s", flush=True)
    trial_s, torchrun_s = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = torchrun_s / trial_s
    print(f"median of {options.times}: as a trial {trial_s:.3f} s, by torchrun {torchrun_s:.3f} s")
    print(f"ratio {ratio:.3f} (must be within {TOLERANCE:.0%})")
    return 0 if abs(ratio - 1) <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
