"""What a forked test rank runs; apart, so that the fork server imports nothing else."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def run_forked_rank(
    launch: Path, folder: Path, rank: int, env: dict[str, str], mistake: str = ""
) -> None:
    from runners.bench.rank import run_rank
    from tests.runners.planted import plant

    os.environ.update(env)
    with (folder / f"rank-{rank}.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    import torch

    torch.set_num_threads(1)
    plant(mistake)
    code = run_rank(launch, folder)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
