"""The framework's own files inside a Slurm batch script, with torchrun on every node."""

from __future__ import annotations

import shlex

from reports.emit.scripts import REPEATS, torchrun_script
from reports.emit.subject import Subject
from reports.wording import BENCH_VALUES
from tuner.launch import BENCH_MODULE, LaunchFile

SLURM_SCRIPT = "slurm.sh"


def torchrun_files(subject: Subject) -> tuple[LaunchFile, ...]:
    """The trial's files and ``launch.sh``; any plan of any framework."""
    return (*subject.spec.files, torchrun_script(subject))


def slurm_files(subject: Subject) -> tuple[LaunchFile, ...]:
    """The trial's files and ``slurm.sh``; any plan of any framework."""
    spec = subject.spec
    gpus = () if subject.on_cpu else (f"#SBATCH --gpus-per-node={spec.ranks_per_node}",)
    exports = (f"export {name}={shlex.quote(value)}" for name, value in spec.env)
    lines = (
        "#!/bin/bash",
        "#SBATCH --job-name=paratune",
        f"#SBATCH --nodes={spec.num_nodes}",
        "#SBATCH --ntasks-per-node=1",
        *gpus,
        "#SBATCH --exclusive",
        f"# {subject.origin}",
        f"# {BENCH_VALUES}",
        f"# In this folder: {REPEATS.format(f'sbatch {SLURM_SCRIPT}')}",
        "set -euo pipefail",
        "# Slurm runs a copy of this script: its own path is not this folder's.",
        "here=${PARATUNE_LAUNCH:-$SLURM_SUBMIT_DIR}",
        *exports,
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "# Of the job's number, so that two jobs on a node do not meet.",
        "MASTER_PORT=${MASTER_PORT:-$((20000 + SLURM_JOB_ID % 20000))}",
        "export MASTER_ADDR MASTER_PORT",
        f'[ $# -gt 0 ] || set -- -m {BENCH_MODULE} --launch "$here"',
        f"srun --kill-on-bad-exit=1 torchrun --nnodes={spec.num_nodes} "
        f"--nproc-per-node={spec.ranks_per_node} --rdzv-backend=c10d "
        '--rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" "$@"',
    )
    return (*spec.files, LaunchFile(name=SLURM_SCRIPT, text="\n".join(lines) + "\n"))
