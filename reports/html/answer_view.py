"""The head of ``report.html``: the plan, its numbers, and the command; or why there is none."""

from __future__ import annotations

from dataclasses import dataclass

from reports.answer_wording import answer_lines
from reports.launch_commands import deepspeed_command, folded, torchrun_command
from reports.study_facts import StudyFacts
from reports.study_files import StudyFiles
from reports.summary import MeasuredTrial, Summary
from reports.wording import (
    KIND_NAMES,
    plan_words,
)
from tuner.launch import ENVIRONMENT_FILE
from tuner.outcome import Measured, OutOfMemory
from tuner.plan import Backend
from tuner.units import size_text, time_text

_COMMAND_WIDTH = 78


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One large number."""

    name: str
    value: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command to copy."""

    id: str
    words: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the user came for."""

    label: str | None
    """None: nothing has trained."""
    sentence: str
    tiles: tuple[Tile, ...]
    facts: tuple[str, ...]
    """Sentences without a full stop."""
    unfinished: str | None
    """What is left of the budget, where the study has not used it."""
    workload: str
    launch: tuple[Command, ...]
    reproduce: tuple[Command, ...]


def answer_view(summary: Summary, facts: StudyFacts, study: StudyFiles) -> Answer:
    """The head of the report."""
    best = summary.best
    shared = {
        "unfinished": _unfinished(summary, study),
        "workload": workload_words(study, facts),
        "reproduce": _reproduce(facts),
    }
    if best is None:
        return Answer(
            label=None,
            sentence=_none_words(summary, facts),
            tiles=(),
            facts=(),
            launch=(),
            **shared,  # type: ignore[arg-type]  # each by its name
        )
    lines = answer_lines(summary, facts)
    sentences = [f"{line.name}: {sentence}" for line in lines for sentence in line.sentences]
    return Answer(
        label=best.plan.label(),
        sentence=plan_words(best.plan, summary.num_gpus),
        tiles=_tiles(summary, best, facts),
        facts=tuple(sentences),
        launch=_launch(best, facts, study),
        **shared,  # type: ignore[arg-type]  # each by its name
    )


def workload_words(study: StudyFiles, facts: StudyFacts) -> str:
    """What is trained on what, as far as the folder says."""
    workload = study.job.get("identity", {}).get("workload")
    where = facts.ranks_text
    if not workload:
        return where
    return (
        f"{_model_name(workload.get('model'))}, sequences of {workload.get('seq_len')} tokens, "
        f"global batch {workload.get('global_batch')}, {workload.get('optimizer')}, on {where}"
    )


def _model_name(model: object) -> str:
    return model if isinstance(model, str) else "a model given by its sizes"


def _none_words(summary: Summary, facts: StudyFacts) -> str:
    if not summary.trials:
        return "No trial has ended yet."
    counts = ", ".join(f"{number} {KIND_NAMES[kind]}" for kind, number in summary.counts)
    words = f"No plan has trained so far ({counts})."
    if all(isinstance(trial.outcome, OutOfMemory) for trial in summary.trials):
        words += (
            f" Every plan that was tried needs more than the {size_text(facts.memory_limit_bytes)} "
            "that a rank may allocate. Raise memory.limit, shorten workload.seq_len, ask for more "
            "nodes, or leave zero_stage, recompute and offload free under search; paratune plans "
            "JOB.yaml says which plans are predicted to fit."
        )
    return words


def _unfinished(summary: Summary, study: StudyFiles) -> str | None:
    asked = study.job.get("job", {}).get("budget", {}).get("trials")
    if not isinstance(asked, int) or len(summary.trials) >= asked:
        return None
    return f"{len(summary.trials)} trials so far; the job's budget is {asked}"


def _throughput_interval(measured: Measured) -> str:
    tokens = measured.tokens_per_s * measured.step_time_s
    low, high = measured.step_time_ci_s
    fastest = f"{tokens / low:,.0f}" if low > 0 else "unknown"
    return f"{tokens / high:,.0f} to {fastest}"


def _tiles(summary: Summary, best: MeasuredTrial, facts: StudyFacts) -> tuple[Tile, ...]:
    measured = best.measured
    low, high = (time_text(seconds) for seconds in measured.step_time_ci_s)
    left = facts.memory_limit_bytes - measured.peak_memory_bytes
    side = "below" if left >= 0 else "above"
    tiles = [
        Tile(
            name="tokens/s of a rank",
            value=f"{summary.tokens_per_s_per_gpu(best):,.0f}",
            words=f"{measured.tokens_per_s:,.0f} of all {summary.num_gpus}; "
            f"95 % interval {_throughput_interval(measured)}",
        ),
        Tile(
            name="a step",
            value=time_text(measured.step_time_s),
            words=f"95 % interval {low} to {high}; trial {best.number}",
        ),
        Tile(
            name="peak memory",
            value=size_text(measured.peak_memory_bytes),
            words=f"{abs(left) / facts.memory_limit_bytes:.0%} {side} the limit of "
            f"{size_text(facts.memory_limit_bytes)}",
        ),
    ]
    if summary.speedup_over_median is not None and len(summary.ranking) > 1:
        tiles.append(
            Tile(
                name="as fast as the median plan",
                value=f"{summary.speedup_over_median:.2f}x",
                words=f"of {len(summary.ranking)} plans that trained",
            )
        )
    return tuple(tiles)


def _launch(best: MeasuredTrial, facts: StudyFacts, study: StudyFiles) -> tuple[Command, ...]:
    size = {"num_nodes": facts.num_nodes, "gpus_per_node": facts.gpus_per_node}
    folder, env = str(facts.path / "best"), study.best_environment
    where = "" if facts.num_nodes == 1 else " on every node, HOST:PORT being one node's free port"
    commands = [
        Command(
            id="launch-torchrun",
            words=f"Launch it{where}",
            text=folded(torchrun_command(folder, env=env, **size), _COMMAND_WIDTH),
        )
    ]
    if best.plan.backend is Backend.DEEPSPEED:
        commands.append(
            Command(
                id="launch-deepspeed",
                words="Or with DeepSpeed's own launcher, on the first node",
                text=folded(deepspeed_command(folder, env=env, **size), _COMMAND_WIDTH),
            )
        )
    return tuple(commands)


def _reproduce(facts: StudyFacts) -> tuple[Command, ...]:
    trial = torchrun_command(
        "trials/NNNN/launch", num_nodes=facts.num_nodes, gpus_per_node=facts.gpus_per_node, env={}
    )
    return (
        Command(
            id="go-on",
            words="Go on with more trials, with the same job file; trials that are here are not "
            "run again",
            text=f"paratune tune JOB.yaml --study {facts.path} --trials N",
        ),
        Command(
            id="remake",
            words="Make the reports again",
            text=f"paratune report {facts.path}",
        ),
        Command(
            id="one-trial",
            words=f"One trial alone, with the variables of its trials/NNNN/launch/"
            f"{ENVIRONMENT_FILE} set",
            text=folded(trial, _COMMAND_WIDTH),
        ),
    )
