"""``best/``: the launch files of the fastest plan, byte for byte, and how to launch them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from reports.launch_commands import deepspeed_command, torchrun_command
from reports.study_facts import StudyFacts
from reports.summary import MeasuredTrial, Summary
from reports.wording import (
    BENCH_VALUES,
    headroom_words,
    interval_words,
    plan_words,
    run_words,
    throughput_words,
)
from tuner.errors import UserError
from tuner.launch import ENVIRONMENT_FILE, MEGATRON_FILE
from tuner.outcome import Source
from tuner.plan import Backend
from tuner.study_folder import StudyFolder

README = "README.md"
_HERE = "."
_FILES = {
    False: "are byte for byte those that ran",
    True: "were written for this plan and have never run",
}
_STEPS = {False: "as many steps as the trial did", True: "the steps that the job asks of a trial"}
"""Of a trial that ran, and of one that was simulated."""


def launch_environment(folder: StudyFolder, launch: Path) -> Mapping[str, str]:
    """The variables that the ranks of a launch ran with; empty where it kept none.

    Raises:
        UserError: the file is not JSON.
    """
    path = launch / ENVIRONMENT_FILE
    if not path.exists():
        return {}
    return {name: str(value) for name, value in folder.read_json(path).items()}


def write_best(
    folder: StudyFolder, summary: Summary, best: MeasuredTrial, facts: StudyFacts
) -> None:
    """Puts the launch files of ``best`` into ``best/``, in place of those of a former best.

    Raises:
        UserError: the trial's launch files are missing.
    """
    launch = folder.winner_launch_folder(best.number, best.run)
    if not launch.is_dir():
        raise UserError(
            f"{launch} must hold the launch files of the fastest trial, but it is no folder; "
            "bring it back, or move that trial's folder away to report on the others"
        )
    env = launch_environment(folder, launch)
    with tempfile.TemporaryDirectory(prefix=".best-", dir=folder.path) as temporary:
        new = Path(temporary) / "new"
        shutil.copytree(launch, new)
        (new / README).write_text(best_readme(summary, best, facts, env))
        if folder.best_folder.exists():
            folder.best_folder.rename(Path(temporary) / "old")
        new.rename(folder.best_folder)


def best_readme(
    summary: Summary, best: MeasuredTrial, facts: StudyFacts, env: Mapping[str, str]
) -> str:
    """What was measured or simulated, and the commands that start these files; pure."""
    measured = best.measured
    is_simulated = measured.source is Source.SIMULATED
    how = {
        Source.SIMULATED: "These numbers are simulated: the cost model said so, nothing was "
        "started.",
        Source.MEASURED: f"Measured in {run_words(best)}: the mean of "
        f"{len(measured.step_times_s)} whole optimizer steps, of the slowest rank.",
        Source.EXTRAPOLATED: f"Extrapolated in trial {best.number}, from steps of few "
        "micro-batches.",
    }[measured.source]
    return "\n".join(
        [
            f"# {best.label}",
            "",
            f"{plan_words(best.plan, summary.num_gpus)}.",
            "",
            f"- speed: {throughput_words(summary, best)}",
            f"- step time: {interval_words(measured)}",
            f"- memory: {headroom_words(measured, facts.memory_limit_bytes)}",
            f"- on: {facts.ranks_text}",
            "",
            f"{how} The files beside this one {_FILES[is_simulated]}.",
            "",
            BENCH_VALUES,
            "",
            *_launch_section(best, facts, env),
            "",
            f"It trains {_STEPS[is_simulated]} on random tokens and prints "
            "`paratune bench: step_time_s=...`.",
            "",
        ]
    )


def _launch_section(best: MeasuredTrial, facts: StudyFacts, env: Mapping[str, str]) -> list[str]:
    size = {"num_nodes": facts.num_nodes, "gpus_per_node": facts.gpus_per_node}
    where = (
        "in this folder"
        if facts.num_nodes == 1
        else "in this folder on every node, HOST:PORT being one of the nodes and a free port"
    )
    lines = [
        "## Launch",
        "",
        f"In an environment where paratune is installed, {where}:",
        "",
        *_block(torchrun_command(_HERE, env=env, **size)),
    ]
    if best.plan.backend is Backend.DEEPSPEED:
        lines += [
            "",
            *_deepspeed_words(facts, env),
            "",
            *_block(deepspeed_command(_HERE, env=env, **size)),
        ]
    if best.plan.backend is Backend.MEGATRON:
        lines += ["", f"`{MEGATRON_FILE}` is an argument list of Megatron-LM's `pretrain_gpt.py`."]
    return lines


def _deepspeed_words(facts: StudyFacts, env: Mapping[str, str]) -> list[str]:
    if facts.num_nodes == 1:
        return ["or with DeepSpeed's own launcher:"]
    words = "or once, on the first node, with DeepSpeed's own launcher, HOSTFILE naming the nodes"
    names = ", ".join(env)
    return [
        f"{words} ({names} in `~/.deepspeed_env` too, a `NAME=value` a line):"
        if env
        else f"{words}:"
    ]


def _block(words: tuple[str, ...]) -> list[str]:
    return ["```sh", " ".join(words), "```"]
