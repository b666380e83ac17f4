"""The commands that start a folder of launch files by hand, without paratune's supervisor; pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from tuner.launch import BENCH_MODULE


def torchrun_command(
    launch: str, *, num_nodes: int, gpus_per_node: int, env: Mapping[str, str]
) -> tuple[str, ...]:
    """The shell words that start the launch files; the same on every node.

    Args:
        launch: the folder of the launch files, as a rank will look for it.
        num_nodes: of the cluster that the files are for.
        gpus_per_node: ranks on each node.
        env: what the framework needs.
    """
    if num_nodes == 1:
        where = ["--standalone"]
    else:
        where = [f"--nnodes={num_nodes}", "--rdzv-backend=c10d", "--rdzv-endpoint=HOST:PORT"]
    ranks = f"--nproc-per-node={gpus_per_node}"
    return _words(env, ["torchrun", *where, ranks, "-m", BENCH_MODULE, "--launch", launch])


def deepspeed_command(
    launch: str, *, num_nodes: int, gpus_per_node: int, env: Mapping[str, str]
) -> tuple[str, ...]:
    """The same by DeepSpeed's launcher, started once, on the first node.

    Several nodes are those of HOSTFILE; there ``env`` must be in ``.deepspeed_env`` too, since
    the launcher hands few variables on.
    """
    if num_nodes == 1:
        where = [f"--num_gpus={gpus_per_node}"]
    else:
        where = [
            "--hostfile=HOSTFILE",
            f"--num_nodes={num_nodes}",
            f"--num_gpus={gpus_per_node}",
        ]
    module = ["--module", "--no_local_rank", BENCH_MODULE]
    # The launcher would take --launch for its own --launcher, although it stands after the module.
    return _words(env, ["deepspeed", *where, *module, "--launch-folder", launch])


def folded(words: tuple[str, ...], width: int) -> str:
    """A command over lines of at most this width where its words allow, fit to be pasted."""
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) + len(" \\") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(f"  {word}")
    return " \\\n".join(lines)


def _words(env: Mapping[str, str], words: list[str]) -> tuple[str, ...]:
    assignments = [f"{name}={shlex.quote(value)}" for name, value in env.items()]
    return (*assignments, *(shlex.quote(word) for word in words))
