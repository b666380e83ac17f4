"""One rank of a training job: reads the launch files, trains, measures, writes what it found.

Started on every rank by paratune's supervisor, by ``torchrun`` or by ``deepspeed``:
``python -m runners.bench --launch FOLDER [--results FOLDER]``.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from runners.bench.process import die_with_supervisor, show_as


def run_and_leave(arguments: Sequence[str]) -> NoReturn:
    """Runs this rank and ends its process: 0 when it has trained to the end."""
    try:
        code = _run(arguments)
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Frameworks' exit handlers wait for ranks that may be gone; all that matters is on disk.
    os._exit(code)


def _run(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m runners.bench", description=__doc__)
    # The second spelling is for the deepspeed launcher, which takes --launch for its --launcher.
    parser.add_argument(
        *("--launch", "--launch-folder"), type=Path, required=True, help="of the launch files"
    )
    parser.add_argument("--results", type=Path, help="where to write rank-N.json and results")
    # The deepspeed launcher appends --local_rank=N to the script's own arguments.
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    show_as(f"paratune r{os.environ.get('RANK', '0')}")
    from runners.bench.rank import run_rank  # after the death signal is set: imports take seconds

    return run_rank(options.launch, options.results)


if __name__ == "__main__":
    die_with_supervisor()
    run_and_leave(sys.argv[1:])
