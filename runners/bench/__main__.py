"""One rank of a training job: reads the launch files, trains, measures, writes what it found.

Started on every rank by paratune's supervisor, by ``torchrun`` or by ``deepspeed``:
``python -m runners.bench --launch FOLDER [--results FOLDER]``.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
import traceback
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Asks the kernel to kill this rank when its supervisor dies, even by SIGKILL."""
    parent = os.environ.get("PARATUNE_SUPERVISOR_PID")
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        os._exit(1)


def main() -> int:
    """Runs this rank; 0 when it has trained to the end."""
    _die_with_parent()
    parser = argparse.ArgumentParser(prog="python -m runners.bench", description=__doc__)
    # The second spelling is for the deepspeed launcher, which takes --launch for its --launcher.
    parser.add_argument(
        *("--launch", "--launch-folder"), type=Path, required=True, help="of the launch files"
    )
    parser.add_argument("--results", type=Path, help="where to write rank-N.json and results")
    # The deepspeed launcher appends --local_rank=N to the script's own arguments.
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    from runners.bench.rank import run_rank  # after the death signal is set: imports take seconds

    return run_rank(options.launch, options.results)


if __name__ == "__main__":
    try:
        code = main()
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Frameworks' exit handlers wait for ranks that may be gone; all that matters is on disk.
    os._exit(code)
