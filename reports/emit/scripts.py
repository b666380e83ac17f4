"""The shell scripts that start launch files: torchrun, DeepSpeed's launcher; no fixed port."""

from __future__ import annotations

import shlex

from reports.emit.subject import Subject
from reports.wording import BENCH_VALUES
from tuner.launch import BENCH_MODULE, LaunchFile

LAUNCH_SCRIPT = "launch.sh"
DEEPSPEED_SCRIPT = "launch_deepspeed.sh"
HOSTFILE = "hostfile.example"
FREE_PORT = (
    "python -c 'import socket; s = socket.socket(); s.bind((\"\", 0)); print(s.getsockname()[1])'"
)
"""A shell command that prints a port that nothing listens on."""
REPEATS = (
    "Without arguments it runs paratune's bench, as a trial does: a few steps on random "
    "tokens; with some it starts them: {} train.py ..."
)


def torchrun_script(subject: Subject) -> LaunchFile:
    """``launch.sh``: torchrun, the same command on every node."""
    return script(
        LAUNCH_SCRIPT,
        subject,
        comments=(REPEATS.format("./" + LAUNCH_SCRIPT), *_meeting_words(subject)),
        lines=(
            f'[ $# -gt 0 ] || set -- -m {BENCH_MODULE} --launch "$here"',
            f'exec {torchrun_words(subject)} "$@"',
        ),
    )


def torchrun_words(subject: Subject) -> str:
    """Torchrun with its options, up to the program."""
    spec = subject.spec
    ranks = f"--nproc-per-node={spec.ranks_per_node}"
    if spec.num_nodes == 1:
        return f"torchrun --standalone {ranks}"
    return (
        f"torchrun --nnodes={spec.num_nodes} {ranks} --rdzv-backend=c10d "
        '--rdzv-id="${RDZV_ID:-paratune}" '
        '--rdzv-endpoint="${RDZV_ENDPOINT:?HOST:PORT, one of the nodes and a free port of it}"'
    )


def deepspeed_scripts(subject: Subject) -> tuple[LaunchFile, ...]:
    """``launch_deepspeed.sh``, and for several nodes the hostfile's form."""
    spec = subject.spec
    where = f"--num_gpus={spec.ranks_per_node}"
    hosts: tuple[LaunchFile, ...] = ()
    comments: tuple[str, ...] = ()
    if spec.num_nodes > 1:
        where = f'--hostfile="${{HOSTFILE:-$here/hostfile}}" --num_nodes={spec.num_nodes} {where}'
        names = ", ".join(name for name, _ in spec.env)
        comments = (
            f"Once, on the first node. Copy {HOSTFILE} to hostfile and name your nodes in it.",
            *([f"Put {names} into ~/.deepspeed_env too: NAME=value a line."] if names else []),
        )
        lines = (f"node{i + 1} slots={spec.ranks_per_node}" for i in range(spec.num_nodes))
        hosts = (LaunchFile(name=HOSTFILE, text="\n".join(lines) + "\n"),)
    launch = script(
        DEEPSPEED_SCRIPT,
        subject,
        comments=(REPEATS.format("./" + DEEPSPEED_SCRIPT), *comments),
        lines=(
            # The launcher would take --launch for its own --launcher.
            "[ $# -gt 0 ] || set -- --module --no_local_rank "
            f'{BENCH_MODULE} --launch-folder "$here"',
            f"port=${{MASTER_PORT:-$({FREE_PORT})}}",
            f'exec deepspeed {where} --master_port="$port" "$@"',
        ),
    )
    return (launch, *hosts)


def script(
    name: str, subject: Subject, *, comments: tuple[str, ...], lines: tuple[str, ...]
) -> LaunchFile:
    """A POSIX shell script with ``$here``, its own folder, and the environment that is needed."""
    text = [
        "#!/bin/sh",
        f"# {subject.origin}",
        *(f"# {comment}" for comment in (*comments, BENCH_VALUES)),
        "set -eu",
        'here=$(cd "$(dirname "$0")" && pwd)',
        *(f"export {variable}={shlex.quote(value)}" for variable, value in subject.spec.env),
        *lines,
    ]
    return LaunchFile(name=name, text="\n".join(text) + "\n")


def _meeting_words(subject: Subject) -> tuple[str, ...]:
    if subject.spec.num_nodes == 1:
        return ()
    return ("On every node, RDZV_ENDPOINT being one of the nodes and a free port of it.",)
